//! What control threads tell a thread that serves rings.

use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;

use super::{HostRing, RingSetup, RingState};
use crate::answer::Reply;
use crate::memory::GuestMemory;
use crate::queue::QueueOutlet;

/// Names a ring of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The VM's place among those that the thread serves.
    pub vm: usize,
    /// The queue's number.
    pub queue: u16,
}

/// A command; those with a `reply` have been carried out when it comes. `vm` is the VM's place
/// among those that the thread serves, `at` the ring. `D` is what the device adds.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant says what it means; its fields have their types")]
pub enum RingCommand<D> {
    /// The VM's memory goes: rings stop where they are until [`Self::Memory`] comes, and nothing
    /// stands on it any more.
    Release { vm: usize, reply: Reply<()> },
    /// From now on this is the VM's memory. Rings that run move over.
    Memory { vm: usize, memory: Arc<GuestMemory>, reply: Reply<()> },
    /// The same memory with another dirty log, or none.
    Log { vm: usize, memory: Arc<GuestMemory>, reply: Reply<()> },
    /// Note writes to the used ring in the dirty log from this guest address on, or not.
    LogRing { at: At, log_at: Option<u64>, reply: Reply<()> },
    /// Start a ring.
    Start { at: At, ring: Box<RingSetup>, reply: Reply<Result<(), String>> },
    /// Stop a ring; the reply is its next available index.
    Stop { at: At, reply: Reply<Option<u16>> },
    /// Serve a ring, or not.
    State { at: At, state: RingState, reply: Reply<()> },
    /// Another descriptor to be notified by.
    Kick { at: At, fd: Arc<OwnedFd>, reply: Reply<Result<(), String>> },
    /// Another descriptor to notify the driver by.
    Call { at: At, fd: Option<Arc<OwnedFd>>, reply: Reply<()> },
    /// Another descriptor to tell of errors by.
    Err { at: At, fd: Option<Arc<OwnedFd>>, reply: Reply<()> },
    /// The front end has left: the VM's rings stop, and its memory goes.
    Left { vm: usize, reply: Reply<()> },
    /// What the device adds.
    Device(D),
    /// End.
    Quit,
}

/// A thread that serves rings, of one VM or of several.
pub trait RingThread {
    /// Commands that the device adds.
    type Device;

    /// The queues that each VM may have here.
    fn queues(&self) -> Range<u16>;

    /// A ring that runs.
    fn ring_mut(&mut self, at: At) -> Option<&mut HostRing>;

    /// A VM's memory.
    fn memory(&mut self, vm: usize) -> &mut Arc<GuestMemory>;

    /// What the thread sleeps in, and what it learns there of a ring's kick.
    fn epoll(&self) -> (&OwnedFd, fn(At) -> u64);

    /// Has a ring run. Its kick is not watched yet.
    fn install(&mut self, at: At, setup: RingSetup) -> Result<(), String>;

    /// A ring stops. All that was taken of it has been used or given back.
    fn remove(&mut self, at: At) -> Option<HostRing>;

    /// Gives back all that was taken of a VM's rings: nothing stands on its memory any more.
    fn release(&mut self, vm: usize);

    /// From now on this is a VM's memory: its rings, which were released, move over and go on.
    fn set_memory(&mut self, vm: usize, memory: Arc<GuestMemory>);

    /// A ring, its state or its kick is new: the thread must check it.
    fn changed(&mut self, at: At);

    /// A VM's front end has left, and its rings have stopped.
    fn left(&mut self, vm: usize);

    /// Carries out what the device adds.
    fn device(&mut self, command: Self::Device);
}

/// Carries out a command. Breaks where the thread has to end.
pub fn carry_out<T: RingThread>(thread: &mut T, command: RingCommand<T::Device>) -> ControlFlow<()> {
    match command {
        RingCommand::Release { vm, reply } => {
            thread.release(vm);
            answer(reply, ());
        }
        RingCommand::Memory { vm, memory, reply } => {
            thread.release(vm);
            thread.set_memory(vm, memory);
            answer(reply, ());
        }
        RingCommand::Log { vm, memory, reply } => {
            set_log(thread, vm, memory);
            answer(reply, ());
        }
        RingCommand::LogRing { at, log_at, reply } => {
            if let Some(ring) = thread.ring_mut(at) {
                ring.log_at = log_at;
            }
            let memory = thread.memory(at.vm).clone();
            set_log(thread, at.vm, memory);
            answer(reply, ());
        }
        RingCommand::Start { at, ring, reply } => answer(reply, start(thread, at, *ring)),
        RingCommand::Stop { at, reply } => answer(reply, stop(thread, at)),
        RingCommand::State { at, state, reply } => {
            if let Some(ring) = thread.ring_mut(at) {
                ring.state = state;
            }
            thread.changed(at);
            answer(reply, ());
        }
        RingCommand::Kick { at, fd, reply } => {
            let replaced = replace_kick(thread, at, fd);
            thread.changed(at);
            answer(reply, replaced);
        }
        RingCommand::Call { at, fd, reply } => {
            if let Some(ring) = thread.ring_mut(at) {
                ring.set_call(fd);
            }
            answer(reply, ());
        }
        RingCommand::Err { at, fd, reply } => {
            if let Some(ring) = thread.ring_mut(at) {
                ring.err = fd;
            }
            answer(reply, ());
        }
        RingCommand::Left { vm, reply } => {
            for queue in thread.queues() {
                stop(thread, At { vm, queue });
            }
            thread.left(vm);
            answer(reply, ());
        }
        RingCommand::Device(command) => thread.device(command),
        RingCommand::Quit => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

/// Answers commands for a thread that could not start, so that nobody waits for it.
pub fn refuse_all<D>(queue: &QueueOutlet<RingCommand<D>>, why: &str) {
    while let Some(command) = queue.recv() {
        match command {
            RingCommand::Start { reply, .. } | RingCommand::Kick { reply, .. } => {
                answer(reply, Err(why.to_owned()));
            }
            RingCommand::Stop { reply, .. } => answer(reply, None),
            RingCommand::Release { reply, .. }
            | RingCommand::Memory { reply, .. }
            | RingCommand::Log { reply, .. }
            | RingCommand::LogRing { reply, .. }
            | RingCommand::State { reply, .. }
            | RingCommand::Call { reply, .. }
            | RingCommand::Err { reply, .. }
            | RingCommand::Left { reply, .. } => answer(reply, ()),
            RingCommand::Device(_) => {}
            RingCommand::Quit => return,
        }
    }
}

/// Starts a ring.
pub fn start<T: RingThread>(thread: &mut T, at: At, setup: RingSetup) -> Result<(), String> {
    thread.install(at, setup)?;
    if let Some(kick) = thread.ring_mut(at).and_then(|ring| ring.kick.clone())
        && let Err(e) = watch_kick(thread, at, &kick)
    {
        stop(thread, at);
        return Err(e);
    }
    thread.changed(at);
    Ok(())
}

/// Stops a ring; where it goes on.
pub fn stop<T: RingThread>(thread: &mut T, at: At) -> Option<u16> {
    let ring = thread.remove(at)?;
    if let Some(kick) = &ring.kick {
        let _ = epoll::delete(thread.epoll().0, kick);
    }
    Some(ring.stop())
}

/// Where the new descriptor can't be watched, the ring keeps the old one.
fn replace_kick<T: RingThread>(thread: &mut T, at: At, fd: Arc<OwnedFd>) -> Result<(), String> {
    if thread.ring_mut(at).is_none() {
        return Ok(());
    }
    watch_kick(thread, at, &fd)?;
    if let Some(old) = thread.ring_mut(at).and_then(|ring| ring.kick.replace(fd)) {
        let _ = epoll::delete(thread.epoll().0, &old);
    }
    Ok(())
}

/// The descriptor is watched edge-triggered, since each write to it is an edge: it never has to be
/// read. epoll watches the open file through the descriptor that the ring keeps.
fn watch_kick<T: RingThread>(thread: &T, at: At, kick: &OwnedFd) -> Result<(), String> {
    let (epoll, token) = thread.epoll();
    epoll::add(
        epoll,
        kick,
        epoll::EventData::new_u64(token(at)),
        epoll::EventFlags::IN | epoll::EventFlags::ET,
    )
    .map_err(|e| format!("queue {}: the kick descriptor can't be watched: {e}", at.queue))
}

/// The same memory with another dirty log: rings stay where they are, and so does what is
/// registered.
fn set_log<T: RingThread>(thread: &mut T, vm: usize, memory: Arc<GuestMemory>) {
    for queue in thread.queues() {
        if let Some(ring) = thread.ring_mut(At { vm, queue }) {
            ring.follow_log(&memory);
        }
    }
    *thread.memory(vm) = memory;
}

/// Who has asked may be gone.
fn answer<A>(reply: Reply<A>, answer: A) {
    let _ = reply.send(answer);
}

#[cfg(test)]
mod tests;
