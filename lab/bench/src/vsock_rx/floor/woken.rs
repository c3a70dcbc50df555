//! The floors of whoever sleeps: the same copy and the same look, as many bytes at a time as the
//! credit has. Two threads wake each other by an eventfd and nothing else.
//!
//! A third thread on the guest's CPU spins until the bytes were looked at. Then it wakes the one
//! that copies, as a guest does that gets credit. All CPU time of the other two counts: waking,
//! going to sleep, and the caches that are cold after it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::event::{EventfdFlags, eventfd};

use super::{RxFloor, fill, sample};
use crate::cpu::{Placement, thread_time};
use crate::vsock_rx::tally::touch;
use crate::vsock_rx::variant::RxSample;

/// Wakes a thread that sleeps in a read.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    fn ring(&self) -> Result<()> {
        rustix::io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        rustix::io::read(&self.0, &mut [0; 8])?;
        Ok(())
    }
}

/// What the three share.
struct Relay {
    copy: Bell,
    look: Bell,
    /// Portions that were looked at.
    looked: AtomicU64,
    failed: AtomicBool,
}

impl Relay {
    fn new() -> Result<Self> {
        Ok(Self {
            copy: Bell::new()?,
            look: Bell::new()?,
            looked: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Wakes the copying thread for each portion, once the one before was read.
    fn drive(&self, portions: u64, placement: &Placement) -> Result<()> {
        self.keep(|| {
            placement.pin_driver()?;
            for portion in 0..portions {
                self.copy.ring()?;
                while self.looked.load(Ordering::Acquire) <= portion {
                    self.goes_on()?;
                    std::hint::spin_loop();
                }
            }
            Ok(())
        })
    }

    /// Ends all three if the work of one fails.
    fn keep<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = work();
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
            // If this fails as well, there is nobody left to be told.
            let _ = (self.copy.ring(), self.look.ring());
        }
        result
    }

    fn goes_on(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            true => Err(anyhow!("another thread of the floor failed")),
            false => Ok(()),
        }
    }
}

impl RxFloor {
    /// Moves `bytes` bytes so; without `copying` the thread in the middle only passes the word on.
    pub(super) fn woken(&mut self, bytes: u64, copying: bool) -> Result<RxSample> {
        let chain = Relay::new()?;
        let (chain, len, source) = (&chain, self.case.len, self.source.bytes());
        let windows = (self.credit / len).clamp(1, self.case.windows as usize);
        let portions = bytes.div_ceil((windows * len) as u64);
        let (walk, placement, begin) = (self.walk, &self.placement, Instant::now());
        let ring = Mutex::new(self.ring.bytes_mut());
        let (copied, looked) = std::thread::scope(|scope| {
            let copier = scope.spawn(|| {
                chain.keep(|| {
                    placement.pin_worker()?;
                    let (mut walk, mut at, before) = (walk, 0, thread_time());
                    for _ in 0..portions {
                        chain.copy.wait()?;
                        chain.goes_on()?;
                        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                        for _ in 0..if copying { windows } else { 0 } {
                            fill(&mut ring[at..at + len], source, &mut walk);
                            at = if at + 2 * len > ring.len() { 0 } else { at + len };
                        }
                        drop(ring);
                        chain.look.ring()?;
                    }
                    Ok(thread_time() - before)
                })
            });
            scope.spawn(|| chain.drive(portions, placement));
            let looked = chain.keep(|| {
                let (mut walk, mut at, before) = (walk, 0, thread_time());
                for _ in 0..portions {
                    chain.look.wait()?;
                    chain.goes_on()?;
                    let ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                    for _ in 0..windows {
                        if copying {
                            touch(&ring[at..at + len]);
                            at = if at + 2 * len > ring.len() { 0 } else { at + len };
                        } else {
                            let range = walk.next(len, source.len());
                            touch(&source[range.clone()]);
                            walk.advance(range.len());
                        }
                    }
                    drop(ring);
                    chain.looked.fetch_add(1, Ordering::Release);
                }
                Ok(thread_time() - before)
            });
            let copied = copier.join().map_err(|_| anyhow!("the floor's thread panicked"))?;
            Ok::<(Duration, Duration), anyhow::Error>((copied?, looked?))
        })?;
        let moved = portions * (windows * len) as u64;
        Ok(RxSample {
            wake_ups: portions,
            ..sample(moved, portions * windows as u64, begin.elapsed(), copied, looked)
        })
    }
}
