//! A small device for the tests: one split queue as the device sees it, and a
//! vhost-user back end that echoes frames. Slow and plain on purpose.

pub mod backend;
pub mod vsock;

use zerowire_guest::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, crossed};
use zerowire_guest::{GuestAddr, GuestMemory, QueueSetup};

/// A buffer as the device sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub addr: u64,
    pub len: u32,
    pub writable: bool,
}

/// A chain taken from the available ring.
#[derive(Clone, Debug)]
pub struct Chain {
    pub head: u16,
    pub pieces: Vec<Piece>,
    pub indirect: bool,
}

impl Chain {
    pub fn readable(&self, memory: &GuestMemory) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.pieces.iter().filter(|p| !p.writable) {
            let slice = memory.at(GuestAddr(piece.addr), piece.len as usize).unwrap();
            slice.append_to(0, slice.len(), &mut bytes);
        }
        bytes
    }

    pub fn capacity(&self) -> usize {
        let writable = self.pieces.iter().filter(|p| p.writable);
        writable.map(|p| p.len as usize).sum()
    }

    /// Writes as much as fits; returns how much.
    pub fn write(&self, memory: &GuestMemory, mut bytes: &[u8]) -> usize {
        let before = bytes.len();
        for piece in self.pieces.iter().filter(|p| p.writable) {
            let now = bytes.len().min(piece.len as usize);
            let slice = memory.at(GuestAddr(piece.addr), now).unwrap();
            slice.write(0, &bytes[..now]);
            bytes = &bytes[now..];
        }
        before - bytes.len()
    }
}

/// The device's side of one queue.
#[derive(Debug)]
pub struct Device {
    pub memory: GuestMemory,
    pub setup: QueueSetup,
    pub event_idx: bool,
    /// One used element stands for all chains that are published together.
    pub batches: bool,
    pub next_avail: u16,
    pub used: u16,
    /// Used index at the last decision about an interrupt.
    signalled: u16,
}

impl Device {
    pub fn new(memory: &GuestMemory, setup: QueueSetup, event_idx: bool) -> Device {
        let mut device = Device {
            memory: memory.clone(),
            event_idx,
            batches: false,
            next_avail: setup.next_avail,
            used: 0,
            signalled: 0,
            setup,
        };
        device.used = device.read_u16(setup.used.guest.0 + 2);
        device.signalled = device.used;
        device
    }

    fn read_u16(&self, addr: u64) -> u16 {
        self.memory.at(GuestAddr(addr), 2).unwrap().read_int(0)
    }

    fn write_u16(&self, addr: u64, value: u16) {
        self.memory.at(GuestAddr(addr), 2).unwrap().write_int(0, value);
    }

    fn read_desc(&self, addr: u64) -> (u64, u32, u16, u16) {
        let desc = self.memory.at(GuestAddr(addr), 16).unwrap();
        (desc.read_int(0), desc.read_int(8), desc.read_int(12), desc.read_int(14))
    }

    pub fn pop(&mut self) -> Option<Chain> {
        let avail = self.setup.avail.guest.0;
        if self.read_u16(avail + 2) == self.next_avail {
            return None;
        }
        let slot = u64::from(self.next_avail % self.setup.size);
        let head = self.read_u16(avail + 4 + 2 * slot);
        self.next_avail = self.next_avail.wrapping_add(1);
        let (mut table, mut count) = (self.setup.desc.guest.0, self.setup.size);
        let mut chain = Chain { head, pieces: Vec::new(), indirect: false };
        let mut index = head;
        loop {
            assert!(index < count, "descriptor {index} of {count}");
            let (addr, len, flags, next) = self.read_desc(table + 16 * u64::from(index));
            if flags & DESC_INDIRECT != 0 {
                assert!(!chain.indirect && flags == DESC_INDIRECT && len % 16 == 0 && len > 0);
                chain.indirect = true;
                (table, count, index) = (addr, (len / 16) as u16, 0);
                continue;
            }
            let writable = flags & DESC_WRITE != 0;
            chain.pieces.push(Piece { addr, len, writable });
            assert!(chain.pieces.len() <= usize::from(count), "a loop");
            if flags & DESC_NEXT == 0 {
                return Some(chain);
            }
            index = next;
        }
    }

    /// Asks for a notification at the next chain; true when one is there
    /// already.
    pub fn arm(&mut self) -> bool {
        let used = self.setup.used.guest.0;
        if self.event_idx {
            self.write_u16(used + 4 + 8 * u64::from(self.setup.size), self.next_avail);
        } else {
            self.write_u16(used, 0);
        }
        self.read_u16(self.setup.avail.guest.0 + 2) != self.next_avail
    }

    pub fn disarm(&mut self) {
        let used = self.setup.used.guest.0;
        if self.event_idx {
            let far = self.next_avail.wrapping_sub(1);
            self.write_u16(used + 4 + 8 * u64::from(self.setup.size), far);
        } else {
            self.write_u16(used, 1);
        }
    }

    pub fn push(&mut self, id: u32, len: u32) {
        let used = self.setup.used.guest.0;
        let at = if self.batches { self.signalled } else { self.used };
        let slot = u64::from(at % self.setup.size);
        let entry = self.memory.at(GuestAddr(used + 4 + 8 * slot), 8).unwrap();
        entry.write_int(0, id);
        entry.write_int(4, len);
        self.used = self.used.wrapping_add(1);
    }

    /// Stores the used index; whether the driver wants an interrupt.
    pub fn publish(&mut self) -> bool {
        self.write_u16(self.setup.used.guest.0 + 2, self.used);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let old = std::mem::replace(&mut self.signalled, self.used);
        let avail = self.setup.avail.guest.0;
        if self.event_idx {
            let event = self.read_u16(avail + 4 + 2 * u64::from(self.setup.size));
            crossed(event, self.used, old)
        } else {
            self.used != old && self.read_u16(avail) & 1 == 0
        }
    }
}
