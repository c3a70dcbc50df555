//! The packet header (virtio 1.3 §5.10.6).

pub use zerowire_wire::vsock::{
    HEADER_LEN, HOST_CID, MAX_PAYLOAD, Op, SEQ_EOM as RW_EOM, SEQ_EOR as RW_EOR, SHUT_BOTH as SHUTDOWN_BOTH,
    SHUT_RECEIVE as SHUTDOWN_RCV, SHUT_SEND as SHUTDOWN_SEND,
};

/// The CID that stands for any one, never an address of a packet.
pub const CID_ANY: u64 = 0xffff_ffff;

/// Kind of a socket.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u16)]
pub enum SocketType {
    /// Bytes without bounds.
    Stream = 1,
    /// Messages whose bounds are kept.
    Seqpacket = 2,
}

impl SocketType {
    /// The type with this number.
    pub fn from_number(number: u16) -> Option<SocketType> {
        match number {
            1 => Some(SocketType::Stream),
            2 => Some(SocketType::Seqpacket),
            _ => None,
        }
    }
}

/// The header of a packet. Plain numbers; nothing is checked, so that tests
/// can send any.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PacketHeader {
    /// CID of the sender.
    pub src_cid: u64,
    /// CID of the receiver.
    pub dst_cid: u64,
    /// Port of the sender.
    pub src_port: u32,
    /// Port of the receiver.
    pub dst_port: u32,
    /// Bytes of payload.
    pub len: u32,
    /// A [`SocketType`].
    pub socket_type: u16,
    /// An [`Op`].
    pub op: u16,
    /// `SHUTDOWN_…` or `RW_…`.
    pub flags: u32,
    /// Bytes that the sender can hold for this connection (§5.10.6.3).
    pub buf_alloc: u32,
    /// Bytes of this connection that the sender has taken out of its buffer,
    /// modulo 2^32.
    pub fwd_cnt: u32,
}

impl PacketHeader {
    /// The bytes in memory, little-endian.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.socket_type.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.op.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        bytes
    }

    /// Reads the bytes in memory.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> PacketHeader {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
        let longest = |at: usize| u64::from(long(at)) | u64::from(long(at + 4)) << 32;
        PacketHeader {
            src_cid: longest(0),
            dst_cid: longest(8),
            src_port: long(16),
            dst_port: long(20),
            len: long(24),
            socket_type: word(28),
            op: word(30),
            flags: long(32),
            buf_alloc: long(36),
            fwd_cnt: long(40),
        }
    }

    /// The operation, if it is a known one.
    pub fn op(&self) -> Option<Op> {
        Op::new(self.op)
    }

    /// The socket's type, if it is a known one.
    pub fn socket_type(&self) -> Option<SocketType> {
        SocketType::from_number(self.socket_type)
    }

    /// The header of an answer: addresses exchanged, same type, without
    /// payload, flags and credit.
    pub fn answer(&self, op: Op) -> PacketHeader {
        PacketHeader {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            socket_type: self.socket_type,
            op: op as u16,
            ..PacketHeader::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_order() {
        let header = PacketHeader {
            src_cid: 0x0807_0605_0403_0201,
            dst_cid: 0x100f_0e0d_0c0b_0a09,
            src_port: 0x1413_1211,
            dst_port: 0x1817_1615,
            len: 0x1c1b_1a19,
            socket_type: 0x1e1d,
            op: 0x201f,
            flags: 0x2423_2221,
            buf_alloc: 0x2827_2625,
            fwd_cnt: 0x2c2b_2a29,
        };
        let bytes: Vec<u8> = (1..=44).collect();
        assert_eq!(header.to_bytes()[..], bytes);
        assert_eq!(PacketHeader::from_bytes(&header.to_bytes()), header);
        assert_eq!((header.op(), header.socket_type()), (None, None));
    }
}
