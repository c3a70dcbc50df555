//! The memory that payloads come from: resident, filled once, never written again while it is
//! measured.
//!
//! Each place holds headers and payload in one piece, the payload at the start of a cache line:
//!
//! ```text
//!   0          12         22            64
//!   | unused   | virtio   | headers     | payload ...
//! ```
//!
//! The walk goes through all places in order. The bare loops and the library's back ends read the
//! same memory. Each goes on where the one before it ended. So a place of a cold working set was
//! last used a whole working set ago.

use std::cell::Cell;

use anyhow::{Context, Result};
use zerowire::area::{Area, AreaOptions, Frozen};
use zerowire::send::Segment;

use super::case::TxCase;
use super::frame::{HEAD_LEN, Head, VNET_LEN};
use super::lab::TxLab;
use crate::area::Slots;

/// Where the payload begins in its place.
const PAYLOAD_AT: usize = 64;

/// Payloads with their headers.
pub struct TxSource {
    /// One buffer, the whole working set; frozen, so that it can be lent many times at once.
    frozen: Frozen,
    slots: Slots,
    payload: usize,
    head: Head,
    next: Cell<usize>,
}

impl TxSource {
    /// Fills the working set of `case`.
    pub fn new(case: &TxCase, lab: &TxLab) -> Result<Self> {
        let slots = Slots::new(case.working_set.bytes(), PAYLOAD_AT + case.payload);
        let head = Head::new(lab, case.payload, true);
        let options = AreaOptions::default().buffers(1).buffer_bytes(slots.total());
        let mut lease = Area::new(options)?.lease().context("a new area has no free buffer")?;
        for index in 0..slots.places() {
            let at = slots.offset(index);
            let place = &mut lease[at..at + PAYLOAD_AT + case.payload];
            place[PAYLOAD_AT - HEAD_LEN - VNET_LEN..][..VNET_LEN].copy_from_slice(&head.vnet);
            place[PAYLOAD_AT - HEAD_LEN..PAYLOAD_AT].copy_from_slice(&head.bytes);
            for (at, byte) in place[PAYLOAD_AT..].iter_mut().enumerate() {
                *byte = (at + index) as u8;
            }
        }
        Ok(Self { frozen: lease.freeze(), slots, payload: case.payload, head, next: Cell::new(0) })
    }

    /// Takes the next `count` sends: the index of the first one.
    pub fn take(&self, count: usize) -> usize {
        self.next.replace(self.next.get() + count)
    }

    /// Length of a payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.payload
    }

    /// The headers of its frames.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The payload of the `index`-th send.
    #[inline]
    pub fn payload(&self, index: usize) -> &[u8] {
        let at = self.slots.offset(index) + PAYLOAD_AT;
        &self.frozen[at..at + self.payload]
    }

    /// The frame of the `index`-th send, with a virtio-net header before it where the kernel must
    /// cut it.
    #[inline]
    pub fn frame(&self, index: usize) -> &[u8] {
        let at = self.slots.offset(index) + PAYLOAD_AT;
        &self.frozen[at - self.head.bytes_before()..at + self.payload]
    }

    /// The payload of the `index`-th send, to be given to a sender of the library.
    #[inline]
    pub fn segment(&self, index: usize) -> Segment {
        let at = self.slots.offset(index) + PAYLOAD_AT;
        Segment::Frozen(self.frozen.clone(), at..at + self.payload)
    }

    /// The area that it lies in, to register it.
    pub fn area(&self) -> &Area {
        self.frozen.area()
    }
}
