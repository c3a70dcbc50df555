//! The sleeping and waking of `recv::doorbell`, in every order that the memory model allows
//! (checked by loom).

use std::cell::RefCell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use zerowire_wire::doorbell::{Flag, announce, awake, only, sleep_check, wake_if_sleeping, wake_if_wanted};
use zerowire_wire::mapped::{POLL_DATA, POLL_END, POLL_NOTHING};

struct Word(AtomicU32);

impl Word {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Flag for Word {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn swap(&self, value: u32) -> u32 {
        self.0.swap(value, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// What the two processes share: one window, its payload, both flags, and the eventfds' counters.
struct Shared {
    poll_value: AtomicU32,
    payload: loom::cell::UnsafeCell<u32>,
    program_sleeps: Word,
    daemon_waits: Word,
    ready: loom::sync::Mutex<u32>,
    ready_bell: loom::sync::Condvar,
    released: loom::sync::Mutex<u32>,
    released_bell: loom::sync::Condvar,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            poll_value: AtomicU32::new(POLL_NOTHING),
            payload: loom::cell::UnsafeCell::new(0),
            program_sleeps: Word::new(),
            daemon_waits: Word::new(),
            ready: loom::sync::Mutex::new(0),
            ready_bell: loom::sync::Condvar::new(),
            released: loom::sync::Mutex::new(0),
            released_bell: loom::sync::Condvar::new(),
        })
    }

    /// The daemon's: publishes a value.
    fn publish(&self, value: u32) {
        self.poll_value.store(value, Ordering::Release);
        if wake_if_sleeping(&self.program_sleeps) {
            *self.ready.lock().expect("sound") += 1;
            self.ready_bell.notify_one();
        }
    }

    /// The program's: sleeps until something is published. A lost wake-up is a deadlock, which loom
    /// reports.
    fn wait(&self) -> u32 {
        loop {
            let look = || self.poll_value.load(Ordering::Acquire) != POLL_NOTHING;
            if sleep_check(&self.program_sleeps, look) {
                let mut count = self.ready.lock().expect("sound");
                while *count == 0 {
                    count = self.ready_bell.wait(count).expect("sound");
                }
                *count = 0;
                drop(count);
                awake(&self.program_sleeps);
            }
            let value = self.poll_value.load(Ordering::Acquire);
            if value != POLL_NOTHING {
                return value;
            }
        }
    }

    /// The program's: gives the window back.
    fn release(&self) {
        self.poll_value.store(POLL_NOTHING, Ordering::Release);
        if wake_if_sleeping(&self.daemon_waits) {
            *self.released.lock().expect("sound") += 1;
            self.released_bell.notify_one();
        }
    }

    /// The daemon's: sleeps until the window is free.
    fn wait_released(&self) {
        loop {
            let look = || self.poll_value.load(Ordering::Acquire) == POLL_NOTHING;
            if !sleep_check(&self.daemon_waits, look) {
                return;
            }
            let mut count = self.released.lock().expect("sound");
            while *count == 0 {
                count = self.released_bell.wait(count).expect("sound");
            }
            *count = 0;
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn a_program_that_sleeps_sees_the_window_and_its_payload() {
    model(|| {
        let shared = Shared::new();
        let daemon = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                // SAFETY: the window is the daemon's; loom fails if the program looks at the same
                // time.
                shared.payload.with_mut(|p| unsafe { *p = 42 });
                shared.publish(POLL_DATA);
            }
        });
        assert_eq!(shared.wait(), POLL_DATA);
        // SAFETY: the window is the program's.
        assert_eq!(shared.payload.with(|p| unsafe { *p }), 42);
        daemon.join().expect("ended");
    });
}

#[test]
fn a_daemon_that_waits_hears_of_the_release_and_writes_again() {
    model(|| {
        let shared = Shared::new();
        let daemon = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                // SAFETY: as above.
                shared.payload.with_mut(|p| unsafe { *p = 1 });
                shared.publish(POLL_DATA);
                shared.wait_released();
                // SAFETY: the window was given back.
                shared.payload.with_mut(|p| unsafe { *p = 2 });
                shared.publish(POLL_END);
            }
        });
        assert_eq!(shared.wait(), POLL_DATA);
        // SAFETY: the window is the program's.
        assert_eq!(shared.payload.with(|p| unsafe { *p }), 1);
        shared.release();
        assert_eq!(shared.wait(), POLL_END);
        daemon.join().expect("ended");
    });
}

/// Two windows, and a daemon that waits for the second one only, then for the first: whichever is
/// given back first.
#[test]
fn a_daemon_that_waits_for_one_window_hears_of_that_one() {
    for order in [[0, 1], [1, 0]] {
        model(move || {
            let waits = Arc::new(Word::new());
            let windows = Arc::new([AtomicU32::new(POLL_DATA), AtomicU32::new(POLL_DATA)]);
            let bell = Arc::new((loom::sync::Mutex::new(0), loom::sync::Condvar::new()));
            let program = thread::spawn({
                let (waits, windows, bell) = (Arc::clone(&waits), Arc::clone(&windows), Arc::clone(&bell));
                move || {
                    for w in order {
                        windows[w].store(POLL_NOTHING, Ordering::Release);
                        if wake_if_wanted(&*waits, w as u32) {
                            *bell.0.lock().expect("sound") += 1;
                            bell.1.notify_one();
                        }
                    }
                }
            });
            for w in [1, 0] {
                let back = || windows[w].load(Ordering::Acquire) == POLL_NOTHING;
                while !back() && announce(&*waits, only(w as u32), back) {
                    let mut count = bell.0.lock().expect("sound");
                    while *count == 0 {
                        count = bell.1.wait(count).expect("sound");
                    }
                    *count = 0;
                }
            }
            program.join().expect("ended");
        });
    }
}

/// The test can fail: without looking again before sleeping, loom finds the lost wake-up.
#[test]
fn not_looking_again_loses_a_wake_up() {
    thread_local!(static QUIET: RefCell<bool> = const { RefCell::new(false) });
    QUIET.with(|q| *q.borrow_mut() = true);
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !QUIET.with(|q| *q.borrow()) {
            former(info);
        }
    }));
    let lost = std::panic::catch_unwind(|| {
        model(|| {
            let shared = Shared::new();
            let daemon = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.publish(POLL_DATA)
            });
            if shared.poll_value.load(Ordering::Acquire) == POLL_NOTHING {
                shared.program_sleeps.set(1);
                let mut count = shared.ready.lock().expect("sound");
                while *count == 0 {
                    count = shared.ready_bell.wait(count).expect("sound");
                }
            }
            daemon.join().expect("ended");
        });
    });
    assert!(lost.is_err());
}
