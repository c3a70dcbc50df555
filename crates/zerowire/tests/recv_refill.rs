//! `recv::refill` in every order that the memory model allows (checked by loom).

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::sync::atomic::Ordering;
use zerowire::recv::testing::{Back, Returns, Word};

#[derive(Debug)]
struct Loom(AtomicU32);

impl Word for Loom {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
    fn fetch_add(&self, more: u32, order: Ordering) -> u32 {
        self.0.fetch_add(more, order)
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
    fn compare_exchange_weak(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange_weak(now, new, ok, err)
    }
    fn compare_exchange(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(now, new, ok, err)
    }
}

/// The list, one word of payload a slot, and the eventfd's counter.
struct Shared {
    returns: Returns<Loom>,
    payload: [UnsafeCell<u32>; 2],
    bell: Mutex<u32>,
    rung: Condvar,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            returns: Returns::new(2),
            payload: [UnsafeCell::new(0), UnsafeCell::new(0)],
            bell: Mutex::new(0),
            rung: Condvar::new(),
        })
    }

    /// What a program does with a lease.
    fn read_and_drop(&self, slot: u32) {
        // SAFETY: the lease is this thread's; loom fails if the receiver writes at the same time.
        self.payload[slot as usize].with(|p| unsafe { *p });
        if let Back::Wake(()) = self.returns.push(slot, || ()) {
            *self.bell.lock().expect("sound") += 1;
            self.rung.notify_one();
        }
    }

    /// Takes what is back, and writes it as the kernel would.
    fn refill(&self, back: &mut Vec<u32>) {
        self.returns.take(|slot| {
            // SAFETY: the slot is back; loom fails if its holder still reads.
            self.payload[slot as usize].with_mut(|p| unsafe { *p += 1 });
            back.push(slot);
        });
    }

    /// As a back end waits for buffers. A lost wake-up is a deadlock, which loom reports.
    fn wait(&self) {
        if !self.returns.sleep() {
            return;
        }
        let mut count = self.bell.lock().expect("sound");
        while *count == 0 {
            count = self.rung.wait(count).expect("sound");
        }
        *count = 0;
        drop(count);
        self.returns.awake();
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn two_threads_give_back_and_a_sleeping_receiver_wakes() {
    model(|| {
        let shared = Shared::new();
        let threads: Vec<_> = (0..2)
            .map(|slot| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.read_and_drop(slot))
            })
            .collect();
        let mut back = Vec::new();
        while back.len() < 2 {
            shared.refill(&mut back);
            if back.len() < 2 {
                shared.wait();
            }
        }
        back.sort_unstable();
        assert_eq!(back, [0, 1]);
        threads.into_iter().for_each(|t| t.join().expect("ended"));
    });
}

/// A slot that is lent again at once comes back again, while another one comes back beside it.
#[test]
fn a_slot_goes_round() {
    model(|| {
        let shared = Shared::new();
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.read_and_drop(0)
        });
        let mut back = Vec::new();
        shared.read_and_drop(1);
        while back.is_empty() {
            shared.refill(&mut back);
        }
        let again = back.pop().expect("not empty");
        let second = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.read_and_drop(again)
        });
        while back.len() < 2 {
            shared.refill(&mut back);
            if back.len() < 2 {
                shared.wait();
            }
        }
        back.sort_unstable();
        assert_eq!(back, [0, 1]);
        other.join().expect("ended");
        second.join().expect("ended");
    });
}

/// The receiver goes while two leases come back: the memory is freed once, after all that was done
/// with it.
#[test]
fn the_memory_is_freed_once_and_last() {
    model(|| {
        let shared = Shared::new();
        let freed = Arc::new(UnsafeCell::new(0));
        // SAFETY: loom fails if two free at once, or one reads a payload after that.
        let free = |shared: &Shared, freed: &UnsafeCell<u32>| unsafe {
            shared.payload.iter().for_each(|p| p.with_mut(|p| *p = 9));
            freed.with_mut(|f| *f += 1);
        };
        let threads: Vec<_> = (0..2u32)
            .map(|slot| {
                let (shared, freed) = (Arc::clone(&shared), Arc::clone(&freed));
                thread::spawn(move || {
                    // SAFETY: the lease is this thread's.
                    shared.payload[slot as usize].with(|p| unsafe { assert_ne!(*p, 9) });
                    if shared.returns.push(slot, || ()) == Back::Last {
                        free(&shared, &freed);
                    }
                })
            })
            .collect();
        let mut left = false;
        let is_ours = shared.returns.close(2, || left = true);
        if !left || is_ours {
            free(&shared, &freed);
        }
        threads.into_iter().for_each(|t| t.join().expect("ended"));
        // SAFETY: the threads have ended.
        assert_eq!(freed.with(|f| unsafe { *f }), 1);
    });
}

/// A word whose exchanges order nothing.
#[derive(Debug)]
struct Unordered(AtomicU32);

impl Word for Unordered {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
    fn load(&self, _: Ordering) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u32, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
    fn fetch_add(&self, more: u32, _: Ordering) -> u32 {
        self.0.fetch_add(more, Ordering::Relaxed)
    }
    fn swap(&self, value: u32, _: Ordering) -> u32 {
        self.0.swap(value, Ordering::Relaxed)
    }
    fn compare_exchange_weak(&self, now: u32, new: u32, _: Ordering, _: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange_weak(now, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn compare_exchange(&self, now: u32, new: u32, _: Ordering, _: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(now, new, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// The tests can fail: with exchanges that order nothing, loom finds a buffer that is written while
/// it is read.
#[test]
fn without_ordering_a_buffer_is_written_under_its_reader() {
    thread_local!(static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    QUIET.with(|q| q.set(true));
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !QUIET.with(std::cell::Cell::get) {
            former(info);
        }
    }));
    let race = std::panic::catch_unwind(|| {
        model(|| {
            let shared = Arc::new((Returns::<Unordered>::new(1), UnsafeCell::new(0u32)));
            let holder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    // SAFETY: loom fails if the receiver writes at the same time, which this test
                    // is about.
                    shared.1.with(|p| unsafe { *p });
                    let _ = shared.0.push(0, || ());
                }
            });
            let write = |_| {
                // SAFETY: as above.
                shared.1.with_mut(|p| unsafe { *p = 1 });
            };
            while shared.0.take(write) == 0 {
                thread::yield_now();
            }
            holder.join().expect("ended");
        });
    });
    assert!(race.is_err());
}
