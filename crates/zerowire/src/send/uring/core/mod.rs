//! One ring: hands entries over, and reads what comes back into the [`Book`].
//!
//! Entries are pushed with `MSG_DONTWAIT`, so results are there when the call that hands them over
//! returns.
//!
//! Memory: the caller keeps what an entry names until its channel has the notice. Message headers
//! are only read before the result.

mod drive;
mod renewal;
mod threads;
mod watch;

use self::renewal::set_up;
use self::threads::ThreadRule;
use self::watch::EngineWatch;
use super::areas::Areas;
use super::book::Book;
use super::engine::EngineOptions;
use super::error::EngineError;
use super::tombstone::{SOCKET_PLACE, Tombstone};
use crate::memlock::locked_limit;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use zerowire_sys::socket::Message;
use zerowire_sys::uring::SendFeatures;
use zerowire_sys::uring::ring::SendRing;
use zerowire_sys::uring::sqe::Target;

/// What the kernel said of itself and of the ring in use.
pub(super) struct RingFacts {
    pub(super) features: SendFeatures,
    /// Set-up flags, as words.
    pub(super) flags: &'static str,
    /// Entries that one batch may have.
    pub(super) submissions: usize,
}

impl RingFacts {
    fn of(ring: &mut SendRing, features: SendFeatures) -> Self {
        Self { features, flags: ring.flags(), submissions: ring.submissions() }
    }
}

/// Since the engine, or the one sender, was made.
#[derive(Default)]
pub(super) struct EngineCounts {
    /// System calls that nobody has [taken](std::mem::take) yet.
    pub(super) calls: u64,
    /// Times that the queue of completions was too short, and the kernel kept some on its own list.
    pub(super) overflows: u64,
}

/// See the module.
pub(super) struct EngineState {
    ring: Option<SendRing>,
    // After the ring: memory goes after it.
    pub(super) areas: Areas,
    stone: Option<Tombstone>,
    /// Of rings that were closed, until the kernel has freed them all.
    retired: Vec<Tombstone>,
    /// Why the ring was closed for good.
    pub(super) closed: Option<String>,
    /// On engines that are waited for.
    watch: Option<EngineWatch>,
    options: EngineOptions,
    rule: ThreadRule,
    pub(super) facts: RingFacts,
    pub(super) book: Book,
    /// The socket that is in the ring's table of files.
    file: Option<RawFd>,
    /// Kept from batch to batch.
    pub(super) messages: Vec<Message>,
    /// Engines and senders that still use it.
    pub(super) users: usize,
    pub(super) counts: EngineCounts,
    /// Entries that one call hands over, as if the kernel had no memory for more.
    #[cfg(test)]
    hand_over_at_most: usize,
}

impl EngineState {
    pub(super) fn new(options: &EngineOptions) -> Result<Self, EngineError> {
        let refused = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENOMEM) => EngineError::RingMemlock {
                submissions: options.submissions,
                completions: options.completions,
                limit: locked_limit(),
            },
            _ => EngineError::Refused(zerowire_sys::uring::refusal(e)),
        };
        let (mut ring, stone) = set_up(options, options.threads).map_err(refused)?;
        let features = zerowire_sys::uring::send_features().map_err(refused)?;
        Ok(Self {
            facts: RingFacts::of(&mut ring, features),
            ring: Some(ring),
            areas: Areas::default(),
            stone: Some(stone),
            retired: Vec::new(),
            closed: None,
            watch: None,
            options: options.clone(),
            rule: ThreadRule::of(options.threads),
            book: Book::default(),
            file: None,
            messages: Vec::new(),
            users: 1,
            counts: EngineCounts::default(),
            #[cfg(test)]
            hand_over_at_most: usize::MAX,
        })
    }

    /// A descriptor that is readable when there is something to reap, whichever ring is in use.
    pub(super) fn watch(&mut self) -> Result<Arc<OwnedFd>, EngineError> {
        if let Some(watch) = &self.watch {
            return Ok(watch.all.clone());
        }
        if !self.is_own_thread() {
            return Err(EngineError::WrongThread);
        }
        let watch = EngineWatch::new().map_err(EngineError::Watch)?;
        let is_idle = self.is_idle();
        if let Some(ring) = &mut self.ring {
            ring.signal(&watch.event).map_err(EngineError::Watch)?;
            ring.set_signals(!is_idle);
        }
        for stone in &self.retired {
            stone.watch(&watch.all).map_err(EngineError::Watch)?;
        }
        if !is_idle {
            // For what came before.
            watch.set();
        }
        Ok(self.watch.insert(watch).all.clone())
    }

    /// Whether a program that waits for the engine must poll its senders.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether nothing is lent and no sender has notices, so that nothing will come either.
    fn is_idle(&self) -> bool {
        self.book.waiting == 0 && self.book.outstanding == 0
    }

    /// Call this before something is lent: what comes then signals the watch.
    #[inline]
    pub(super) fn arm_watch(&mut self) {
        if self.watch.is_some()
            && let Some(ring) = &mut self.ring
            && !ring.signals()
        {
            ring.set_signals(true);
        }
    }

    /// Call this when a batch is over, or a sender has gone. While nothing is lent, results alone
    /// must not signal the watch: nobody would poll a sender that has nothing out.
    #[inline]
    pub(super) fn disarm_watch(&mut self) {
        if self.watch.is_some() && self.is_idle() && self.ring.as_mut().is_none_or(SendRing::signals) {
            self.pass_on();
        }
    }

    /// Call this when a channel's notices were taken: others may have some, and a sleeper must hear
    /// of them. If nothing is lent it sleeps on, also when a signal came late.
    pub(super) fn pass_on(&mut self) {
        let is_idle = self.is_idle();
        let Some(watch) = &self.watch else { return };
        if self.book.waiting > 0 {
            watch.set();
        } else if is_idle {
            if let Some(ring) = &mut self.ring {
                ring.set_signals(false);
            }
            watch.clear();
        }
    }

    pub(super) fn register(&mut self, area: &crate::area::Area) -> Result<(), EngineError> {
        if !self.is_own_thread() {
            return Err(EngineError::WrongThread);
        }
        match &self.ring {
            Some(ring) => self.areas.register(ring, area),
            None => Err(EngineError::Closed(self.closed.clone().unwrap_or_default())),
        }
    }

    /// Registers the one socket that uses this ring, which saves the kernel a look-up and a
    /// reference an entry. Nothing comes of it where that fails.
    pub(super) fn register_file(&mut self, socket: RawFd) {
        let registers = |ring: &SendRing| ring.register_file(SOCKET_PLACE, socket).is_ok();
        self.file = self.ring.as_ref().is_some_and(registers).then_some(socket);
    }

    /// Takes it out of the table, so that closing the socket closes it at once. On another thread
    /// than the ring's it goes with the ring.
    pub(super) fn forget_file(&mut self) {
        if let (Some(_), Some(ring)) = (self.file.take(), &self.ring) {
            let _ = ring.register_file(SOCKET_PLACE, -1);
        }
    }

    /// How an entry names a socket.
    pub(super) fn target(&self, socket: RawFd) -> Target {
        if self.file == Some(socket) { Target::Registered(SOCKET_PLACE) } else { Target::Fd(socket) }
    }

    /// Whether this thread may hand entries over.
    pub(super) fn is_own_thread(&self) -> bool {
        self.rule.allows_this_thread()
    }

    /// The ring is one sender's own, and follows it to another thread.
    pub(super) fn follow_the_sender(&mut self) {
        self.rule = self.rule.following_the_sender();
    }
}

#[cfg(test)]
mod tests;
