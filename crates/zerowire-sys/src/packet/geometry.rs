//! Where the slots of a transmit ring lie: pure arithmetic on what PACKET_TX_RING accepts
//! (net/packet/af_packet.c, `packet_set_ring`).
//!
//! The kernel wants blocks of whole pages and slots of a multiple of 16 bytes that don't cross
//! blocks. It wants as many slots in a block as fit, and all blocks full. The number of slots stays
//! exactly as asked, since resident frames go round in ring order. So the block is chosen such that
//! its slots divide this number.

/// Longest frame that segmentation offload may send (`GSO_LEGACY_MAX_SIZE` 65 536,
/// include/linux/netdevice.h) with its Ethernet header.
pub const MAX_FRAME_BYTES: usize = 65_550;
/// Most slots of a ring. A block may hold a single slot. The kernel keeps an array of 8 bytes a
/// block in one allocation of at most 4 MiB.
pub const MAX_SLOTS: usize = 1 << 19;
/// Most bytes of a ring: it is unswappable kernel memory that no limit of the user counts.
pub const MAX_RING_BYTES: usize = 1 << 30;

/// Slots begin at multiples of this (`TPACKET_ALIGNMENT`).
const ALIGN: usize = 16;
/// Most bytes of a block of several slots: larger ones are harder to find in one piece.
const BLOCK_BYTES: usize = 256 << 10;

/// Layout of a slot's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TPACKET_V2 (struct tpacket2_hdr).
    V2,
    /// TPACKET_V3 (struct tpacket3_hdr), since Linux 4.11 for transmit.
    V3,
}

impl Version {
    /// The value of the PACKET_VERSION option.
    pub(super) const fn number(self) -> i32 {
        match self {
            Self::V2 => 1,
            Self::V3 => 2,
        }
    }

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V2 => "TPACKET_V2",
            Self::V3 => "TPACKET_V3",
        }
    }

    /// Bytes from the start of a slot to its frame: the header, aligned.
    #[inline]
    pub(super) const fn data_at(self) -> usize {
        match self {
            Self::V2 => 32,
            Self::V3 => 48,
        }
    }

    #[inline]
    pub(super) const fn status_at(self) -> usize {
        match self {
            Self::V2 => 0,
            Self::V3 => 20,
        }
    }

    #[inline]
    pub(super) const fn len_at(self) -> usize {
        match self {
            Self::V2 => 4,
            Self::V3 => 16,
        }
    }
}

/// The slots of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    slots: usize,
    slot_bytes: usize,
    slots_per_block: usize,
    block_bytes: usize,
    version: Version,
}

/// Why a ring can't be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The number of slots is out of bounds.
    #[error("a ring of {slots} slots: give 1 to {MAX_SLOTS}")]
    Slots {
        /// The number.
        slots: usize,
    },
    /// The ring would take too much memory.
    #[error(
        "a ring of {slots} slots of {slot_bytes} bytes is longer than {MAX_RING_BYTES} bytes: take fewer slots, or \
         shorter frames"
    )]
    RingBytes {
        /// Slots asked for.
        slots: usize,
        /// Bytes that each takes in the ring.
        slot_bytes: usize,
    },
}

impl Geometry {
    /// A ring of exactly `slots` slots that each hold `data_bytes` (virtio-net header and frame).
    ///
    /// # Errors
    /// The number of slots, or the length of the ring, is out of bounds.
    pub fn new(slots: usize, data_bytes: usize, version: Version) -> Result<Self, GeometryError> {
        Self::with_page(slots, data_bytes, version, rustix::param::page_size())
    }

    /// The same on a machine with pages of `page` bytes.
    fn with_page(
        slots: usize,
        data_bytes: usize,
        version: Version,
        page: usize,
    ) -> Result<Self, GeometryError> {
        if slots == 0 || slots > MAX_SLOTS {
            return Err(GeometryError::Slots { slots });
        }
        let data_at = version.data_at();
        let slot_bytes = match data_at + data_bytes {
            // A power of two never crosses a page, so that a frame is one fragment.
            n if n <= page => n.next_power_of_two().max(128),
            // Whole pages: a frame of the greatest length then lies in as many pages as a frame may
            // have (17).
            n => n.next_multiple_of(page),
        };
        let whole = slots.checked_mul(slot_bytes).filter(|n| *n <= MAX_RING_BYTES);
        if whole.is_none() {
            return Err(GeometryError::RingBytes { slots, slot_bytes });
        }
        let (slots_per_block, block_bytes, slot_bytes) = block(slots, slot_bytes, page);
        let geometry = Self { slots, slot_bytes, slots_per_block, block_bytes, version };
        // Slots of a number without divisors take a page or more each.
        if geometry.total_bytes() > MAX_RING_BYTES {
            return Err(GeometryError::RingBytes { slots, slot_bytes });
        }
        Ok(geometry)
    }

    /// The request of PACKET_TX_RING (struct tpacket_req3): block size and number, slot size and
    /// number, three fields that transmit leaves zero. The first four are struct tpacket_req.
    pub(super) fn request(&self) -> [u32; 7] {
        let blocks = self.slots / self.slots_per_block;
        [self.block_bytes as u32, blocks as u32, self.slot_bytes as u32, self.slots as u32, 0, 0, 0]
    }

    /// Slots, as many as were asked for.
    #[inline]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of a slot.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Layout of a slot's header.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Bytes of the ring.
    pub fn total_bytes(&self) -> usize {
        self.slots / self.slots_per_block * self.block_bytes
    }

    /// Offset of a slot in the mapping.
    pub(super) fn offset(&self, slot: usize) -> usize {
        let (block, place) = (slot / self.slots_per_block, slot % self.slots_per_block);
        block * self.block_bytes + place * self.slot_bytes
    }

    /// Bytes for virtio-net header and frame.
    #[inline]
    pub fn data_bytes(&self) -> usize {
        self.slot_bytes - self.version.data_at()
    }
}

/// Slots of a block, its bytes, and the bytes of a slot, which may grow to fill the block.
fn block(slots: usize, slot_bytes: usize, page: usize) -> (usize, usize, usize) {
    let most = (BLOCK_BYTES / slot_bytes).clamp(1, slots);
    for per_block in (2..=most).rev().filter(|n| slots.is_multiple_of(*n)) {
        let block_bytes = (per_block * slot_bytes).next_multiple_of(page);
        if block_bytes / slot_bytes == per_block {
            return (per_block, block_bytes, slot_bytes);
        }
        let wider = block_bytes / per_block / ALIGN * ALIGN;
        if block_bytes / wider == per_block {
            return (per_block, block_bytes, wider);
        }
    }
    let block_bytes = slot_bytes.next_multiple_of(page);
    (1, block_bytes, block_bytes)
}

#[cfg(test)]
mod tests;
