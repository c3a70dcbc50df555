//! The packet header (virtio 1.3 §5.10.6). Plain numbers; nothing is checked, so that tests can
//! send any.

pub use zerowire_wire::vsock::{
    HEADER_LEN, HOST_CID, Header as PacketHeader, Kind as SocketType, MAX_PAYLOAD, Op, SEQ_EOM as RW_EOM,
    SEQ_EOR as RW_EOR, SHUT_BOTH as SHUTDOWN_BOTH, SHUT_RECEIVE as SHUTDOWN_RCV, SHUT_SEND as SHUTDOWN_SEND,
};

/// The CID that stands for any one, never an address of a packet.
pub const CID_ANY: u64 = 0xffff_ffff;
