//! A guest's side of both rings, in memory of its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use zerowire_vhost::memory::{GuestMemory, RegionConfig, access};
use zerowire_vhost::ring::RingAddresses;

use super::super::{RX_QUEUE, TX_QUEUE};

/// Entries of each ring.
pub const RING_SIZE: u16 = 64;

/// Chains of a ring: each has four descriptors and [`SLOT_BYTES`] of memory of its own.
pub const SLOTS: u16 = RING_SIZE / 4;

/// Bytes of a chain at most.
pub const SLOT_BYTES: usize = 0x4000;

/// Pieces of a chain at most, through an indirect table.
const MAX_PIECES: usize = 8;

/// Guest-physical address of the memory.
pub const BASE: u64 = 0x1000_0000;
const USER_BASE: u64 = 0x7000_0000_0000;
const BYTES: u64 = 0x10_0000;
/// The memory is two regions, one behind the other, with the bound inside a transmit buffer.
const BOUND: u64 = 0x5_2000;
const RINGS: u64 = 0x1000;
const RING_BYTES: u64 = 0x1000;
const TABLES: u64 = 0x8000;
const SLOTS_AT: u64 = 0x1_0000;

struct Ring {
    avail: u16,
    used: u16,
    /// Of each slot: the bytes of the chain that the device has.
    lent: [Option<u32>; SLOTS as usize],
    /// Of each slot: the descriptors that its chain takes.
    descriptors: [usize; SLOTS as usize],
    kick: OwnedFd,
    call: Arc<OwnedFd>,
    /// Chains may name each other's memory: what lies there means nothing.
    muddled: bool,
    /// Notifications of the device.
    kicks: u64,
}

/// The driver.
pub struct Guest {
    memory: Arc<GuestMemory>,
    rings: [Ring; 2],
    /// Whether it notifies the device only where the event index asks for it (EVENT_IDX).
    pub asked_only: bool,
}

/// How a chain is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Layout(pub u8);

impl Layout {
    /// Lengths of the pieces of `len` bytes; a header may lie across any of them.
    fn pieces(self, len: usize) -> Vec<usize> {
        let cuts: &[usize] = match self.0 & 7 {
            0 => &[],
            1 => &[44],
            2 => &[20, 44],
            3 => &[1, 43, 700],
            4 => &[44, 45],
            5 => &[1, 2, 3, 4, 5, 6, 7],
            6 => &[43, 44, 1000, 2000, 3000],
            _ => &[100, 200],
        };
        let mut at = 0;
        let mut pieces: Vec<usize> = Vec::new();
        for cut in cuts.iter().copied().take_while(|c| *c < len) {
            pieces.push(cut - at);
            at = cut;
        }
        pieces.push(len - at);
        pieces
    }

    /// Descriptors of the ring that `len` bytes take.
    pub fn descriptors(self, len: usize) -> usize {
        let pieces = self.pieces(len).len();
        if self.is_indirect(pieces) { 1 } else { pieces }
    }

    fn is_indirect(self, pieces: usize) -> bool {
        self.0 & 8 != 0 || pieces > 4
    }
}

impl Guest {
    /// With fresh memory and empty rings.
    pub fn new() -> std::io::Result<Self> {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, BYTES)?;
        let region = |start: u64, end: u64| -> std::io::Result<RegionConfig> {
            Ok(RegionConfig {
                guest_addr: BASE + start,
                len: end - start,
                user_addr: USER_BASE + start,
                offset: start,
                file: file.try_clone()?,
            })
        };
        let memory = GuestMemory::new(vec![region(0, BOUND)?, region(BOUND, BYTES)?])
            .map_err(std::io::Error::other)?;
        let ring = || -> std::io::Result<Ring> {
            let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Ok(Ring {
                avail: 0,
                used: 0,
                lent: [None; SLOTS as usize],
                descriptors: [0; SLOTS as usize],
                kick: bell()?,
                call: Arc::new(bell()?),
                muddled: false,
                kicks: 0,
            })
        };
        Ok(Self { memory: Arc::new(memory), rings: [ring()?, ring()?], asked_only: false })
    }

    /// Its memory.
    pub fn memory(&self) -> Arc<GuestMemory> {
        self.memory.clone()
    }

    /// What starts a ring: where it is, where it goes on, and its notifications.
    pub fn ring(&self, queue: u16) -> (RingAddresses, u16, OwnedFd) {
        let at = USER_BASE + ring_at(queue);
        let r = &self.rings[usize::from(queue)];
        let kick = r.kick.try_clone().unwrap_or_else(|e| panic!("{e}"));
        (RingAddresses { desc: at, avail: at + 0x400, used: at + 0x800 }, r.avail, kick)
    }

    /// What the device notifies the driver of a ring by.
    pub fn call(&self, queue: u16) -> Arc<OwnedFd> {
        self.rings[usize::from(queue)].call.clone()
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let mut list = Vec::with_capacity(4);
        assert!(self.memory.translate(BASE + at, bytes.len() as u32, &mut 0, &mut list), "{at:#x}");
        access::write(&list, 0, bytes);
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let mut list = Vec::with_capacity(4);
        assert!(self.memory.translate(BASE + at, bytes.len() as u32, &mut 0, &mut list), "{at:#x}");
        access::read(&list, 0, bytes);
    }

    /// Begins a ring anew, as a driver does after a reset: what was lent is its own again.
    pub fn reset(&mut self, queue: u16) {
        self.put(ring_at(queue), &[0; RING_BYTES as usize]);
        let r = &mut self.rings[usize::from(queue)];
        (r.avail, r.used, r.lent, r.muddled) = (0, 0, [None; SLOTS as usize], false);
    }

    /// Chains that the device has.
    pub fn lent(&self, queue: u16) -> usize {
        self.rings[usize::from(queue)].lent.iter().flatten().count()
    }

    /// Of these, the ones with fewer descriptors than a chain may have.
    pub fn lent_short(&self, queue: u16) -> usize {
        let r = &self.rings[usize::from(queue)];
        r.lent.iter().zip(r.descriptors).filter(|(lent, n)| lent.is_some() && *n < 4).count()
    }

    /// Transmits bytes as one chain, with room for `extra` more behind them. False where all chains
    /// are lent.
    pub fn send(&mut self, bytes: &[u8], extra: usize, layout: Layout) -> bool {
        let len = (bytes.len() + extra).clamp(1, SLOT_BYTES);
        let Some(slot) = self.free(TX_QUEUE) else { return false };
        self.put(slot_at(TX_QUEUE, slot), &bytes[..bytes.len().min(SLOT_BYTES)]);
        self.lend(TX_QUEUE, slot, len, layout);
        true
    }

    /// Posts a receive buffer. False where all chains are lent.
    pub fn post(&mut self, len: usize, layout: Layout) -> bool {
        let Some(slot) = self.free(RX_QUEUE) else { return false };
        self.lend(RX_QUEUE, slot, len.clamp(1, SLOT_BYTES), layout);
        true
    }

    fn free(&self, queue: u16) -> Option<u16> {
        self.rings[usize::from(queue)].lent.iter().position(Option::is_none).map(|i| i as u16)
    }

    fn lend(&mut self, queue: u16, slot: u16, len: usize, layout: Layout) {
        let write = if queue == RX_QUEUE { 2u16 } else { 0 };
        let pieces = layout.pieces(len);
        let indirect = layout.is_indirect(pieces.len());
        let (table, first) = if indirect {
            (TABLES + u64::from(queue * SLOTS + slot) * 16 * MAX_PIECES as u64, 0)
        } else {
            (ring_at(queue) + u64::from(slot) * 64, slot * 4)
        };
        self.rings[usize::from(queue)].descriptors[usize::from(slot)] =
            if indirect { 1 } else { pieces.len() };
        let mut at = BASE + slot_at(queue, slot);
        for (i, n) in pieces.iter().enumerate() {
            let last = i + 1 == pieces.len();
            let flags = write | u16::from(!last);
            self.put(table + 16 * i as u64, &descriptor(at, *n as u32, flags, first + i as u16 + 1));
            at += *n as u64;
        }
        if indirect {
            let entry = descriptor(BASE + table, 16 * pieces.len() as u32, 4, 0);
            self.put(ring_at(queue) + u64::from(slot) * 64, &entry);
        }
        self.offer(queue, slot * 4, Some(len as u32));
    }

    /// Makes a chain available.
    fn offer(&mut self, queue: u16, head: u16, len: Option<u32>) {
        let avail = self.rings[usize::from(queue)].avail;
        self.put(ring_at(queue) + 0x404 + 2 * u64::from(avail % RING_SIZE), &head.to_le_bytes());
        self.set_avail(queue, avail.wrapping_add(1));
        if let Some(slot) = self.rings[usize::from(queue)].lent.get_mut(usize::from(head / 4))
            && len.is_some()
        {
            *slot = len;
        }
    }

    /// Writes the available index, and notifies the device.
    pub fn set_avail(&mut self, queue: u16, avail: u16) {
        let before = std::mem::replace(&mut self.rings[usize::from(queue)].avail, avail);
        self.put(ring_at(queue) + 0x402, &avail.to_le_bytes());
        let mut event = [0; 2];
        self.get(ring_at(queue) + 0x804 + 8 * u64::from(RING_SIZE), &mut event);
        // vring_need_event of virtio 1.3 §2.7.10.
        let passed = avail.wrapping_sub(u16::from_le_bytes(event)).wrapping_sub(1);
        if self.asked_only && passed >= avail.wrapping_sub(before) {
            return;
        }
        let r = &mut self.rings[usize::from(queue)];
        r.kicks += 1;
        let _ = rustix::io::write(&r.kick, &1u64.to_ne_bytes());
    }

    /// How often it has notified the device.
    pub fn kicks(&self, queue: u16) -> u64 {
        self.rings[usize::from(queue)].kicks
    }

    /// A free chain of one descriptor with anything in it; head and all may be wrong. The ring may
    /// be broken then.
    pub fn lend_anything(&mut self, queue: u16, head: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let Some(slot) = self.free(queue) else { return };
        self.put(ring_at(queue) + u64::from(slot) * 64, &descriptor(addr, len, flags, next));
        let head = if head == 0 { slot * 4 } else { head };
        let r = &mut self.rings[usize::from(queue)];
        // The device may give it back, or stop the ring.
        r.lent[usize::from(slot)] = Some(u32::MAX);
        r.muddled = true;
        self.offer(queue, head, None);
    }

    /// Takes what the device gave back: each chain once, with no more bytes than it has. Received
    /// packets are copied out.
    pub fn reap(&mut self, queue: u16, each: impl FnMut(Vec<u8>)) {
        self.reap_from(44, queue, each);
    }

    /// The same of a device whose chains may hold as little as a byte.
    pub fn reap_any(&mut self, queue: u16, each: impl FnMut(Vec<u8>)) {
        self.reap_from(1, queue, each);
    }

    fn reap_from(&mut self, least: u32, queue: u16, each: impl FnMut(Vec<u8>)) {
        let before = self.rings[usize::from(queue)].used;
        self.reap_all(least, queue, each);
        let r = &self.rings[usize::from(queue)];
        let called = rustix::io::read(&*r.call, &mut [0; 8]).is_ok();
        // The event index was `before`. Through a chain that means anything it may have become
        // anything. Where no device has the descriptor the caller looks without being told.
        let is_held = Arc::strong_count(&r.call) > 1;
        if r.used != before && is_held && !self.rings.iter().any(|r| r.muddled) {
            assert!(called, "queue {queue}: used up to {}, and the driver was not notified", r.used);
        }
        self.put(ring_at(queue) + 0x404 + 2 * u64::from(RING_SIZE), &r.used.to_le_bytes());
    }

    fn reap_all(&mut self, least: u32, queue: u16, mut each: impl FnMut(Vec<u8>)) {
        loop {
            let mut index = [0; 2];
            self.get(ring_at(queue) + 0x802, &mut index);
            let r = &mut self.rings[usize::from(queue)];
            if r.used == u16::from_le_bytes(index) {
                return;
            }
            let at = ring_at(queue) + 0x804 + 8 * u64::from(r.used % RING_SIZE);
            r.used = r.used.wrapping_add(1);
            let mut element = [0; 8];
            self.get(at, &mut element);
            let head = u32::from_le_bytes([element[0], element[1], element[2], element[3]]);
            let len = u32::from_le_bytes([element[4], element[5], element[6], element[7]]);
            assert!(head < u32::from(RING_SIZE) && head % 4 == 0, "head {head} was never lent");
            let slot = head as u16 / 4;
            let lent = self.rings[usize::from(queue)].lent[usize::from(slot)].take();
            let Some(room) = lent else { panic!("queue {queue}: chain {head} came back twice") };
            if queue == TX_QUEUE {
                assert_eq!(len, 0, "the device wrote into a transmit chain");
                continue;
            }
            assert!((least..=room).contains(&len), "{len} bytes in a chain of {room}");
            if self.rings[usize::from(queue)].muddled {
                continue;
            }
            let mut bytes = vec![0; (len as usize).min(SLOT_BYTES)];
            self.get(slot_at(queue, slot), &mut bytes);
            each(bytes);
        }
    }
}

fn ring_at(queue: u16) -> u64 {
    RINGS + u64::from(queue) * RING_BYTES
}

fn slot_at(queue: u16, slot: u16) -> u64 {
    SLOTS_AT + u64::from(queue * SLOTS + slot) * SLOT_BYTES as u64
}

fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut d = [0; 16];
    d[..8].copy_from_slice(&addr.to_le_bytes());
    d[8..12].copy_from_slice(&len.to_le_bytes());
    d[12..14].copy_from_slice(&flags.to_le_bytes());
    d[14..].copy_from_slice(&next.to_le_bytes());
    d
}
