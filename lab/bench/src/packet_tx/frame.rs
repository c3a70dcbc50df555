//! The head of a frame: Ethernet, IPv4 and UDP, and the virtio-net header before it where the
//! kernel must cut the frame.

use super::lab::{SOURCE, SOURCE_PORT, TARGET, TARGET_PORT, TxLab};

/// Ethernet, IPv4 and UDP headers.
pub const HEAD_LEN: usize = 14 + 20 + 8;
/// The virtio-net header of packet sockets, without num_buffers (virtio 1.3 §5.1.6).
pub const VNET_LEN: usize = 10;
/// UDP payload of a frame of the usual MTU of 1500. Longer payloads go as frames to be cut into
/// such segments.
pub const SEGMENT: usize = 1500 - 20 - 8;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM` and `VIRTIO_NET_HDR_GSO_UDP_L4` (virtio 1.3 §5.1.6).
const NEEDS_CSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;
/// Where the UDP header begins, and its checksum in it.
pub const CSUM_START: u16 = 34;
/// See [`CSUM_START`].
pub const CSUM_OFFSET: u16 = 6;

/// Headers for payloads of one length.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// The virtio-net header; zeroes for a frame in one piece.
    pub vnet: [u8; VNET_LEN],
    /// Ethernet, IPv4 and UDP.
    pub bytes: [u8; HEAD_LEN],
    /// Whether the kernel must cut the frame.
    pub gso: bool,
}

impl Head {
    /// Headers for `payload` bytes to the target of `lab`. `cut`: a payload that is longer than a
    /// segment is left to be cut by the device, or by nobody where the device takes the frame as it
    /// is; else it is one long frame.
    pub fn new(lab: &TxLab, payload: usize, cut: bool) -> Self {
        let gso = cut && payload > SEGMENT;
        let (to, from) = lab.macs();
        let mut bytes = [0; HEAD_LEN];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        ipv4(&mut bytes[14..34], (HEAD_LEN - 14 + payload) as u16);
        let udp_len = (8 + payload) as u16;
        bytes[34..36].copy_from_slice(&SOURCE_PORT.to_be_bytes());
        bytes[36..38].copy_from_slice(&TARGET_PORT.to_be_bytes());
        bytes[38..40].copy_from_slice(&udp_len.to_be_bytes());
        let mut vnet = [0; VNET_LEN];
        if gso {
            // The sum of the pseudo header; the device completes it for each segment. A frame in
            // one piece has none, which 0 says (RFC 768).
            let words = [SOURCE.octets(), TARGET.octets()].concat();
            let sum = add(0, &words) + 17 + u32::from(udp_len);
            bytes[40..42].copy_from_slice(&fold(sum).to_be_bytes());
            vnet[0] = NEEDS_CSUM;
            vnet[1] = GSO_UDP_L4;
            vnet[2..4].copy_from_slice(&(HEAD_LEN as u16).to_le_bytes());
            vnet[4..6].copy_from_slice(&(SEGMENT as u16).to_le_bytes());
            vnet[6..8].copy_from_slice(&CSUM_START.to_le_bytes());
            vnet[8..10].copy_from_slice(&CSUM_OFFSET.to_le_bytes());
        }
        Self { vnet, bytes, gso }
    }

    /// Bytes before the payload as a packet socket takes them: with the virtio-net header where
    /// there is one.
    pub fn bytes_before(&self) -> usize {
        HEAD_LEN + if self.gso { VNET_LEN } else { 0 }
    }

    /// Writes them to the front of `to`.
    #[inline]
    pub fn write(&self, to: &mut [u8]) {
        if self.gso {
            to[..VNET_LEN].copy_from_slice(&self.vnet);
            to[VNET_LEN..VNET_LEN + HEAD_LEN].copy_from_slice(&self.bytes);
        } else {
            to[..HEAD_LEN].copy_from_slice(&self.bytes);
        }
    }
}

fn ipv4(header: &mut [u8], total_len: u16) {
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    // Don't fragment (RFC 791 §3.1).
    header[6] = 0x40;
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&SOURCE.octets());
    header[16..20].copy_from_slice(&TARGET.octets());
    let sum = !fold(add(0, header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Adds big-endian 16-bit words (RFC 1071); `bytes` is even.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).fold(sum, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
