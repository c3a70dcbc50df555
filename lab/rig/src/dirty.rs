//! Whether the dirty log tells the truth. Each byte that the device changed must lie in a page that
//! was noted, and each page that was noted must have been written.
//!
//! What the device may write is filled with a byte that it never writes. So everything it does
//! write is seen.

use std::collections::BTreeSet;

use zerowire_guest::{DirtyLog, GuestAddr, GuestMemory, LOG_PAGE, QueueSetup, VhostUser};

/// No frame or packet of these tests has this byte.
pub const UNTOUCHED: u8 = 0x5c;

/// Bytes without [`UNTOUCHED`].
pub fn without_mark(mut bytes: Vec<u8>) -> Vec<u8> {
    for part in bytes.chunks_mut(32) {
        if part.contains(&UNTOUCHED) {
            part.iter_mut().filter(|b| **b == UNTOUCHED).for_each(|b| *b ^= 1);
        }
    }
    bytes
}

/// Numbers of the pages that `len` bytes at `addr` touch.
pub fn pages(addr: u64, len: u64) -> std::ops::Range<u64> {
    addr / LOG_PAGE..(addr + len).div_ceil(LOG_PAGE)
}

/// Ranges of guest memory that a device writes, as they were.
pub struct Watch {
    ranges: Vec<(u64, Vec<u8>)>,
    /// Pages that may have been written with what was there already.
    unchanged: BTreeSet<u64>,
}

impl Watch {
    /// Fills these buffers, and the used elements of these rings, with [`UNTOUCHED`], and keeps
    /// what is there. Nothing of it may be in use.
    pub fn fresh(memory: &GuestMemory, rings: &[QueueSetup], buffers: &[(u64, u64)]) -> Self {
        for ring in rings {
            view(memory, ring.used.guest.0 + 4, 8 * u64::from(ring.size)).fill(UNTOUCHED);
        }
        let mut watch = Self::new(memory, rings, buffers);
        // Flags and event index may be written again as they are.
        let events = |r: &QueueSetup| {
            let at = r.used.guest.0;
            pages(at, 2).chain(pages(at + 4 + 8 * u64::from(r.size), 2))
        };
        watch.unchanged = rings.iter().flat_map(events).collect();
        watch
    }

    /// Fills these buffers with [`UNTOUCHED`] and keeps what is there and in the rings. Used
    /// elements may be written again as they are.
    pub fn new(memory: &GuestMemory, rings: &[QueueSetup], buffers: &[(u64, u64)]) -> Self {
        let mut watch = Self { ranges: Vec::new(), unchanged: BTreeSet::new() };
        for &(addr, len) in buffers {
            view(memory, addr, len).fill(UNTOUCHED);
            watch.ranges.push((addr, view(memory, addr, len).to_vec()));
        }
        for ring in rings {
            let (at, len) = (ring.used.guest.0, 6 + 8 * u64::from(ring.size));
            watch.ranges.push((at, view(memory, at, len).to_vec()));
            watch.unchanged.extend(pages(at, len));
        }
        watch
    }

    /// Checks what was noted since, while the device does nothing.
    /// Returns how many pages were written.
    pub fn check(&self, memory: &GuestMemory, noted: &BTreeSet<u64>, what: &str) -> usize {
        let mut changed = BTreeSet::new();
        for (addr, before) in &self.ranges {
            let now = view(memory, *addr, before.len() as u64).to_vec();
            for page in pages(*addr, now.len() as u64) {
                let in_range = |at: u64| at.saturating_sub(*addr).min(now.len() as u64) as usize;
                let part = in_range(page * LOG_PAGE)..in_range((page + 1) * LOG_PAGE);
                if before[part.clone()] != now[part] {
                    changed.insert(page);
                }
            }
        }
        let missing: Vec<_> = changed.difference(noted).collect();
        assert!(missing.is_empty(), "{what}: pages {missing:x?} were written and not noted");
        let extra: Vec<_> = noted.difference(&changed).filter(|p| !self.unchanged.contains(p)).collect();
        assert!(extra.is_empty(), "{what}: pages {extra:x?} were noted and not written");
        changed.len()
    }
}

/// A [`Watch`] on a running device, and the log that it was given.
pub struct Migration {
    /// The log.
    pub log: DirtyLog,
    watch: Watch,
}

impl Migration {
    /// Has the device behind `front` note its writes to these rings and buffers from now on. It
    /// must be at rest.
    pub fn start(
        front: &mut VhostUser,
        memory: &GuestMemory,
        rings: &[QueueSetup],
        buffers: &[(u64, u64)],
    ) -> Self {
        let watch = Watch::new(memory, rings, buffers);
        let log = front.start_log().unwrap_or_else(|e| panic!("{e}"));
        // What is in the log that this one takes the place of has gone over.
        drop(log.take());
        Self { log, watch }
    }

    /// Checks the log. The device must be at rest: its queues have stopped.
    pub fn check(&self, memory: &GuestMemory, what: &str) {
        let pages = self.watch.check(memory, &self.log.take(), what);
        assert!(pages > 0, "{what}: nothing was written at all");
    }
}

fn view(memory: &GuestMemory, addr: u64, len: u64) -> zerowire_guest::GuestSlice {
    memory.at(GuestAddr(addr), len as usize).unwrap_or_else(|e| panic!("{e}"))
}
