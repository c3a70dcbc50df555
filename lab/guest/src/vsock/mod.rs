//! The virtio-vsock driver (virtio 1.3 §5.10), at three levels.
//!
//! - [`VsockDriver`] negotiates and sets the queues up,
//! - [`VsockTx`] and [`VsockRx`] move packets with any header,
//! - [`VsockStack`] has connections with credit, and checks everything that
//!   the device sends. Their payload is copied out, or read in place
//!   ([`VsockStack::dequeue`]).
//!
//! The event queue is not used: what it tells (that connections ended because
//! the guest was moved) does not happen here.

mod driver;
mod lease;
mod pool;
mod rx;
mod stack;
mod tx;

use zerowire_vhost_user::features;

pub use crate::frames::Layout;
pub use driver::{VsockDriver, VsockOptions, VsockQueues};
pub use lease::{InPlaceCounters, Packet, PacketLease};
pub use pool::{PayloadPool, StreamSum};
pub use rx::{RxPacket, VsockRx};
pub use stack::{
    ConnId, ConnState, Dequeued, Drain, Drained, POLL_DATA, POLL_END, POLL_NOTHING, Received, StackCounters,
    StackOptions, VsockStack,
};
pub use tx::VsockTx;
// The packet header is plain numbers; nothing is checked, so that tests can send any.
pub use zerowire_wire::vsock::{
    HEADER_LEN, HOST_CID, Header as PacketHeader, Kind as SocketType, MAX_PAYLOAD, Op, SEQ_EOM as RW_EOM,
    SEQ_EOR as RW_EOR, SHUT_BOTH as SHUTDOWN_BOTH, SHUT_RECEIVE as SHUTDOWN_RCV, SHUT_SEND as SHUTDOWN_SEND,
};

/// The CID that stands for any one, never an address of a packet.
pub const CID_ANY: u64 = 0xffff_ffff;

/// The queue toward the guest (§5.10.2).
pub const RX_QUEUE: u16 = 0;
/// The queue from the guest.
pub const TX_QUEUE: u16 = 1;

/// Every feature that this driver can use.
pub const SUPPORTED: u64 = features::VERSION_1
    | features::ACCESS_PLATFORM
    | features::RING_INDIRECT_DESC
    | features::RING_EVENT_IDX
    | features::IN_ORDER
    | features::VSOCK_STREAM
    | features::VSOCK_SEQPACKET;
