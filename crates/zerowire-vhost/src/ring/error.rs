//! What a guest can do wrong with a ring.

use thiserror::Error;

/// A rule of virtio 1.3 that the guest broke. Its ring is stopped; the text is what the log shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum RingRule {
    /// §2.7.13.3: the driver made more buffers available than the queue has entries.
    #[error("available index {avail} is {ahead} ahead of {next}, more than the queue size {size} (§2.7.13)")]
    AvailJump { avail: u16, next: u16, ahead: u16, size: u16 },
    /// §2.7.5: a descriptor index outside the table.
    #[error("descriptor index {index} is outside a table of {len} entries (§2.7.5)")]
    IndexOutOfTable { index: u16, len: u32 },
    /// §2.7.5: a chain longer than the queue, hence a loop.
    #[error("the descriptor chain has more than {0} descriptors or loops (§2.7.5.2)")]
    ChainTooLong(u32),
    /// §2.7.5.3.1: INDIRECT together with NEXT, nested, or of a wrong length.
    #[error("an indirect descriptor has both INDIRECT and NEXT set (§2.7.5.3.1)")]
    IndirectAndNext,
    /// §2.7.5.3.1.
    #[error("an indirect table contains an indirect descriptor (§2.7.5.3.1)")]
    NestedIndirect,
    /// §2.7.5.3.
    #[error("an indirect table of {0} bytes is not a positive multiple of 16 up to {max} bytes (§2.7.5.3)", max = super::MAX_INDIRECT * 16)]
    IndirectLength(u32),
    /// §2.7.5: an address that no memory region backs.
    #[error("{len} bytes at guest address {addr:#x} are not in the guest's memory (§2.7.5)")]
    NotMemory { addr: u64, len: u32 },
    /// A descriptor of no bytes.
    #[error("a descriptor has length 0 (§2.7.5)")]
    ZeroLength,
    /// §5.1.6.2, §2.7.4.2: a device-writable descriptor in a transmit queue.
    #[error("a device-writable descriptor in a transmit queue (§5.1.6.2)")]
    WritableInTransmit,
    /// §5.1.6.3, §2.7.4.2: a device-readable descriptor in a receive queue.
    #[error("a device-readable descriptor in a receive queue (§5.1.6.3)")]
    ReadableInReceive,
    /// §5.1.6.3.1: a receive buffer that can't hold the virtio-net header.
    #[error("a receive buffer of {0} bytes can't hold the virtio-net header (§5.1.6.3.1)")]
    BufferTooSmall(u32),
    /// §5.10.6.7: an event buffer that can't hold an event.
    #[error("an event buffer of {0} bytes can't hold an event of 4 (§5.10.6.7)")]
    EventTooSmall(u32),
}

/// A broken rule and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("queue {queue}: at available index {index}: {rule}")]
pub struct RingError {
    /// The queue's number.
    pub queue: u16,
    /// Position in the available ring, free-running.
    pub index: u16,
    /// What was broken.
    pub rule: RingRule,
}
