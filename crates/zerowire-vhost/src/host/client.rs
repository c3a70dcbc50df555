//! A control thread's side of the commands.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;
use super::{At, RingCommand, RingSetup, RingState, writers};
use crate::answer::{Answer, NoAnswer, Reply, one_answer};
use crate::memory::GuestMemory;

/// An answer takes longer only where much memory is registered, or where the thread is held up.
const LATE: Duration = Duration::from_millis(200);

/// Gives the thread that serves a VM's rings commands. Each call returns when its command has been
/// carried out, or the thread is gone.
#[derive(Debug)]
pub struct RingClient<D> {
    commands: Mailbox<RingCommand<D>>,
    vm: usize,
}

impl<D> Clone for RingClient<D> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), vm: self.vm }
    }
}

impl<D> RingClient<D> {
    /// For the VM that has this place among those that the thread serves.
    pub fn new(commands: Mailbox<RingCommand<D>>, vm: usize) -> Self {
        Self { commands, vm }
    }

    /// Nothing stands on the memory any more.
    pub fn release(&self) {
        self.ask(|vm, reply| RingCommand::Release { vm, reply });
    }

    /// From now on this is the memory.
    pub fn set_memory(&self, memory: &Arc<GuestMemory>) {
        self.ask(|vm, reply| RingCommand::Memory { vm, memory: memory.clone(), reply });
    }

    /// The same memory with another dirty log, or none.
    pub fn set_log(&self, memory: &Arc<GuestMemory>) {
        self.ask(|vm, reply| RingCommand::Log { vm, memory: memory.clone(), reply });
    }

    /// Notes writes to a used ring in the dirty log from this guest address on, or not.
    pub fn log_ring(&self, queue: u16, log_at: Option<u64>) {
        self.ask(|vm, reply| RingCommand::LogRing { at: At { vm, queue }, log_at, reply });
    }

    /// Starts a ring.
    ///
    /// # Errors
    /// A text that says why it can't be served.
    pub fn start(&self, ring: RingSetup) -> Result<(), String> {
        let (queue, ring) = (ring.queue, Box::new(ring));
        self.ask(|vm, reply| RingCommand::Start { at: At { vm, queue }, ring, reply })
            .unwrap_or_else(|| Err(format!("queue {queue}: its thread has ended")))
    }

    /// Stops a ring. Returns where it goes on, if it ran.
    pub fn stop(&self, queue: u16) -> Option<u16> {
        self.ask(|vm, reply| RingCommand::Stop { at: At { vm, queue }, reply }).flatten()
    }

    /// Serves a ring, or not.
    pub fn set_state(&self, queue: u16, state: RingState) {
        self.ask(|vm, reply| RingCommand::State { at: At { vm, queue }, state, reply });
    }

    /// Another descriptor to be notified by.
    ///
    /// # Errors
    /// A text that says why it can't be watched. The ring is notified by the one before then.
    pub fn kick(&self, queue: u16, fd: Arc<OwnedFd>) -> Result<(), String> {
        self.ask(|vm, reply| RingCommand::Kick { at: At { vm, queue }, fd, reply })
            .unwrap_or_else(|| Err(format!("queue {queue}: its thread has ended")))
    }

    /// Another descriptor to notify the driver by.
    pub fn call(&self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        self.ask(|vm, reply| RingCommand::Call { at: At { vm, queue }, fd, reply });
    }

    /// Another descriptor to tell of errors by.
    pub fn err(&self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        self.ask(|vm, reply| RingCommand::Err { at: At { vm, queue }, fd, reply });
    }

    /// The front end has left.
    pub fn leave(&self) {
        self.ask(|vm, reply| RingCommand::Left { vm, reply });
    }

    /// Sends what the device adds, and does not wait. Returns false where the thread is gone.
    pub fn send(&self, command: D) -> bool {
        self.commands.send(RingCommand::Device(command))
    }

    /// Has the thread end, and does not wait.
    pub fn quit(&self) {
        self.commands.send(RingCommand::Quit);
    }

    /// Sends a command and waits for its answer; None where the thread is gone. A thread that its
    /// front end holds up is freed.
    fn ask<T>(&self, command: impl FnOnce(usize, Reply<T>) -> RingCommand<D>) -> Option<T> {
        let (reply, answer) = one_answer();
        if !self.commands.send(command(self.vm, reply)) {
            return None;
        }
        wait_for(&answer, Duration::MAX)
    }
}

/// Waits for the answer of a thread that serves rings; None where it is gone, or does not answer in
/// time. A thread that its front end holds up is freed.
pub fn wait_for<T>(answer: &Answer<T>, patience: Duration) -> Option<T> {
    let start = Instant::now();
    loop {
        match answer.wait(LATE.min(patience)) {
            Err(NoAnswer::Late) if start.elapsed() >= patience => return None,
            Err(NoAnswer::Late) => writers::free(),
            answer => return answer.ok(),
        }
    }
}
