//! The headers of each wire frame that a guest's long frame becomes.

use thiserror::Error;
use zerowire_vhost::memory::Segment;
use zerowire_wire::tcp::{CWR, FIN, FLAGS_AT, PSH};
use zerowire_wire::{ipv4, ipv6, tcp, udp};

use super::headers::{HEADERS_BYTES, Headers};
use super::{AddGuest, Checksum, Cursor};

/// Why a frame can't be cut. It is dropped; the text appears in the log once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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
        let len = headers.len();
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
        self.headers.len()
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
            let id = u16::from_be_bytes([network[4], network[5]]).wrapping_add(i as u16);
            network[ipv4::IDENTIFICATION].copy_from_slice(&id.to_be_bytes());
            network[ipv4::CHECKSUM].fill(0);
            let mut sum = Checksum::new();
            sum.add(network);
            network[ipv4::CHECKSUM].copy_from_slice(&sum.finish().to_be_bytes());
        }
        if is_tcp {
            let first = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = first.wrapping_add((i * self.size) as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
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
            sum.add_guest(&run);
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
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Example, cut, naive, segments_of};
    use super::*;
    use crate::offload::Kind;

    fn examples() -> impl Strategy<Value = Example> {
        let kinds = prop_oneof![Just(Kind::Tcp4), Just(Kind::Tcp6), Just(Kind::Udp)];
        (kinds, any::<bool>(), 0usize..3, 0usize..11, any::<u8>(), 0usize..9000, any::<u32>()).prop_map(
            |(kind, v6, tags, options, flags, payload, seed)| Example {
                kind,
                v6: kind == Kind::Tcp6 || v6 && kind == Kind::Udp,
                tags,
                options,
                flags,
                payload,
                seed,
            },
        )
    }

    #[test]
    fn a_long_frame_becomes_what_the_model_says() {
        for kind in [Kind::Tcp4, Kind::Tcp6, Kind::Udp] {
            let example = Example {
                kind,
                v6: kind == Kind::Tcp6,
                tags: 0,
                options: 3,
                flags: 0xff,
                payload: 60_000,
                seed: 1,
            };
            let frames = cut(&example.header(1400), &example.frame(), 1518, 1).expect("segments");
            assert_eq!(frames.len(), 43);
            assert!(frames == naive(&example.frame(), &example, 1400));
            if kind != Kind::Udp {
                let flags = |i: usize| frames[i][example.transport_at() + 13];
                assert_eq!([flags(0), flags(1), flags(41), flags(42)], [0xf6, 0x76, 0x76, 0x7f]);
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let example =
            Example { kind: Kind::Tcp4, v6: false, tags: 0, options: 0, flags: 0x10, payload: 5000, seed: 2 };
        let frame = example.frame();
        let headers = Headers::find(&frame[..100], Kind::Tcp4, 34, 16).expect("headers");
        let new = |len, size, longest| Segmenter::new(&frame[..100], len, headers, size, longest);
        assert!(new(5054, 1464, 1518).is_ok());
        let long = SegmentError::TooLong { size: 1465, headers: 54, longest: 1518 };
        assert_eq!(new(5054, 1465, 1518).err(), Some(long));
        assert_eq!(new(5054, 0, 1518).err(), Some(SegmentError::NoSize));
        for len in [0, 33, 53, 1 << 20] {
            assert_eq!(new(len, 1448, 1518).err(), Some(SegmentError::FrameLength(len)), "{len}");
        }
        // Lengths of 16 bits never wrap, whatever the port takes.
        assert!(new(65_557, 65_496, usize::MAX).is_err());
        assert!(new(65_557, 65_495, usize::MAX).is_ok());
        // A frame without payload is one frame.
        let bare = new(54, 1448, 1518).expect("a frame");
        assert_eq!((bare.frames(), bare.payload_len(0), bare.payload_len(1)), (1, 0, 0));
    }

    #[test]
    fn a_checksum_is_completed_where_it_is_asked_for() {
        let example =
            Example { kind: Kind::Udp, v6: false, tags: 1, options: 2, flags: 0, payload: 777, seed: 3 };
        let mut frame = example.frame();
        let start = example.transport_at();
        let want = example.checksum(&frame);
        let (head, rest) = frame.split_at_mut(start + 9);
        let mut sum = Checksum::new();
        segments_of(rest, 100).iter().for_each(|s| sum.add_guest(s));
        assert!(complete(head, start as u16, 6, sum));
        assert_eq!(head[start + 6..start + 8], want.to_be_bytes());
        let before = head.to_vec();
        assert!(!complete(head, start as u16, 8, sum), "outside");
        assert!(!complete(head, u16::MAX, u16::MAX, sum), "far outside");
        assert_eq!(head, before);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_frame_in_any_pieces_becomes_what_the_model_says(
            example in examples(), size in 1u16..3000, piece in 1usize..5000,
        ) {
            let frame = example.frame();
            match cut(&example.header(size), &frame, 3838, piece) {
                Ok(frames) => {
                    // One that is not longer than a segment stays as it is, but for its checksum.
                    if example.payload > usize::from(size) {
                        prop_assert!(frames == naive(&frame, &example, usize::from(size)));
                    } else {
                        prop_assert_eq!(frames.len(), 1);
                        let field = example.transport_at() + usize::from(example.kind.checksum_offset());
                        prop_assert_eq!(&frames[0][field..field + 2], &example.checksum(&frame).to_be_bytes());
                        prop_assert_eq!(&frames[0][..field], &frame[..field]);
                        prop_assert_eq!(&frames[0][field + 2..], &frame[field + 2..]);
                    }
                }
                Err(e) => prop_assert!(e.contains("longer than 3838"), "{}", e),
            }
        }

        #[test]
        fn hostile_headers_never_lead_outside(
            example in examples(),
            header in prop::array::uniform10(any::<u8>()),
            wild in any::<bool>(),
            changes in prop::collection::vec((0usize..150, any::<u8>()), 0..5),
            keep in 0usize..400,
        ) {
            let mut frame = example.frame();
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            if keep < 150 {
                frame.truncate(keep);
            }
            let asked = if wild { header } else { example.header(u16::from_le_bytes([header[4], header[5]])) };
            if let Ok(frames) = cut(&asked, &frame, 1518, 1000) {
                prop_assert!(!frames.is_empty());
                let bytes: usize = frames.iter().map(Vec::len).sum();
                prop_assert!(bytes >= frame.len());
                prop_assert!(frames.len() == 1 || frames.iter().all(|f| f.len() <= 1518));
            }
        }
    }
}
