//! Notifications of a ring, in every order that the memory model allows (checked by loom).
//!
//! The device's side is the product's: what [`SplitRing`](crate::ring::SplitRing) calls in
//! `refresh`, `publish` and `arm_for`. A loop goes to sleep as `vsock::group` does. The driver's
//! side is that of zerowire-guest's `DriverRing`.
//!
//! Each test has a process of its own: what loom switches its threads with takes SIGBUS from
//! [`sigbus`](crate::memory). Other tests of this process rely on that handler.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, Ordering, fence};
use loom::thread;

use super::{NO_NOTIFICATION, Wish, Word, ask, need_event, wants};
use crate::host::mailbox::tests::{Bell, losses};

#[test]
fn events_are_passed_exactly_once() {
    assert!(need_event(0, 1, 0));
    assert!(!need_event(1, 1, 0));
    assert!(need_event(0xffff, 0, 0xffff));
    assert!(!need_event(5, 5, 3));
    assert!(need_event(4, 5, 3));
    assert!(!need_event(2, 5, 3));
}

/// Where all indices begin: they wrap around in the middle.
const START: u16 = 0xffff;

/// Without its fence it is what the device must not be.
struct Shared<const FENCED: bool>(AtomicU16);

impl<const FENCED: bool> Word for Shared<FENCED> {
    fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u16) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn seen(&self) -> u16 {
        self.0.load(Ordering::Acquire)
    }

    fn show(&self, value: u16) {
        self.0.store(value, Ordering::Release);
    }

    fn fence() {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

/// What both sides share.
struct Ring<const FENCED: bool> {
    event_idx: bool,
    avail_idx: Shared<FENCED>,
    avail_flags: Shared<FENCED>,
    used_event: Shared<FENCED>,
    used_idx: Shared<FENCED>,
    used_flags: Shared<FENCED>,
    avail_event: Shared<FENCED>,
    /// What is in the available ring and behind it, and in the used ring: loom fails if both sides
    /// touch one at once.
    avail: [loom::cell::UnsafeCell<u16>; 2],
    used: [loom::cell::UnsafeCell<u16>; 2],
    kick: Bell,
    call: Bell,
}

impl<const FENCED: bool> Ring<FENCED> {
    /// Both sides want no notification yet.
    fn new(event_idx: bool) -> Arc<Self> {
        let word = |value| Shared(AtomicU16::new(value));
        let cells = || [0; 2].map(loom::cell::UnsafeCell::new);
        let behind = START.wrapping_sub(1);
        Arc::new(Self {
            event_idx,
            avail_idx: word(START),
            avail_flags: word(NO_NOTIFICATION),
            used_event: word(behind),
            used_idx: word(START),
            used_flags: word(NO_NOTIFICATION),
            avail_event: word(behind),
            avail: cells(),
            used: cells(),
            kick: Bell::new(),
            call: Bell::new(),
        })
    }

    /// The driver's: `DriverRing::add` and `publish`, and the kick.
    fn offer(&self, i: u16) {
        // SAFETY: the entry is the driver's until it is shown; loom fails if the device looks at
        // the same time.
        self.avail[usize::from(i)].with_mut(|p| unsafe { *p = 100 + i });
        let old = START.wrapping_add(i);
        let new = old.wrapping_add(1);
        self.avail_idx.0.store(new, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            need_event(self.avail_event.0.load(Ordering::Relaxed), new, old)
        } else {
            self.used_flags.0.load(Ordering::Relaxed) & NO_NOTIFICATION == 0
        };
        if wanted {
            self.kick.ring();
        }
    }

    /// The device's: takes the entries up to number `n`, sleeping until there are `wanted` at once
    /// (with EVENT_IDX; else any) or all. `looks` again after it has asked to be notified, as it
    /// must. False where a wake-up is lost.
    fn take(&self, from: u16, n: u16, wanted: u16, looks: bool) -> bool {
        let mut next = START.wrapping_add(from);
        loop {
            // SplitRing::refresh.
            let seen = self.avail_idx.seen();
            while next != seen {
                let i = next.wrapping_sub(START);
                // SAFETY: the entry was shown.
                assert_eq!(self.avail[usize::from(i)].with(|p| unsafe { *p }), 100 + i);
                next = next.wrapping_add(1);
            }
            let left = START.wrapping_add(n).wrapping_sub(next);
            if left == 0 {
                return true;
            }
            let wanted = wanted.min(left);
            // SplitRing::arm_for.
            if self.event_idx {
                ask(&self.avail_event, next.wrapping_add(wanted - 1));
            } else {
                ask(&self.used_flags, 0);
            }
            let sleeps = !looks || self.avail_idx.seen().wrapping_sub(next) < wanted;
            if sleeps && !self.kick.wait() {
                return false;
            }
            // SplitRing::disarm.
            if !self.event_idx {
                self.used_flags.set(NO_NOTIFICATION);
            }
        }
    }

    /// The device's: `SplitRing::push_used` and `publish`, and the call.
    fn give_back(&self, i: u16) {
        // SAFETY: as above, the other way round.
        self.used[usize::from(i)].with_mut(|p| unsafe { *p = 200 + i });
        let old = START.wrapping_add(i);
        let new = old.wrapping_add(1);
        self.used_idx.show(new);
        let wish =
            if self.event_idx { Wish::Event(&self.used_event) } else { Wish::Flags(&self.avail_flags) };
        if wants(wish, new, old) {
            self.call.ring();
        }
    }

    /// The driver's: reaps the first `n` used elements, sleeping by `DriverRing::arm`. False where
    /// a wake-up is lost.
    fn reap(&self, n: u16) -> bool {
        let mut last = START;
        loop {
            let seen = self.used_idx.0.load(Ordering::Acquire);
            while last != seen {
                let i = last.wrapping_sub(START);
                // SAFETY: the element was shown.
                assert_eq!(self.used[usize::from(i)].with(|p| unsafe { *p }), 200 + i);
                last = last.wrapping_add(1);
            }
            if last == START.wrapping_add(n) {
                return true;
            }
            if self.event_idx {
                self.used_event.0.store(last, Ordering::Relaxed);
            } else {
                self.avail_flags.0.store(0, Ordering::Relaxed);
            }
            fence(Ordering::SeqCst);
            if self.used_idx.0.load(Ordering::Acquire) == last && !self.call.wait() {
                return false;
            }
            if !self.event_idx {
                self.avail_flags.0.store(NO_NOTIFICATION, Ordering::Relaxed);
            }
        }
    }
}

/// A driver that offers two chains one by one, and a device that sleeps for `wanted`. Returns in
/// how many orders a wake-up is lost.
fn offers<const FENCED: bool>(event_idx: bool, wanted: u16, looks: bool) -> usize {
    losses(move || {
        let ring = Ring::<FENCED>::new(event_idx);
        let driver = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                (0..2).for_each(|i| ring.offer(i));
                ring.kick.end();
            }
        });
        let woken = ring.take(0, 2, wanted, looks);
        driver.join().expect("ended");
        woken
    })
}

/// A device that gives two chains back one by one, and a driver that sleeps. As [`offers`].
fn returns<const FENCED: bool>(event_idx: bool) -> usize {
    losses(move || {
        let ring = Ring::<FENCED>::new(event_idx);
        let device = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                (0..2).for_each(|i| ring.give_back(i));
                ring.call.end();
            }
        });
        let woken = ring.reap(2);
        device.join().expect("ended");
        woken
    })
}

#[test]
fn a_device_that_sleeps_hears_of_each_chain() {
    zerowire_testkit::own_process!();
    assert_eq!(offers::<true>(true, 1, true), 0);
    assert_eq!(offers::<true>(false, 1, true), 0);
}

#[test]
fn a_device_that_waits_for_several_chains_hears_of_the_last() {
    zerowire_testkit::own_process!();
    assert_eq!(offers::<true>(true, 2, true), 0);
}

#[test]
fn a_driver_that_sleeps_hears_of_each_chain_that_comes_back() {
    zerowire_testkit::own_process!();
    assert_eq!(returns::<true>(true), 0);
    assert_eq!(returns::<true>(false), 0);
}

/// A lost wake-up is a deadlock here, which loom reports.
#[test]
fn both_sleep_in_turn_and_no_chain_stays_behind() {
    zerowire_testkit::own_process!();
    for event_idx in [true, false] {
        let lost = losses(move || {
            let ring = Ring::<true>::new(event_idx);
            let device = thread::spawn({
                let ring = Arc::clone(&ring);
                move || {
                    for i in 0..2 {
                        assert!(ring.take(i, i + 1, 1, true), "nobody ends it");
                        ring.give_back(i);
                    }
                }
            });
            let mut woken = true;
            for i in 0..2 {
                ring.offer(i);
                woken &= ring.reap(i + 1);
            }
            device.join().expect("ended");
            woken
        });
        assert_eq!(lost, 0);
    }
}

/// The tests can fail: without the device's fences, or without its second look, wake-ups are lost.
#[test]
fn without_a_fence_or_a_second_look_a_wake_up_is_lost() {
    zerowire_testkit::own_process!();
    for event_idx in [true, false] {
        assert_ne!(offers::<false>(event_idx, 1, true), 0, "arm without its fence, {event_idx}");
        assert_ne!(offers::<true>(event_idx, 1, false), 0, "arm without looking, {event_idx}");
        assert_ne!(returns::<false>(event_idx), 0, "publish without its fence, {event_idx}");
    }
    assert_ne!(offers::<false>(true, 2, true), 0, "arm for two without its fence");
}
