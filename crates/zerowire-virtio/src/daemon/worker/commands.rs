//! Commands from the control thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use rustix::event::epoll;

use super::{TAG_RECEIVE, TAG_TRANSMIT, Worker, watch};
use crate::daemon::command::{Command, Direction};
use crate::daemon::metadata::MetadataDetour;
use crate::daemon::path::{Path, Side};
use crate::host::mailbox::take_all;
use crate::host::{HostRing, RingSetup, RingState};
use crate::memory::GuestMemory;

/// Answers commands for a worker that could not start, so that nobody waits for it.
pub(super) fn refuse_all(queue: &Receiver<Command>, why: &str) {
    while let Ok(command) = queue.recv() {
        match command {
            Command::Start { reply, .. } => drop(reply.send(Err(why.to_owned()))),
            Command::Stop { reply, .. } => drop(reply.send(None)),
            Command::LetGo { reply }
            | Command::Memory { reply, .. }
            | Command::Log { reply, .. }
            | Command::LogRing { reply, .. }
            | Command::Enable { reply, .. }
            | Command::Call { reply, .. }
            | Command::Kick { reply, .. }
            | Command::Err { reply, .. } => drop(reply.send(())),
            Command::Quit => return,
            _ => {}
        }
    }
}

impl<P: Path> Worker<P> {
    pub(super) fn take_commands(&mut self) {
        if !take_all(self, |w| w.commands.try_recv(), Self::carry_out) {
            self.quit = true;
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::LetGo { reply } => {
                self.let_go();
                let _ = reply.send(());
            }
            Command::Memory { memory, reply } => {
                self.set_memory(memory);
                let _ = reply.send(());
            }
            Command::Log { memory, reply } => {
                self.set_log(memory);
                let _ = reply.send(());
            }
            Command::LogRing { direction, at, reply } => {
                if let Some(ring) = self.host(direction) {
                    ring.set_log_at(at);
                }
                self.set_log(self.memory.clone());
                let _ = reply.send(());
            }
            Command::Start { direction, ring, reply } => {
                let _ = reply.send(self.start(direction, *ring));
            }
            Command::Stop { direction, reply } => {
                let _ = reply.send(self.stop(direction));
            }
            Command::Enable { direction, on, reply } => {
                if let Some(ring) = self.host(direction) {
                    ring.set_state(RingState::set(on));
                }
                self.starved = false;
                self.waiting = false;
                self.port_ready = true;
                let _ = reply.send(());
            }
            Command::Call { direction, fd, reply } => {
                if let Some(ring) = self.host(direction) {
                    ring.set_call(fd);
                }
                let _ = reply.send(());
            }
            Command::Err { direction, fd, reply } => {
                if let Some(ring) = self.host(direction) {
                    ring.set_err(fd);
                }
                let _ = reply.send(());
            }
            Command::Kick { direction, fd, reply } => {
                self.replace_kick(direction, fd);
                let _ = reply.send(());
            }
            Command::Tree(tree) => {
                if let Some(MetadataDetour::Service(s)) = &mut self.detour {
                    s.set_tree(tree);
                }
            }
            Command::MetadataFrame(frame) => {
                self.forwarded.fetch_sub(1, Ordering::Relaxed);
                if let Some(MetadataDetour::Service(s)) = &mut self.detour {
                    s.ingest(&frame);
                }
            }
            Command::Quit => self.quit = true,
        }
    }

    fn host(&mut self, direction: Direction) -> Option<&mut HostRing> {
        match direction {
            Direction::Transmit => self.transmit.as_mut().map(Side::host_mut),
            Direction::Receive => self.receive.as_mut().map(Side::host_mut),
        }
    }

    /// The same memory with another dirty log: neither rings nor what is registered change.
    fn set_log(&mut self, memory: Arc<GuestMemory>) {
        for direction in [Direction::Transmit, Direction::Receive] {
            if let Some(ring) = self.host(direction) {
                ring.follow_log(&memory);
            }
        }
        self.memory = memory;
    }

    /// Rings let go of the old memory before it goes.
    fn let_go_of_rings(&mut self) {
        let counters = &self.shared.pairs[self.pair];
        if let Some(side) = &mut self.receive {
            side.let_go(&mut self.path, &self.memory, &counters.receive);
        }
        if let Some(side) = &mut self.transmit {
            side.let_go(&mut self.path, &self.memory, &counters.transmit);
        }
    }

    fn let_go(&mut self) {
        if !self.paused {
            self.let_go_of_rings();
            self.path.let_go();
            self.paused = true;
        }
    }

    pub(super) fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        let mut problems = Vec::new();
        if !std::mem::take(&mut self.paused) {
            self.let_go_of_rings();
        }
        // A path notes no writes, and has no use for a log, which may go before the memory does.
        let plain = if memory.log().is_some() { Arc::new(memory.with_log(None)) } else { memory.clone() };
        self.path.set_memory(&plain);
        if let Some(side) = &mut self.transmit {
            problems.extend(side.move_to(&mut self.path, &memory).err());
        }
        if let Some(side) = &mut self.receive {
            problems.extend(side.move_to(&mut self.path, &memory).err());
        }
        self.memory = memory;
        // A ring that comes back with its memory is looked at.
        self.starved = false;
        self.retry = true;
        self.port_ready |= P::POSTS_AHEAD;
        for p in &problems {
            self.shared.set_error(p.clone());
            self.shared.ring_errors.fetch_add(1, Ordering::Release);
            tracing::error!("{p}; this queue waits until its memory comes back");
        }
        self.describe();
    }

    fn start(&mut self, direction: Direction, ring: RingSetup) -> Result<(), String> {
        match direction {
            Direction::Transmit => {
                let (side, recovered) = P::Transmit::start(&mut self.path, ring, &self.memory)?;
                self.shared.unsure.fetch_add(recovered.unsure as u64, Ordering::Relaxed);
                self.transmit = Some(side);
            }
            Direction::Receive => {
                self.receive = Some(P::Receive::start(&mut self.path, ring, &self.memory)?.0);
                self.starved = false;
                self.waiting = false;
                self.port_ready = true;
            }
        }
        self.watch_kick(direction).inspect_err(|_| {
            self.stop(direction);
        })
    }

    /// epoll watches the open file through the descriptor that the ring keeps.
    fn watch_kick(&mut self, direction: Direction) -> Result<(), String> {
        let tag = if direction == Direction::Transmit { TAG_TRANSMIT } else { TAG_RECEIVE };
        let ring = match direction {
            Direction::Transmit => self.transmit.as_ref().map(Side::host),
            Direction::Receive => self.receive.as_ref().map(Side::host),
        };
        let Some(kick) = ring.and_then(HostRing::kick) else { return Ok(()) };
        watch(&self.epoll, kick.as_fd(), tag)
            .map_err(|e| format!("the kick descriptor can't be watched: {e}"))
    }

    fn replace_kick(&mut self, direction: Direction, fd: OwnedFd) {
        let Some(ring) = self.host(direction) else { return };
        if let Some(old) = ring.replace_kick(fd) {
            let _ = epoll::delete(&self.epoll, &old);
        }
        if let Err(e) = self.watch_kick(direction) {
            tracing::error!("queue pair {}: {e}", self.pair);
        }
        self.starved = false;
    }

    fn stop(&mut self, direction: Direction) -> Option<u16> {
        let (counters, memory) = (&self.shared.pairs[self.pair], &self.memory);
        let ring = match direction {
            Direction::Transmit => self.transmit.take()?.end(&mut self.path, memory, &counters.transmit),
            Direction::Receive => self.receive.take()?.end(&mut self.path, memory, &counters.receive),
        };
        if let Some(kick) = ring.kick() {
            let _ = epoll::delete(&self.epoll, kick);
        }
        Some(ring.stop())
    }
}
