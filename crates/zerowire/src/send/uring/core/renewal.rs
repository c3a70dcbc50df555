//! Rings that are closed, and those that take their place.

use super::super::engine::EngineOptions;
use super::super::tombstone::{SOCKET_PLACE, Tombstone};
use super::threads::ThreadRule;
use super::{EngineState, RingFacts};
use std::io;
use zerowire_sys::uring::ring::{SendRing, Threads};

impl EngineState {
    /// The ring can't be driven any more. Notifications may have been lost, too (EBADR), so it is
    /// closed.
    #[cold]
    pub(super) fn fail(&mut self, e: &io::Error) {
        self.drain();
        self.give_up(format!("io_uring_enter failed: {e}"));
    }

    /// Closes the ring for good. What is lent comes back when the kernel has freed the ring: then
    /// the channels get their notices.
    pub(in crate::send::uring) fn give_up(&mut self, why: String) {
        let Some(mut ring) = self.ring.take() else { return };
        let handed_over = self.book.batch().0.saturating_sub(ring.held());
        drop(ring);
        tracing::warn!("{why}: the ring is closed");
        self.closed = Some(why);
        self.bury();
        self.book.give_up(handed_over);
    }

    /// Puts another ring in the place of one whose batch can't go on.
    #[cold]
    pub(super) fn renew(&mut self) {
        match set_up(&self.options, self.rule.threads()) {
            Ok((ring, stone)) => self.replace(ring, stone),
            Err(e) => self.give_up(format!("no memory for a batch, nor another ring: {e}")),
        }
    }

    fn replace(&mut self, mut ring: SendRing, stone: Tombstone) {
        let held = self.ring.as_mut().map_or(0, SendRing::held);
        self.facts = RingFacts::of(&mut ring, self.facts.features);
        self.areas.register_again(&ring);
        // The socket of the one sender, which holds it open and takes it out before it closes it.
        let registers = |socket: &_| ring.register_file(SOCKET_PLACE, *socket).is_ok();
        self.file = self.file.filter(registers);
        if let Some(watch) = &self.watch
            && let Err(e) = ring.signal(&watch.event)
        {
            tracing::warn!("the engine's new ring can't be waited for: {e}");
        }
        // The old ring goes here.
        self.ring = Some(ring);
        self.bury();
        self.stone = Some(stone);
        self.book.give_up(self.book.batch().0.saturating_sub(held));
    }

    /// The stone of the ring that was just closed.
    fn bury(&mut self) {
        if let Some(stone) = self.stone.take() {
            if let Some(watch) = &self.watch {
                // Without it a program that waits for the engine hears of these loans when it polls
                // its senders.
                let _ = stone.watch(&watch.all);
            }
            self.retired.push(stone);
        }
    }

    /// A sender's own ring is for one thread, which is cheaper. When the sender moves, another ring
    /// takes its place, for any thread this time. What the first one lent comes back when the
    /// kernel has freed it.
    pub(super) fn follow(&mut self) {
        if self.users == 0 || self.ring.is_none() || !self.rule.has_to_follow() {
            return;
        }
        self.drain();
        if let Ok((ring, stone)) = set_up(&self.options, Threads::Any) {
            self.rule = ThreadRule::Sender(None);
            self.replace(ring, stone);
            self.look_after_retired();
        }
    }

    /// Tells of the loans of rings that were closed, once the kernel has freed them all. Whether
    /// they were copied is not known; they count as copied. Not between handing a batch over and
    /// taking its results.
    pub(super) fn look_after_retired(&mut self) {
        if !self.retired.is_empty() && self.retired.iter().all(Tombstone::is_gone) {
            self.retired.clear();
            self.book.retired_are_back();
        }
    }
}

pub(super) fn set_up(options: &EngineOptions, threads: Threads) -> io::Result<(SendRing, Tombstone)> {
    let ring = SendRing::new(options.submissions.max(1), options.completions.max(2), threads)?;
    let stone = Tombstone::new(&ring)?;
    Ok((ring, stone))
}
