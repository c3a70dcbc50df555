//! Frames between `zw-xdp`, which runs in a guest, and the wire outside of that guest's card.
//!
//! Each frame follows from its number and its length, so that either end can tell whether it came
//! as it was sent.

/// The card's address. QEMU gives it no frames to others, unless the guest has it promiscuous.
pub const CARD: &str = "52:54:00:77:00:01";

/// The same, and an address of nobody, locally administered: the wire's end.
pub const THERE: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];
/// See [`THERE`].
pub const HERE: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// EtherTypes for local experiments (IEEE 802): of plain frames, and of those that ask the wire's
/// end for some.
const PLAIN: [u8; 2] = [0x88, 0xb5];
const ASK: [u8; 2] = [0x88, 0xb6];

/// A file in the guest that tells `zw-xdp` to end.
pub const STOP: &str = "/tmp/zw-xdp.stop";

/// A file in the guest that tells `zw-xdp send` that the wire's end has read all, and reads no more
/// for now.
pub const READ: &str = "/tmp/zw-xdp.read";

/// Bytes of both addresses.
pub const ADDRESSES_BYTES: usize = 12;

/// The shortest frame on a wire, bytes.
const SHORTEST: usize = 60;

/// Frame `n` of `len` bytes from the wire's end to the card.
pub fn frame(n: u32, len: usize) -> Vec<u8> {
    filled(PLAIN.to_vec(), n, len)
}

/// Frame `n` of `len` bytes from the card to the wire's end.
pub fn sent(n: u32, len: usize) -> Vec<u8> {
    let mut f = frame(n, len);
    f[..ADDRESSES_BYTES].rotate_left(ADDRESSES_BYTES / 2);
    f
}

/// Lengths of the first frames of `zw-xdp send`, and of those of [`capture`]: one of each.
pub const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// Where `zw-xdp capture` writes it in the guest.
pub const CAPTURE: &str = "/tmp/zw-xdp.pcap";

/// A capture (pcap, version 2.4, microseconds, link type Ethernet) of frames of all [`LENGTHS`], as
/// [`sent`] makes them.
pub fn capture() -> Vec<u8> {
    let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    file.extend([2_u16, 4].map(u16::to_le_bytes).concat());
    // Time zone, accuracy, longest packet, link type.
    file.extend([0_u32, 0, 1 << 16, 1].map(u32::to_le_bytes).concat());
    for (n, len) in (0..).zip(LENGTHS) {
        file.extend([1, n, len as u32, len as u32].map(u32::to_le_bytes).concat());
        file.extend(sent(n, len));
    }
    file
}

/// From where on `zw-xdp send` changes a frame: behind its number.
pub const CHANGED_FROM: usize = 18;

/// The last frames of `zw-xdp send`, which it changes.
pub const HELD: u32 = 8;

/// The number of a frame of [`sent`]; None where it is another one.
pub fn number_of(frame: &[u8]) -> Option<u32> {
    let rest = frame.strip_prefix(&HERE)?.strip_prefix(&THERE)?.strip_prefix(&PLAIN)?;
    rest.first_chunk().map(|n| u32::from_be_bytes(*n))
}

/// A frame to the card with VLAN tags (IEEE 802.1Q) behind the addresses, which `len` counts.
pub fn tagged(tags: &[[u8; 4]], n: u32, len: usize) -> Vec<u8> {
    filled([&tags.concat()[..], &PLAIN].concat(), n, len)
}

/// The same as a UDP datagram over IPv4 from `port`: by the ports a card with several queues
/// chooses one.
pub fn flow(port: u16, n: u32, len: usize) -> Vec<u8> {
    let ip_len = (len - 14) as u16;
    let mut head = vec![0x08, 0x00];
    head.extend([0x45, 0]);
    head.extend(ip_len.to_be_bytes());
    // No checksum: nothing on the way is to look.
    head.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    head.extend(port.to_be_bytes());
    head.extend(4000_u16.to_be_bytes());
    head.extend((ip_len - 20).to_be_bytes());
    head.extend([0, 0]);
    filled(head, n, len)
}

/// The addresses, then `head`, then bytes that follow from `n`.
fn filled(head: Vec<u8>, n: u32, len: usize) -> Vec<u8> {
    let mut f = [&THERE[..], &HERE, &head].concat();
    f.extend(n.to_be_bytes());
    let mut state = n.wrapping_mul(0x9e37_79b9) | 1;
    while f.len() < len {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f.push(state as u8);
    }
    f.truncate(len);
    f
}

/// Asks the wire's end for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number of the first one; the others follow.
    pub first: u32,
    /// Bytes of each.
    pub len: u16,
    /// How many.
    pub count: u16,
}

impl Ask {
    /// The frame that asks, from the card.
    pub fn to_frame(self) -> Vec<u8> {
        let mut f = [&HERE[..], &THERE, &ASK].concat();
        f.extend(self.first.to_be_bytes());
        f.extend(self.len.to_be_bytes());
        f.extend(self.count.to_be_bytes());
        f.resize(SHORTEST, 0);
        f
    }

    /// What a frame asks for; None where it is another one.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        let rest = frame.strip_prefix(&HERE)?.strip_prefix(&THERE)?.strip_prefix(&ASK)?;
        let (first, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let count = rest.first_chunk()?;
        Some(Self {
            first: u32::from_be_bytes(*first),
            len: u16::from_be_bytes(*len),
            count: u16::from_be_bytes(*count),
        })
    }

    /// What it asks for.
    pub fn frames(self) -> impl Iterator<Item = Vec<u8>> {
        (0..u32::from(self.count)).map(move |i| frame(self.first.wrapping_add(i), self.len.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_asks_is_understood() {
        let ask = Ask { first: 70_000, len: 1514, count: 3 };
        assert_eq!(Ask::from_frame(&ask.to_frame()), Some(ask));
        assert_eq!(Ask::from_frame(&frame(1, 60)), None);
        assert_eq!(Ask::from_frame(&ask.to_frame()[..20]), None);
        let frames: Vec<_> = ask.frames().collect();
        assert_eq!(frames, [frame(70_000, 1514), frame(70_001, 1514), frame(70_002, 1514)]);
    }

    #[test]
    fn frames_have_their_length_and_differ() {
        for len in [14, 15, 60, 1514] {
            assert_eq!(frame(7, len).len(), len);
        }
        assert_ne!(frame(1, 60), frame(2, 60));
        assert_eq!((number_of(&sent(7, 60)), number_of(&frame(7, 60))), (Some(7), None));
        let f = tagged(&[[0x81, 0, 0, 5]], 3, 64);
        assert_eq!((f.len(), &f[12..18]), (64, &[0x81, 0, 0, 5, 0x88, 0xb5][..]));
        let f = flow(5000, 3, 100);
        assert_eq!((f.len(), &f[12..14], &f[16..18]), (100, &[8, 0][..], &[0, 86][..]));
        assert_eq!((&f[34..36], &f[38..40]), (&[0x13, 0x88][..], &[0, 66][..]));
    }
}
