//! A guest whose whole memory is known, byte for byte: what the device writes beyond what it may is
//! seen.
//!
//! Its functions panic where the device or the memory is not what a test expects.

use std::time::{Duration, Instant};

use super::{RawDesc, RawQueue};
use crate::ring::DESC_WRITE;
use crate::{GuestAddr, GuestMemory, Transport, VhostUser, features as f};

/// Two regions that touch, and one apart.
pub const REGIONS: [(u64, usize); 3] = [(0, 1 << 20), (1 << 20, 1 << 20), (1 << 32, 1 << 20)];

/// Below it the rings lie, which nobody compares.
pub const DATA: u64 = 0x4_0000;

/// Entries of the ring.
pub const SIZE: u16 = 64;

/// The guest, with a receive queue without rules.
pub struct Patterned {
    /// Its receive queue.
    pub rx: RawQueue,
    /// Its connection.
    pub transport: VhostUser,
    /// Its memory.
    pub memory: GuestMemory,
    /// What the memory holds if the device does as it should.
    shadow: Vec<(u64, Vec<u8>)>,
    desc: u16,
    /// Used entries that were seen.
    pub seen: u16,
}

impl Patterned {
    /// Starts on a new connection, in memory that nothing else uses, with these features beside
    /// VERSION_1.
    pub fn over(mut transport: VhostUser, memory: GuestMemory, features: u64) -> Self {
        let mut state = 1_234_567u64;
        let mut shadow = Vec::new();
        for (at, len) in memory.regions().iter().map(|r| (r.guest_addr().0, r.len())) {
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            memory.at(GuestAddr(at), len).unwrap_or_else(|e| panic!("{e}")).write(0, &bytes);
            shadow.push((at, bytes));
        }
        let offered = transport.device_features().unwrap_or_else(|e| panic!("{e}"));
        let acked = offered & (f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES | features);
        transport.negotiate(acked).unwrap_or_else(|e| panic!("{e}"));
        transport.share_memory(&memory).unwrap_or_else(|e| panic!("{e}"));
        let rx = RawQueue::start(&memory, &mut transport, 0, SIZE).unwrap_or_else(|e| panic!("{e}"));
        transport.driver_ok().unwrap_or_else(|e| panic!("{e}"));
        Self { rx, transport, memory, shadow, desc: 0, seen: 0 }
    }

    /// Offers a chain of these places (address, bytes). Returns its head.
    pub fn post(&mut self, places: &[(u64, u32)]) -> u16 {
        let chain: Vec<_> =
            places.iter().map(|&(addr, len)| RawDesc { addr, len, flags: DESC_WRITE, next: 0 }).collect();
        if usize::from(self.desc) + chain.len() > usize::from(SIZE) {
            self.desc = 0;
        }
        let head = self.desc;
        self.rx.write_chain(head, &chain);
        self.desc += chain.len() as u16;
        self.rx.offer(head);
        self.rx.kick().unwrap_or_else(|e| panic!("{e}"));
        head
    }

    /// The next used entry (head, bytes); None where none comes soon.
    pub fn used(&mut self, patience: Duration) -> Option<(u16, u32)> {
        let start = Instant::now();
        // Several may come at once.
        while self.rx.ring().used_idx() == self.seen {
            if start.elapsed() >= patience {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let (id, len) = self.rx.ring().used_entry(self.seen);
        self.seen = self.seen.wrapping_add(1);
        Some((id as u16, len))
    }

    /// Notes that the device may have put `bytes` into these places.
    pub fn expect_in(&mut self, places: &[(u64, u32)], bytes: &[u8]) {
        let mut rest = bytes;
        for &(addr, len) in places {
            let n = rest.len().min(len as usize);
            for (at, byte) in (addr..).zip(&rest[..n]) {
                let place = self
                    .shadow
                    .iter_mut()
                    .find_map(|(start, held)| held.get_mut(usize::try_from(at.checked_sub(*start)?).ok()?));
                *place.expect("a place in memory") = *byte;
            }
            rest = &rest[n..];
        }
        assert!(rest.is_empty(), "more bytes than places");
    }

    /// Compares all memory but that of the rings; the text names the first byte that is wrong.
    pub fn check(&self, what: &str) {
        for (start, held) in &self.shadow {
            let skip = DATA.saturating_sub(*start).min(held.len() as u64) as usize;
            let memory = self.memory.at(GuestAddr(*start), held.len()).unwrap_or_else(|e| panic!("{e}"));
            let now = memory.to_vec();
            if now[skip..] != held[skip..] {
                let at = (skip..held.len()).find(|i| now[*i] != held[*i]).unwrap_or(0);
                let n = (at..held.len()).filter(|i| now[*i] != held[*i]).count();
                panic!("{what}: {n} bytes differ, the first at {:#x}", start + at as u64);
            }
        }
    }
}
