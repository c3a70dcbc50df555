//! Memory that changes while a device looks at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::GuestSlice;

/// A thread that writes one and the other of two contents to guest memory,
/// again and again, until it is dropped: against double fetches.
#[derive(Debug)]
pub struct Toggler {
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Toggler {
    /// Starts writing `contents` in turn to the begin of `memory`. The slice
    /// keeps the memory allocated as long as the thread runs.
    ///
    /// # Panics
    /// When one of them is longer than `memory`.
    pub fn start(memory: GuestSlice, contents: [Vec<u8>; 2]) -> Toggler {
        assert!(contents.iter().all(|bytes| bytes.len() <= memory.len()));
        let (stop, writes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&writes));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for bytes in &contents {
                    memory.write(0, bytes);
                }
                count.fetch_add(2, Ordering::Relaxed);
            }
        });
        Toggler { stop, writes, thread: Some(thread) }
    }

    /// How often the memory was written so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}

impl Drop for Toggler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
