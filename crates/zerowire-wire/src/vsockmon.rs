//! What a vsock packet has in front of its payload in a capture (linux/vsockmon.h): a header of its
//! own, and that of its transport.
//!
//! ```text
//!   0 source CID (8)    8 destination CID (8)   16 source port (4)   20 destination port (4)
//!  24 operation (2)    26 transport (2)         28 bytes of the transport's header (2)
//!  30 zeros (2)        32 the transport's header, virtio 1.3 §5.10.6
//! ```

use crate::vsock::{HEADER_LEN, Header, Op};

/// Bytes of both headers.
pub const PREFIX_BYTES: usize = OWN_BYTES + HEADER_LEN;

/// Bytes of the header of its own.
const OWN_BYTES: usize = 32;

/// AF_VSOCK_TRANSPORT_VIRTIO.
const TRANSPORT_VIRTIO: u16 = 2;

/// AF_VSOCK_OP_…, as Linux has them for virtio (virtio_transport_build_skb).
fn operation(op: Option<Op>) -> u16 {
    match op {
        None => 0,
        Some(Op::Request | Op::Response) => 1,
        Some(Op::Rst | Op::Shutdown) => 2,
        Some(Op::CreditUpdate | Op::CreditRequest) => 3,
        Some(Op::Rw) => 4,
    }
}

/// What stands in front of the payload of a packet with this header.
pub fn prefix(header: &Header) -> [u8; PREFIX_BYTES] {
    let (mut bytes, transport) = ([0; PREFIX_BYTES], header.to_bytes());
    // Both headers begin with the same fields.
    bytes[..24].copy_from_slice(&transport[..24]);
    bytes[24..26].copy_from_slice(&operation(header.op()).to_le_bytes());
    bytes[26..28].copy_from_slice(&TRANSPORT_VIRTIO.to_le_bytes());
    bytes[28..30].copy_from_slice(&(HEADER_LEN as u16).to_le_bytes());
    bytes[OWN_BYTES..].copy_from_slice(&transport);
    bytes
}

/// CIDs and ports of source and destination; None where the packet ends before.
pub fn ends(packet: &[u8]) -> Option<((u64, u32), (u64, u32))> {
    let packet = packet.first_chunk::<OWN_BYTES>()?;
    let cid = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| packet[at + i]));
    let port = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| packet[at + i]));
    Some(((cid(0), port(16)), (cid(8), port(20))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vsock::Kind;

    #[test]
    fn both_headers_stand_in_front() {
        let header = Header {
            src_cid: 3,
            dst_cid: 2,
            src_port: 1024,
            dst_port: 80,
            len: 5,
            kind: Kind::Stream as u16,
            op: Op::Rw as u16,
            ..Header::default()
        };
        let bytes = prefix(&header);
        assert_eq!(bytes[..16], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [0, 4, 0, 0, 80, 0, 0, 0]);
        assert_eq!(bytes[24..32], [4, 0, 2, 0, 44, 0, 0, 0], "payload, by virtio, behind 44 bytes");
        assert_eq!(bytes[32..], header.to_bytes());
        assert_eq!(ends(&bytes), Some(((3, 1024), (2, 80))));
        assert_eq!(ends(&bytes[..31]), None);
    }

    #[test]
    fn each_operation_has_the_number_of_linux() {
        for (op, number) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (6, 3), (7, 3), (8, 0)] {
            let bytes = prefix(&Header { op, ..Header::default() });
            assert_eq!(bytes[24..26], [number, 0], "{op}");
        }
    }
}
