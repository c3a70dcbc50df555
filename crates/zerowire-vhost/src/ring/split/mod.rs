//! Available and used rings, notification suppression.

mod track;

use serde::{Deserialize, Serialize};

use super::chain::DESCRIPTOR_BYTES;
use super::inflight::Tracker;
use super::notify::{self, NO_NOTIFICATION, Wish, Word};
use super::{Descriptor, RingError, RingRule};
use crate::memory::access::{self, Access};
use crate::memory::{DirtyLog, GuestMemory, SharedWords};

/// Where a ring's three parts are, in the front end's address space (`VHOST_USER_SET_VRING_ADDR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingAddresses {
    /// Descriptor table.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
}

/// Where a ring's writes to its used ring are noted, while the guest migrates.
#[derive(Clone, Debug)]
pub struct RingLog {
    /// The log.
    pub log: DirtyLog,
    /// The guest address of the used ring's first byte (`log_guest_addr` of
    /// `VHOST_USER_SET_VRING_ADDR`).
    pub at: u64,
}

impl RingLog {
    /// The log of `memory`, for a ring whose writes are noted from guest address `at` on; None if
    /// they aren't.
    pub fn of(memory: &GuestMemory, at: Option<u64>) -> Option<Self> {
        Some(Self { log: memory.log()?.clone(), at: at? })
    }
}

/// What the driver knows of the order in which chains are used (VIRTIO_F_IN_ORDER, virtio 1.3
/// §2.7.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsedOrder {
    /// Nothing: the feature was not negotiated.
    #[default]
    Any,
    /// Chains are used in the order in which they became available. Each has an element of its own,
    /// from which the driver learns how many bytes were written.
    Each,
    /// As [`Self::Each`], and the device writes no buffers. One element stands for all chains that
    /// are published together: it names the last one, in the place of the first one.
    Batch,
}

impl UsedOrder {
    /// The order of a ring whose driver took the features `acked`. The device writes the ring's
    /// buffers, or it only reads them.
    pub fn of(acked: u64, device_writes: bool) -> Self {
        match (acked & zerowire_vhost_user::features::IN_ORDER != 0, device_writes) {
            (false, _) => Self::Any,
            (true, true) => Self::Each,
            (true, false) => Self::Batch,
        }
    }
}

/// Where a part of a ring lies: `len` bytes at a front end's address, aligned to `align` bytes. The
/// error says what is wrong with them.
fn part_of_ring(
    (queue, name): (u16, &str),
    (addr, len): (u64, u64),
    align: u64,
    memory: &GuestMemory,
) -> Result<SharedWords, String> {
    if !addr.is_multiple_of(align) {
        return Err(format!(
            "queue {queue}: the {name} at {addr:#x} is not aligned to {align} bytes (virtio 1.3 §2.7)"
        ));
    }
    let ptr = memory.ring_ptr(addr, len).ok_or_else(|| {
        format!(
            "queue {queue}: the {name}, {len} bytes at front-end address {addr:#x}, is not in one memory region: the \
             front end shared {} regions, {} MiB; all of the guest's memory has to be shared (QEMU: -object \
             memory-backend-memfd,share=on and -numa node,memdev=…; libvirt: <access mode='shared'/>)",
            memory.regions().len(),
            memory.len() >> 20
        )
    })?;
    // A region may begin at an odd address of the front end.
    let words = memory.ring_words(addr, len).filter(|_| (ptr.addr() as u64).is_multiple_of(align));
    words.ok_or_else(|| {
        format!("queue {queue}: the {name} is not aligned to {align} bytes in memory (virtio 1.3 §2.7)")
    })
}

/// Bytes of the used ring of a queue of `size` entries (virtio 1.3 §2.7).
pub fn used_ring_bytes(size: u16) -> u64 {
    6 + 8 * u64::from(size)
}

/// The device side of one ring.
#[derive(Debug)]
pub struct SplitRing {
    queue: u16,
    size: u16,
    mask: u16,
    event_idx: bool,
    desc: SharedWords,
    avail: SharedWords,
    used: SharedWords,
    /// The next entry of the available ring to take.
    next_avail: u16,
    /// Where the available ring is known to end.
    seen_avail: u16,
    /// The next entry of the used ring to fill.
    next_used: u16,
    /// The used index at the last decision whether to notify: the first element that is not
    /// published.
    decided_used: u16,
    order: UsedOrder,
    log: Option<RingLog>,
    /// Where chains in flight are marked, if they are.
    tracker: Option<Box<Tracker>>,
    /// Chains that a process before had taken, and that are given out before those of the available
    /// ring.
    again: u16,
}

impl SplitRing {
    /// A ring of `size` entries (a power of two, 1 to 32768) whose first available entry to take is
    /// `next_avail`. The error says what is wrong with the addresses.
    pub fn new(
        queue: u16,
        size: u16,
        at: RingAddresses,
        next_avail: u16,
        event_idx: bool,
        memory: &GuestMemory,
    ) -> Result<Self, String> {
        if !size.is_power_of_two() || size > 32768 {
            return Err(format!(
                "queue {queue}: size {size} is not a power of two up to 32768 (virtio 1.3 §2.7)"
            ));
        }
        let n = u64::from(size);
        let part = |name, addr, len, align| part_of_ring((queue, name), (addr, len), align, memory);
        let desc = part("descriptor table", at.desc, n * 16, 16)?;
        let avail = part("available ring", at.avail, 6 + n * 2, 2)?;
        let used = part("used ring", at.used, used_ring_bytes(size), 4)?;
        let mut ring = Self {
            queue,
            size,
            mask: size - 1,
            event_idx,
            desc,
            avail,
            used,
            next_avail,
            seen_avail: next_avail,
            next_used: 0,
            decided_used: 0,
            order: UsedOrder::Any,
            log: None,
            tracker: None,
            again: 0,
        };
        // The used index lives in the ring and nowhere else: a device that comes back goes on from
        // there.
        ring.next_used = ring.used.word(1).get();
        ring.decided_used = ring.next_used;
        Ok(ring)
    }

    /// The queue's number.
    #[inline]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Entries of the queue.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Sets what the driver was promised. Call it before a chain is used.
    pub fn set_order(&mut self, order: UsedOrder) {
        self.order = order;
    }

    /// From now on writes to the used ring are noted there; what was written before is noted where
    /// it was to be until now.
    pub fn set_log(&mut self, log: Option<RingLog>) {
        self.note_elements(self.decided_used);
        self.log = log;
    }

    /// Notes that `len` bytes of the used ring, `offset` bytes in, were written.
    #[inline]
    fn note(&self, offset: usize, len: usize) {
        if let Some(l) = &self.log {
            l.log.wrote(l.at.saturating_add(offset as u64), len as u64);
        }
    }

    /// Notes the used elements from `from` on up to those written last.
    #[cold]
    fn note_elements(&self, from: u16) {
        let chains = self.next_used.wrapping_sub(from);
        let n = usize::from(chains.min(if self.order == UsedOrder::Batch { 1 } else { self.size }));
        let first = usize::from(from & self.mask);
        let straight = n.min(usize::from(self.size) - first);
        self.note(4 + 8 * first, 8 * straight);
        self.note(4, 8 * (n - straight));
    }

    /// The next available entry to take: what `VHOST_USER_GET_VRING_BASE` answers.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// The next entry of the used ring to fill, free-running.
    #[inline]
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Gives entries back, so that they are taken again. `heads` are those that were taken last, in
    /// the order in which they were taken; none of them was used.
    pub fn untake(&mut self, heads: impl DoubleEndedIterator<Item = u16>) {
        for head in heads.rev() {
            let elsewhere = self.tracker.as_mut().is_some_and(|t| t.untaken(head));
            if elsewhere {
                self.again += 1;
            } else {
                self.next_avail = self.next_avail.wrapping_sub(1);
            }
        }
    }

    /// An error of this ring at the entry that was taken last.
    #[cold]
    pub fn error(&self, rule: RingRule) -> RingError {
        RingError { queue: self.queue, index: self.next_avail.wrapping_sub(1), rule }
    }

    /// How many entries can be taken; looks at the available index if none is known to be left.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        let known = self.seen_avail.wrapping_sub(self.next_avail);
        if known > 0 { Ok(known) } else { self.refresh() }
    }

    /// How many entries can be taken, asking the guest's memory anew (virtio 1.3 §2.7.13).
    #[inline]
    pub fn refresh(&mut self) -> Result<u16, RingError> {
        let avail = self.avail.word(1).seen();
        let ahead = avail.wrapping_sub(self.next_avail);
        if ahead > self.size {
            let rule = RingRule::AvailJump { avail, next: self.next_avail, ahead, size: self.size };
            return Err(RingError { queue: self.queue, index: self.next_avail, rule });
        }
        self.seen_avail = avail;
        Ok(ahead.saturating_add(self.again))
    }

    /// Takes the next available entry: the head of a chain. None where there is none.
    #[inline]
    pub fn take(&mut self) -> Result<Option<u16>, RingError> {
        if self.available()? == 0 {
            return Ok(None);
        }
        if self.tracker.is_some() {
            return self.take_tracked();
        }
        self.take_next().map(Some)
    }

    /// How many entries can be taken by [`Self::take_next`] one behind the other: none where chains
    /// in flight are marked.
    #[inline]
    pub(crate) fn unmarked(&mut self) -> Result<u16, RingError> {
        if self.tracker.is_some() { Ok(0) } else { self.available() }
    }

    /// The head in the next entry of the available ring, which is there.
    #[inline]
    pub(crate) fn take_next(&mut self) -> Result<u16, RingError> {
        let slot = usize::from(self.next_avail & self.mask);
        let head = self.avail.word(2 + slot).get();
        self.next_avail = self.next_avail.wrapping_add(1);
        if head >= self.size {
            let rule = RingRule::IndexOutOfTable { index: head, len: u32::from(self.size) };
            return Err(self.error(rule));
        }
        Ok(head)
    }

    /// Asks the CPU for the descriptors of up to `n` entries behind those that were taken. Another
    /// CPU wrote them a moment ago. The caller does so while the kernel works on one batch: the
    /// next one's descriptors then arrive side by side. Otherwise the thread would wait for one
    /// miss after the other.
    #[inline]
    pub fn prefetch(&self, n: u16) {
        let ahead = self.avail.word(1).get().wrapping_sub(self.next_avail);
        // A jump of the index is found, and answered, when the entries are taken.
        if ahead > self.size {
            return;
        }
        for i in 0..n.min(ahead) {
            let slot = usize::from(self.next_avail.wrapping_add(i) & self.mask);
            let head = self.avail.word(2 + slot).get();
            self.desc.prefetch(DESCRIPTOR_BYTES * usize::from(head & self.mask));
        }
    }

    /// Asks the CPU for bytes at the begin of a buffer: the first one of the chain `ahead` entries
    /// behind the next one, if that is known to be there. Called before what comes earlier is read
    /// or written, beside which these bytes then arrive. What is wrong with that chain is found,
    /// and answered, at its turn.
    #[inline]
    pub fn prefetch_buffer(
        &self,
        ahead: u16,
        memory: &GuestMemory,
        hint: &mut usize,
        access: Access,
        bytes: usize,
    ) {
        if self.seen_avail.wrapping_sub(self.next_avail) <= ahead {
            return;
        }
        let slot = usize::from(self.next_avail.wrapping_add(ahead) & self.mask);
        let head = self.avail.word(2 + slot).get() & self.mask;
        if let Some(d) = self.descriptor(head)
            && let Some(start) = memory.contiguous(d.addr, d.len, hint)
        {
            access::prefetch_bytes(start, bytes.min(d.len as usize), access);
        }
    }

    /// Asks the CPU for the lines of the next `n` used elements, to write them: the driver's CPU
    /// has read them a round ago. Called as [`Self::prefetch`].
    #[inline]
    pub fn prefetch_used(&self, n: u16) {
        // Eight elements lie in a cache line of 64 bytes.
        for i in (0..n.min(self.size)).step_by(8) {
            let slot = usize::from(self.next_used.wrapping_add(i) & self.mask);
            self.used.prefetch_to_write(4 + 8 * slot);
        }
    }

    /// Reads an entry of the descriptor table once; None where it has none of that number.
    #[inline(always)]
    pub(super) fn descriptor(&self, index: u16) -> Option<Descriptor> {
        self.desc.read_pair(DESCRIPTOR_BYTES * usize::from(index)).map(Descriptor::of)
    }

    /// Writes a used element; the guest sees it with [`Self::publish`]. Of a batch the last element
    /// counts: each one lies where the one before lay.
    #[inline]
    pub fn push_used(&mut self, head: u16, len: u32) {
        let at = if self.order == UsedOrder::Batch { self.decided_used } else { self.next_used };
        let slot = usize::from(at & self.mask);
        let element = u64::from(head) | u64::from(len) << 32;
        self.used.write(4 + 8 * slot, element.to_le_bytes());
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(t) = &mut self.tracker {
            t.used(head);
        }
    }

    /// Shows the guest all used elements written so far, and says whether it wants to be notified
    /// (virtio 1.3 §2.7.10, §2.7.7.2).
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next_used == self.decided_used {
            return false;
        }
        self.used.word(1).show(self.next_used);
        if let Some(t) = &mut self.tracker {
            t.published(self.next_used);
        }
        if let Some(l) = &self.log {
            self.note(2, 2);
            self.note_elements(self.decided_used);
            l.log.notify();
        }
        let old = std::mem::replace(&mut self.decided_used, self.next_used);
        let wish = if self.event_idx {
            Wish::Event(self.avail.word(2 + usize::from(self.size)))
        } else {
            Wish::Flags(self.avail.word(0))
        };
        notify::wants(wish, self.next_used, old)
    }

    /// Asks the driver for a notification with the next entry it makes available. Returns whether
    /// there are entries already (virtio 1.3 §2.7.10: check again after arming).
    pub fn arm(&mut self) -> Result<bool, RingError> {
        self.arm_for(1)
    }

    /// As [`Self::arm`], for `wanted` entries at once, 1 to the ring's size; without EVENT_IDX any
    /// entry notifies.
    pub fn arm_for(&mut self, wanted: u16) -> Result<bool, RingError> {
        if self.event_idx {
            let event = self.next_avail.wrapping_add(wanted - 1);
            let word = 2 + 4 * usize::from(self.size);
            notify::ask(self.used.word(word), event);
            self.note(2 * word, 2);
        } else {
            notify::ask(self.used.word(0), 0);
            self.note(0, 2);
        }
        Ok(self.refresh()? >= wanted)
    }

    /// Tells a driver without EVENT_IDX that no notification is needed. With EVENT_IDX nothing is
    /// to do: an event index that lies behind asks for none.
    pub fn disarm(&mut self) {
        if !self.event_idx {
            self.used.word(0).set(NO_NOTIFICATION);
            self.note(0, 2);
        }
    }
}

impl Drop for SplitRing {
    /// Elements that were written and not published are noted, too: a ring may stop on an error
    /// between the two.
    fn drop(&mut self) {
        self.note_elements(self.decided_used);
    }
}
