//! The loop of a thread that serves rings.
//!
//! It moves a batch of everything as long as there is work, and sleeps in `epoll_wait` when there
//! is none. While it works, drivers are not asked to notify; before it sleeps it arms the rings and
//! looks once more. Descriptors are watched edge-triggered, so that an eventfd never has to be
//! read: each write to it is an edge.

mod cadence;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use zerowire_sys::syscall;

use super::mailbox::take_all;
use super::{RingCommand, RingThread, carry_out};
use crate::queue::QueueOutlet;
use cadence::{Cadence, Next};

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woke {
    /// Events came, or nobody has slept.
    ByEvent,
    /// Time has passed.
    ByTime,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// Nothing moved.
    Idle,
    /// Something moved.
    Busy {
        /// The thread polls the rings some more before it sleeps.
        lingers: bool,
        /// What events could say is known, for some turns.
        knows_events: bool,
    },
}

/// Whether a thread may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is work after all.
    Work,
    /// Rings have entries, and the turn before could not move any: another turn, and longer and
    /// longer sleeps behind it.
    Blocked,
    /// It may, for this long at most.
    Rest(Option<Duration>),
}

/// A thread that serves rings by turns.
pub trait Turns: RingThread {
    /// Looks at the rings behind the last work, before the thread may sleep.
    const LINGER: u32;
    /// How many turns a thread that works takes from one request for events to the next.
    const TURNS_UNASKED: u32;
    /// The same for the looks of a thread that lingers; None where it does not ask.
    const LOOKS_UNASKED: Option<u32>;
    /// What epoll gives when commands have come.
    const WAKE: u64;

    /// How its errors begin.
    fn label(&self) -> String {
        String::new()
    }

    /// Whether rings may not be touched for now.
    fn is_released(&self) -> bool {
        false
    }

    /// Moves a batch of everything.
    fn turn(&mut self, woke: Woke) -> Worked;

    /// Something moved, and the thread is about to ask for events.
    fn ask(&mut self) {}

    /// Whether what has moved has to wait for the guest, so that lingering would hold that up;
    /// asked before the first look.
    fn guest_must_wait(&mut self) -> bool {
        false
    }

    /// Asks drivers for notifications.
    fn arm(&mut self) -> Armed;

    /// The thread is about to ask for events, and to wait at most `limit`. Returns the limit to
    /// use.
    fn waits(&mut self, limit: Option<Duration>) -> Option<Duration> {
        limit
    }

    /// The thread is about to sleep.
    fn sleeps(&mut self) {}

    /// Whether an event is a kick.
    fn is_kick(_token: u64) -> bool {
        false
    }

    /// Events came at this moment, kicks among them. What they say follows.
    fn kicked(&mut self, _at: Instant) {}

    /// An event; returns whether it says anything about rings or what they are connected with.
    fn event(&mut self, token: u64, flags: epoll::EventFlags) -> bool;

    /// Events have come.
    fn woken(&mut self) {}

    /// No events have come in the time that was the limit, and nothing had moved before. Returns
    /// whether something has now.
    fn slept(&mut self, limit: Option<Duration>) -> bool;
}

/// The loop.
pub struct TurnLoop<D> {
    commands: QueueOutlet<RingCommand<D>>,
    _wake: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    cadence: Cadence,
    woke: Woke,
    ended: bool,
}

/// Commands that are carried out.
struct Taking<'a, T: Turns> {
    commands: &'a QueueOutlet<RingCommand<T::Device>>,
    thread: &'a mut T,
    ended: bool,
}

impl<D> TurnLoop<D> {
    /// With the receiving end of the thread's mailbox, which `wake` belongs to. Takes at most
    /// `events` events at once.
    pub fn new(commands: QueueOutlet<RingCommand<D>>, wake: Arc<OwnedFd>, events: usize) -> Self {
        Self {
            commands,
            _wake: wake,
            events: Vec::with_capacity(events),
            cadence: Cadence::new(),
            woke: Woke::ByEvent,
            ended: false,
        }
    }

    /// Until a command ends it, or nobody can send any more.
    pub fn run<T: Turns<Device = D>>(&mut self, thread: &mut T) {
        while !self.ended {
            self.step(thread, None);
        }
    }

    /// The next idle turn looks at nothing more before the thread may sleep.
    #[cfg(feature = "testing")]
    pub fn rest(&mut self) {
        self.cadence.rest();
    }

    /// So many looks at the rings follow.
    #[cfg(feature = "testing")]
    pub fn linger(&mut self, looks: u32) {
        self.cadence.linger(looks);
    }

    /// One turn; where there is nothing to do the thread sleeps, for as long as `sleep` says if
    /// that does. Returns whether there may be more to do.
    #[inline]
    pub fn step<T: Turns<Device = D>>(&mut self, thread: &mut T, sleep: Option<Duration>) -> bool {
        if thread.is_released() {
            self.wait(thread, None);
            return true;
        }
        let worked = thread.turn(std::mem::replace(&mut self.woke, Woke::ByEvent));
        let next = match worked {
            Worked::Busy { lingers, knows_events } => {
                self.cadence.worked(if lingers { T::LINGER } else { 0 }, knows_events, T::TURNS_UNASKED)
            }
            Worked::Idle => self.cadence.idled(T::LINGER, T::LOOKS_UNASKED, || thread.guest_must_wait()),
        };
        let idle = worked == Worked::Idle;
        let limit = match next {
            Next::Rest => match thread.arm() {
                Armed::Work => return true,
                Armed::Blocked => match self.cadence.blocked() {
                    None => return true,
                    nap => nap,
                },
                Armed::Rest(limit) => {
                    self.cadence.rest();
                    limit
                }
            },
            _ if idle => {
                std::hint::spin_loop();
                if next == Next::Turn {
                    return true;
                }
                Some(Duration::ZERO)
            }
            Next::Turn => return true,
            Next::Ask => {
                thread.ask();
                Some(Duration::ZERO)
            }
        };
        let limit = thread.waits(limit);
        let came = self.wait(thread, sleep.or(limit));
        let mut moved = !idle;
        if came {
            thread.woken();
        } else if idle {
            self.woke = Woke::ByTime;
            moved = thread.slept(limit);
        }
        came || moved
    }

    /// Waits for events. Returns whether any came that say something.
    fn wait<T: Turns<Device = D>>(&mut self, thread: &mut T, limit: Option<Duration>) -> bool {
        self.cadence.asked();
        if limit != Some(Duration::ZERO) {
            thread.sleeps();
        }
        match syscall::epoll_wait(thread.epoll().0.as_fd(), &mut self.events, limit) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) => {
                tracing::error!("{}epoll_wait failed: {e}", thread.label());
                self.ended = true;
                return false;
            }
        }
        if self.events.iter().any(|e| T::is_kick(e.data.u64())) {
            thread.kicked(Instant::now());
        }
        let mut came = false;
        for i in 0..self.events.len() {
            let (token, flags) = (self.events[i].data.u64(), self.events[i].flags);
            if token == T::WAKE {
                self.take_commands(thread);
                came = true;
            } else {
                came |= thread.event(token, flags);
            }
        }
        came
    }

    fn take_commands<T: Turns<Device = D>>(&mut self, thread: &mut T) {
        let mut taking = Taking { commands: &self.commands, thread, ended: false };
        let open = take_all(
            &mut taking,
            |t| t.commands.try_recv(),
            |t, command| t.ended |= carry_out(t.thread, command).is_break(),
        );
        self.ended |= taking.ended || !open;
        // The turns that follow look at what they changed.
        self.cadence.linger(T::LINGER);
    }
}

#[cfg(test)]
mod tests;
