//! Where the parts of a split ring lie (virtio 1.3 §2.7).
//!
//! ```text
//! descriptor table  16 bytes an entry   addr u64, len u32, flags u16, next u16
//! available ring    flags u16, idx u16, ring[size] u16, used_event u16
//! used ring         flags u16, idx u16, ring[size] {id u32, len u32}, avail_event u16
//! ```

use crate::{DualAddr, GuestError, GuestMemory, GuestSlice, QueueSetup};

/// Descriptor flag: the chain goes on at `next` (virtio 1.3 §2.7.5).
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer holds a table of descriptors (§2.7.5.3).
pub const DESC_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub const DESC_LEN: usize = 16;
/// The largest queue (§2.7).
pub const MAX_SIZE: u16 = 32768;

/// Flag of the available ring: no interrupts, please (§2.7.6.1).
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: no notifications, please (§2.7.10).
pub const USED_NO_NOTIFY: u16 = 1;

/// The memory of a split ring with its fields by name. No field is checked:
/// [`super::DriverRing`] is the driver that keeps the rules.
#[derive(Clone, Debug)]
pub struct RingMemory {
    size: u16,
    desc: GuestSlice,
    avail: GuestSlice,
    used: GuestSlice,
}

impl RingMemory {
    /// Allocates a zeroed ring.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] unless `size` is a power of two up to
    /// 32768; [`GuestError::OutOfMemory`].
    pub fn new(memory: &GuestMemory, size: u16) -> Result<RingMemory, GuestError> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(GuestError::BadSetting {
                what: "the queue size",
                value: size.into(),
                rule: "a power of two, at most 32768",
            });
        }
        let entries = usize::from(size);
        let ring = RingMemory {
            size,
            desc: memory.allocate(DESC_LEN * entries, 64)?,
            avail: memory.allocate(6 + 2 * entries, 64)?,
            used: memory.allocate(6 + 8 * entries, 64)?,
        };
        ring.clear();
        Ok(ring)
    }

    /// Sets every byte to 0.
    pub fn clear(&self) {
        self.desc.fill(0);
        self.avail.fill(0);
        self.used.fill(0);
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Descriptor table.
    pub fn desc(&self) -> &GuestSlice {
        &self.desc
    }

    /// Available ring.
    pub fn avail(&self) -> &GuestSlice {
        &self.avail
    }

    /// Used ring.
    pub fn used(&self) -> &GuestSlice {
        &self.used
    }

    /// What a transport needs, with the device to begin at `next_avail`.
    pub fn setup(&self, next_avail: u16) -> QueueSetup {
        let dual = |slice: &GuestSlice| DualAddr { guest: slice.guest_addr(), user: slice.user_addr() };
        QueueSetup {
            size: self.size,
            next_avail,
            desc: dual(&self.desc),
            avail: dual(&self.avail),
            used: dual(&self.used),
        }
    }

    /// Writes descriptor `index` (modulo the size).
    #[inline]
    pub fn write_desc(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        write_desc_at(&self.desc, self.slot(index), addr, len, flags, next);
    }

    /// Entry `position` (modulo the size) of the available ring.
    #[inline]
    pub fn write_avail(&self, position: u16, head: u16) {
        self.avail.write_int(4 + 2 * self.slot(position), head);
    }

    /// The available index. Stored with release order: what was written
    /// before is seen by a device that sees the index (§2.7.13.3).
    #[inline]
    pub fn publish_avail_idx(&self, index: u16) {
        let order = std::sync::atomic::Ordering::Release;
        self.avail.atomic_u16(2).store(index.to_le(), order);
    }

    /// The available index.
    pub fn avail_idx(&self) -> u16 {
        self.avail.read_int(2)
    }

    /// Flags of the available ring.
    #[inline]
    pub fn write_avail_flags(&self, flags: u16) {
        self.avail.write_int(0, flags);
    }

    /// used_event, behind the available ring (§2.7.7).
    #[inline]
    pub fn write_used_event(&self, index: u16) {
        let at = 4 + 2 * usize::from(self.size);
        self.avail.write_int(at, index);
    }

    /// The used index, with acquire order: the entries before it are there.
    #[inline]
    pub fn used_idx(&self) -> u16 {
        let order = std::sync::atomic::Ordering::Acquire;
        u16::from_le(self.used.atomic_u16(2).load(order))
    }

    /// Entry `position` (modulo the size) of the used ring: (id, length).
    #[inline]
    pub fn used_entry(&self, position: u16) -> (u32, u32) {
        let at = 4 + 8 * self.slot(position);
        (self.used.read_int(at), self.used.read_int(at + 4))
    }

    /// Flags of the used ring.
    #[inline]
    pub fn used_flags(&self) -> u16 {
        self.used.read_int(0)
    }

    /// avail_event, behind the used ring (§2.7.10).
    #[inline]
    pub fn avail_event(&self) -> u16 {
        self.used.read_int(4 + 8 * usize::from(self.size))
    }

    #[inline]
    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }
}

/// Writes descriptor `index` of a table, direct or indirect.
///
/// # Panics
/// When it is outside of `table`, or the table is not aligned to 8.
#[inline]
pub fn write_desc_at(table: &GuestSlice, index: usize, addr: u64, len: u32, flags: u16, next: u16) {
    let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    table.write_int(index * DESC_LEN, addr);
    table.write_int(index * DESC_LEN + 8, rest);
}
