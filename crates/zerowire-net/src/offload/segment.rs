//! The headers of each wire frame that a guest's long frame becomes.

use thiserror::Error;
use zerowire_vhost::memory::Segment;
use zerowire_wire::tcp::{CWR, FIN, FLAGS_AT, PSH};
use zerowire_wire::{ipv4, ipv6, tcp, udp};

use super::headers::{HEADERS_BYTES, Headers};
use super::{Checksum, Cursor, add_guest};

/// Why a frame can't be cut. It is dropped; the text appears in the log once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// What comes out would not fit on the wire.
    #[error("gso_size {size} behind {headers} bytes of headers makes frames longer than {longest} bytes")]
    TooLong {
        /// `gso_size`
        size: u16,
        /// Bytes of the frame's headers.
        headers: usize,
        /// The longest frame of the port, bytes.
        longest: usize,
    },
    /// Segments of nothing.
    #[error("gso_size 0")]
    NoSize,
    /// The frame is shorter than its headers, or longer than 16 bits can say.
    #[error("a frame of {0} bytes")]
    FrameLength(usize),
}

/// Cuts one frame. It holds the private copy of the headers, and nothing of the payload.
#[derive(Clone, Debug)]
pub struct Segmenter {
    headers: Headers,
    head: [u8; HEADERS_BYTES],
    size: usize,
    payload: usize,
    /// The sum of the pseudo header without the length of the transport's part.
    pseudo: Checksum,
}

impl Segmenter {
    /// For a frame of `frame_len` bytes, without its virtio-net header, that begins with `head`,
    /// where `headers` were found; `size` bytes of payload go into each wire frame of at most
    /// `longest` bytes.
    ///
    /// As for the kernel, the field of the transport's checksum holds the pseudo header's sum, not
    /// inverted (virtio 1.3 §5.1.6.2). That sum has the length of the whole frame's transport part.
    /// Lengths in IP and UDP headers are ignored.
    ///
    /// # Errors
    /// The text says what is wrong.
    pub fn new(
        head: &[u8],
        frame_len: usize,
        headers: Headers,
        size: u16,
        longest: usize,
    ) -> Result<Self, SegmentError> {
        let len = headers.payload_at;
        let transport = u16::try_from(frame_len.saturating_sub(headers.transport_at));
        let (Ok(transport), Some(template)) = (transport, head.get(..len)) else {
            return Err(SegmentError::FrameLength(frame_len));
        };
        if size == 0 {
            return Err(SegmentError::NoSize);
        }
        let payload = frame_len.checked_sub(len).ok_or(SegmentError::FrameLength(frame_len))?;
        let most = payload.min(usize::from(size));
        if len + most > longest || len - headers.network_at + most > usize::from(u16::MAX) {
            return Err(SegmentError::TooLong { size, headers: len, longest });
        }
        let mut private = [0; HEADERS_BYTES];
        private[..len].copy_from_slice(template);
        let field = headers.transport_at + if headers.tcp { tcp::CHECKSUM_AT } else { udp::CHECKSUM_AT };
        let mut pseudo = Checksum::new();
        pseudo.add(&private[field..field + 2]);
        pseudo.take_word(transport);
        private[field..field + 2].fill(0);
        Ok(Self { headers, head: private, size: usize::from(size), payload, pseudo })
    }

    /// Wire frames in all; 1 or more.
    #[inline]
    pub fn frames(&self) -> usize {
        self.payload.div_ceil(self.size).max(1)
    }

    /// Bytes of each frame's headers.
    #[inline]
    pub fn headers_len(&self) -> usize {
        self.headers.payload_at
    }

    /// Bytes of payload of frame `i`, from 0; 0 where there is none.
    #[inline]
    pub fn payload_len(&self, i: usize) -> usize {
        self.payload.saturating_sub(i.saturating_mul(self.size)).min(self.size)
    }

    /// Writes the headers of frame `i` to the front of `out`, which has [`Self::headers_len`] bytes
    /// or more. `payload` is the sum of the frame's payload.
    ///
    /// Each frame has its own lengths, sequence number, IP identification and checksums; FIN and
    /// PSH are the last one's, CWR the first one's (RFC 3168 §6.1.2).
    #[inline]
    pub fn write(&self, i: usize, payload: Checksum, out: &mut [u8]) {
        let Headers { network_at, transport_at, payload_at, v6, tcp: is_tcp } = self.headers;
        let out = &mut out[..payload_at];
        out.copy_from_slice(&self.head[..payload_at]);
        let last = i + 1 >= self.frames();
        let payload_len = self.payload_len(i);
        let transport_len = (payload_at - transport_at + payload_len) as u16;
        let (network, transport) = out[network_at..].split_at_mut(transport_at - network_at);
        if v6 {
            // All behind the fixed header (RFC 8200 §3).
            let behind = (network.len() - ipv6::HEADER_BYTES) as u16 + transport_len;
            network[ipv6::PAYLOAD_LEN].copy_from_slice(&behind.to_be_bytes());
        } else {
            let total = network.len() as u16 + transport_len;
            network[ipv4::TOTAL_LEN].copy_from_slice(&total.to_be_bytes());
            ipv4::add_to_identification(network, i as u16);
            ipv4::complete_checksum(network);
        }
        if is_tcp {
            tcp::add_to_sequence(transport, (i * self.size) as u32);
            if !last {
                transport[FLAGS_AT] &= !(FIN | PSH);
            }
            if i > 0 {
                transport[FLAGS_AT] &= !CWR;
            }
        } else {
            transport[udp::LEN_AT..udp::LEN_AT + 2].copy_from_slice(&transport_len.to_be_bytes());
        }
        let mut sum = self.pseudo;
        sum.add_word(transport_len);
        sum.add(transport);
        sum.add_sum(payload);
        let (field, value) = match is_tcp {
            true => (tcp::CHECKSUM_AT, sum.finish()),
            false => (udp::CHECKSUM_AT, sum.finish_nonzero()),
        };
        transport[field..field + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// The sum of frame `i`'s payload, which begins at `cursor` in the guest's segments; each run
    /// of it is given to `each`. The cursor moves on to the next frame's.
    #[inline]
    pub fn sum_payload(
        &self,
        i: usize,
        segments: &[Segment],
        cursor: &mut Cursor,
        mut each: impl FnMut(Segment),
    ) -> Checksum {
        let mut sum = Checksum::new();
        cursor.take(segments, self.payload_len(i), |run| {
            add_guest(&mut sum, &run);
            each(run);
        });
        sum
    }
}

/// Completes the checksum of a frame that stays whole (virtio 1.3 §5.1.6.2). The sum covers `head`
/// from `start` on, and `rest`, which follows it. It goes into the field `offset` bytes behind
/// `start`; what the field holds counts as well. Returns false, and does nothing, if the field is
/// not in `head`.
#[inline]
pub fn complete(head: &mut [u8], start: u16, offset: u16, rest: Checksum) -> bool {
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if head.len() < field + 2 {
        return false;
    }
    let mut sum = Checksum::new();
    sum.add(&head[start..]);
    sum.add_sum(rest);
    // 0 would mean "none" to UDP, and 0xffff is the same to all.
    head[field..field + 2].copy_from_slice(&sum.finish_nonzero().to_be_bytes());
    true
}

#[cfg(test)]
mod tests;
