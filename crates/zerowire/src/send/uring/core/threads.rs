//! Which thread may hand entries over to a ring.

use std::sync::atomic::{AtomicU64, Ordering};
use zerowire_sys::uring::ring::Threads;

/// Which thread may hand entries over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadRule {
    /// The one with this number, which made the ring.
    One(u64),
    /// Each: senders on several threads share the ring.
    Any,
    /// The thread of the one sender that owns the ring. It is the thread with this number, until
    /// the sender is used on another one, and then each.
    Sender(Option<u64>),
}

impl ThreadRule {
    /// The rule of a ring that this thread makes.
    pub(super) fn of(threads: Threads) -> Self {
        match threads {
            Threads::One => Self::One(thread_number()),
            Threads::Any => Self::Any,
        }
    }

    /// The same for a ring that follows its one sender.
    pub(super) fn following_the_sender(self) -> Self {
        Self::Sender(self.thread())
    }

    fn thread(self) -> Option<u64> {
        match self {
            Self::One(thread) => Some(thread),
            Self::Any => None,
            Self::Sender(thread) => thread,
        }
    }

    #[inline]
    pub(super) fn allows_this_thread(self) -> bool {
        self.thread().is_none_or(|thread| thread == thread_number())
    }

    /// Whether the sender has come to another thread than the ring's.
    #[inline]
    pub(super) fn has_to_follow(self) -> bool {
        matches!(self, Self::Sender(_)) && !self.allows_this_thread()
    }

    /// What a ring under this rule is set up for.
    pub(super) fn threads(self) -> Threads {
        if self.thread().is_some() { Threads::One } else { Threads::Any }
    }

    /// Whether no other thread needs the ring while one waits.
    pub(super) fn waits_alone(self) -> bool {
        self != Self::Any
    }
}

/// A number that no other thread of this process has or had. (Another thread may get an address
/// again. The standard library's id costs more than the rest of a look.)
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    // Not while the thread's own variables are being dropped: such a thread never made a ring.
    NUMBER.try_with(|n| *n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senders_ring_follows_it_and_an_engines_does_not() {
        let elsewhere = |rule: ThreadRule| {
            std::thread::spawn(move || (rule.allows_this_thread(), rule.has_to_follow())).join().unwrap()
        };
        let one = ThreadRule::of(Threads::One);
        assert!(one.allows_this_thread() && one.waits_alone());
        assert_eq!((elsewhere(one), one.threads()), ((false, false), Threads::One));
        let any = ThreadRule::of(Threads::Any);
        assert!(any.allows_this_thread() && !any.waits_alone());
        assert_eq!((elsewhere(any), any.threads()), ((true, false), Threads::Any));
        let own = one.following_the_sender();
        assert!(own.allows_this_thread() && own.waits_alone() && !own.has_to_follow());
        assert_eq!((elsewhere(own), own.threads()), ((false, true), Threads::One));
        let moved = ThreadRule::Sender(None);
        assert_eq!((elsewhere(moved), moved.threads()), ((true, false), Threads::Any));
        assert!(moved.waits_alone());
    }
}
