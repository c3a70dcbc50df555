//! A driver that keeps an in-flight region, for tests: it sees what comes back, and how it is
//! marked.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;

use super::region::Place;
use super::{InflightRegion, Recovered, Tracker};
use crate::memory::{GuestMemory, RegionConfig};
use crate::ring::{RingAddresses, SplitRing, UsedOrder};

/// Entries of the ring.
pub const SIZE: u16 = 8;
/// Offset of the descriptor table.
pub const DESC: u64 = 0;
/// Offset of the available ring.
pub const AVAIL: u64 = 0x1000;
/// Offset of the used ring.
pub const USED: u64 = 0x2000;
const BUFFER: u64 = 0x3000;
/// What the front end calls the guest's first byte.
const USER: u64 = 0x7000_0000;

/// A driver, and the memory that it shares with the device.
pub struct Driver {
    file: std::fs::File,
    /// The memory, as the device maps it.
    pub memory: GuestMemory,
    /// Where chains in flight are marked.
    pub region: Arc<InflightRegion>,
    avail: u16,
    used: u16,
    /// Heads that the device has, and whether their frames were handed on.
    pub out: BTreeMap<u16, bool>,
    /// In which order chains come back.
    pub order: UsedOrder,
    /// The same heads in the order in which they became available.
    line: VecDeque<u16>,
}

impl Driver {
    /// Its ring has come as far as `from`.
    pub fn new(from: u16) -> Self {
        let file = std::fs::File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(0x4000).unwrap();
        let region = RegionConfig {
            guest_addr: 0,
            len: 0x4000,
            user_addr: USER,
            offset: 0,
            file: file.try_clone().unwrap().into(),
        };
        let driver = Self {
            memory: GuestMemory::new(vec![region]).unwrap(),
            region: Arc::new(InflightRegion::create(2, SIZE).unwrap().0),
            avail: from,
            used: from,
            out: BTreeMap::new(),
            order: UsedOrder::Any,
            line: VecDeque::new(),
            file,
        };
        driver.put(AVAIL + 2, from);
        driver.put(USED + 2, from);
        driver
    }

    /// Writes a number at this offset.
    pub fn put(&self, at: u64, value: u16) {
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    /// Reads the number at this offset.
    pub fn get(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// The chain that begins with this head is `len` bytes of zeros.
    pub fn describe(&self, head: u16, len: u32) {
        let at = DESC + 16 * u64::from(head);
        self.file.write_all_at(&BUFFER.to_le_bytes(), at).unwrap();
        self.file.write_all_at(&u64::from(len).to_le_bytes(), at + 8).unwrap();
    }

    /// Whether the frame of this head may have been sent.
    pub fn is_handed_on(&self, head: u16) -> bool {
        self.place().handed_on(head).load(Ordering::Acquire) != 0
    }

    /// Makes a head available, if one is free: the `pick`th.
    pub fn add(&mut self, pick: usize) {
        let free: Vec<u16> = (0..SIZE).filter(|h| !self.out.contains_key(h)).collect();
        let Some(head) = free.get(pick % free.len().max(1)) else { return };
        self.put(AVAIL + 4 + 2 * u64::from(self.avail % SIZE), *head);
        self.avail = self.avail.wrapping_add(1);
        self.put(AVAIL + 2, self.avail);
        self.out.insert(*head, false);
        self.line.push_back(*head);
    }

    /// Takes what was used.
    pub fn reap(&mut self) {
        match self.order {
            UsedOrder::Any => self.reap_any(),
            UsedOrder::Each | UsedOrder::Batch => self.reap_in_order(),
        }
    }

    /// As a driver that negotiated IN_ORDER: an element may stand for those before it, too.
    fn reap_in_order(&mut self) {
        let used = self.get(USED + 2);
        while self.used != used {
            let last = self.get(USED + 4 + 8 * u64::from(self.used % SIZE));
            loop {
                assert_ne!(self.used, used, "head {last} is none of those that are used");
                let head = self.line.pop_front().expect("one that is out");
                self.out.remove(&head);
                self.used = self.used.wrapping_add(1);
                if head == last {
                    break;
                }
            }
        }
    }

    fn reap_any(&mut self) {
        while self.used != self.get(USED + 2) {
            let head = self.get(USED + 4 + 8 * u64::from(self.used % SIZE));
            assert!(self.out.remove(&head).is_some(), "head {head} came back and was not out");
            self.used = self.used.wrapping_add(1);
        }
    }

    /// The device's side of the ring, which goes on at this index.
    pub fn ring(&self, base: u16) -> SplitRing {
        let at = RingAddresses { desc: USER + DESC, avail: USER + AVAIL, used: USER + USED };
        let mut ring = SplitRing::new(1, SIZE, at, base, false, &self.memory).unwrap();
        ring.set_order(self.order);
        ring
    }

    /// The marks of the ring.
    pub fn tracker(&self) -> Box<Tracker> {
        Box::new(Tracker::new(&self.region, 1).unwrap())
    }

    /// A device process; the front end says that it goes on at the used index.
    pub fn device(&self) -> (SplitRing, Recovered) {
        let mut ring = self.ring(self.get(USED + 2));
        let recovered = ring.track(self.tracker()).unwrap();
        (ring, recovered)
    }

    /// Why a device would not start.
    pub fn refusal(&self) -> String {
        self.ring(self.get(USED + 2)).track(self.tracker()).unwrap_err()
    }

    pub(super) fn place(&self) -> Place {
        Place::new(&self.region, 1).unwrap()
    }
}
