//! What the writer's thread shares with workers and control threads.
//!
//! The thread sleeps in one of two ways. *Paused*, for a moment after it has written, so that a
//! stream of packets costs their workers no wake-up unless a ring fills up. *Parked*, once nothing
//! came: the next packet wakes it.
//!
//! A wake-up is never missed. The thread says that it is parked and then looks at the rings. A
//! worker publishes and then looks whether the thread is parked. A fence stands between both steps
//! on both sides, so at least one of them sees what the other has done.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zerowire_wire::pcapng::InterfaceCounts;

use crate::queue::Drain;

/// How long the thread sleeps after it has written.
const PAUSE: Duration = Duration::from_millis(5);

/// The thread looks at the rings, or will.
const AWAKE: u8 = 0;
/// It will look at them within [`PAUSE`].
const PAUSED: u8 = 1;
/// It looks at them when it is woken.
const PARKED: u8 = 2;

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64)
}

/// An interface, for all that know of it. The writer learns of it before it learns of its rings.
#[derive(Debug)]
pub(crate) struct InterfaceState {
    pub link: u16,
    pub name: String,
    pub description: String,
    pub captured: AtomicU64,
    pub lost: AtomicU64,
    /// Its number in the present file, which describes it before its first packet. The writer's.
    pub number: AtomicU32,
}

impl InterfaceState {
    pub fn counts(&self) -> InterfaceCounts {
        InterfaceCounts {
            captured: self.captured.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// What is new to the writer.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub interfaces: Vec<Arc<InterfaceState>>,
    pub drains: Vec<Drain>,
}

/// One for each capture.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Bytes of a packet that go into a ring at most.
    pub copied_bytes: u32,
    thread: OnceLock<Thread>,
    state: AtomicU8,
    stop: AtomicBool,
    ended: AtomicBool,
    fresh: AtomicBool,
    arrivals: Mutex<Arrivals>,
}

impl Shared {
    pub fn new(copied_bytes: u32) -> Self {
        Self {
            copied_bytes,
            thread: OnceLock::new(),
            state: AtomicU8::new(AWAKE),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
            arrivals: Mutex::default(),
        }
    }

    /// This thread writes.
    pub fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// A worker has published; `half`: its ring is more than half full.
    #[inline]
    pub fn published(&self, half: bool) {
        fence(Ordering::SeqCst);
        match self.state.load(Ordering::Relaxed) {
            PARKED => self.wake(),
            PAUSED if half => self.wake(),
            _ => {}
        }
    }

    #[cold]
    fn wake(&self) {
        if self.state.swap(AWAKE, Ordering::Relaxed) != AWAKE {
            self.unpark();
        }
    }

    /// The writer sleeps. After it has written it wakes up by itself. Otherwise it sleeps on unless
    /// `has_more` says that something came meanwhile.
    pub fn rest(&self, wrote: bool, has_more: impl FnOnce() -> bool) {
        self.state.store(if wrote { PAUSED } else { PARKED }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if wrote {
            std::thread::park_timeout(PAUSE);
        } else if !has_more() {
            std::thread::park();
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Asks the writer to write what is there, and to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.unpark();
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The writer has ended: packets are only counted. Returns what it has not taken in.
    ///
    /// A worker publishes and then looks whether that is so. Who comes later counts the packets.
    pub fn end(&self) -> Arrivals {
        self.ended.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        std::mem::take(&mut *self.arrivals())
    }

    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the writer of something new, unless it has ended.
    pub fn arrive(&self, add: impl FnOnce(&mut Arrivals)) {
        let mut arrivals = self.arrivals();
        if self.has_ended() {
            return;
        }
        add(&mut arrivals);
        drop(arrivals);
        self.fresh.store(true, Ordering::Release);
        self.unpark();
    }

    /// Whether something is new.
    pub fn has_arrivals(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// What is new.
    pub fn take_arrivals(&self) -> Arrivals {
        match self.fresh.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut *self.arrivals()),
            false => Arrivals::default(),
        }
    }
}
