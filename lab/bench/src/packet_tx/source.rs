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
//!
//! A [`Head`] has the headers of a frame: Ethernet, IPv4 and UDP, and the virtio-net header before
//! them where the kernel must cut the frame.

use std::cell::Cell;

use anyhow::{Context, Result};
use zerowire::area::{Area, AreaOptions, Frozen};
use zerowire::send::Segment;
use zerowire_wire::ip;
use zerowire_wire::vnet::{Gso, VnetHeader};

use super::case::TxCase;
use super::lab::{SOURCE, SOURCE_PORT, TARGET, TARGET_PORT, TxLab};
use crate::area::Slots;
use crate::frame::ipv4_header;

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

/// Ethernet, IPv4 and UDP headers.
pub const HEAD_LEN: usize = 14 + 20 + 8;
/// The virtio-net header of packet sockets, without num_buffers (virtio 1.3 §5.1.6).
pub const VNET_LEN: usize = 10;
/// UDP payload of a frame of the usual MTU of 1500. Longer payloads go as frames to be cut into
/// such segments.
pub const SEGMENT: usize = 1500 - 20 - 8;

/// The virtio-net header of a frame that must be cut: the UDP header begins at byte 34, and has its
/// checksum at byte 6.
const CUT: VnetHeader = match VnetHeader::segments(Gso::UdpL4, HEAD_LEN as u16, SEGMENT as u16, 34, 6) {
    Ok(header) => header,
    Err(_) => panic!("the header of frames that are to be cut"),
};

/// Headers for payloads of one length.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// The virtio-net header; zeroes for a frame in one piece.
    pub vnet: [u8; VNET_LEN],
    /// Ethernet, IPv4 and UDP.
    pub bytes: [u8; HEAD_LEN],
    /// Its fields, if the kernel must cut the frame.
    pub cut: Option<VnetHeader>,
}

impl Head {
    /// Headers for `payload` bytes to the target of `lab`. With `cut`, the device cuts a payload
    /// that is longer than a segment; where the device takes the frame as it is, nobody does.
    /// Without `cut` it is one long frame.
    pub fn new(lab: &TxLab, payload: usize, cut: bool) -> Self {
        let cut = (cut && payload > SEGMENT).then_some(CUT);
        let (to, from) = lab.macs();
        let mut bytes = [0; HEAD_LEN];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        let ends = [SOURCE.octets(), TARGET.octets()];
        bytes[14..34].copy_from_slice(&ipv4_header(HEAD_LEN - 14 + payload, ip::UDP, ends));
        let udp_len = (8 + payload) as u16;
        bytes[34..36].copy_from_slice(&SOURCE_PORT.to_be_bytes());
        bytes[36..38].copy_from_slice(&TARGET_PORT.to_be_bytes());
        bytes[38..40].copy_from_slice(&udp_len.to_be_bytes());
        if cut.is_some() {
            // The sum of the pseudo header; the device completes it for each segment. A frame in
            // one piece has none, which 0 says (RFC 768).
            let sum = ip::pseudo_header(ends.as_flattened(), ip::UDP, udp_len.into());
            bytes[40..42].copy_from_slice(&sum.folded().to_be_bytes());
        }
        Self { vnet: cut.map_or([0; VNET_LEN], |header| header.to_bytes()), bytes, cut }
    }

    /// Bytes before the payload as a packet socket takes them: with the virtio-net header where
    /// there is one.
    pub fn bytes_before(&self) -> usize {
        HEAD_LEN + if self.cut.is_some() { VNET_LEN } else { 0 }
    }

    /// Writes them to the front of `to`.
    #[inline]
    pub fn write(&self, to: &mut [u8]) {
        if self.cut.is_some() {
            to[..VNET_LEN].copy_from_slice(&self.vnet);
            to[VNET_LEN..VNET_LEN + HEAD_LEN].copy_from_slice(&self.bytes);
        } else {
            to[..HEAD_LEN].copy_from_slice(&self.bytes);
        }
    }
}
