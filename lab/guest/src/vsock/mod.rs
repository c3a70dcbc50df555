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
pub mod header;
mod lease;
mod pool;
mod rx;
mod stack;
mod tx;

use zerowire_vhost_user::features;

pub use crate::frames::Layout;
pub use driver::{VsockDriver, VsockOptions, VsockQueues};
pub use header::{
    CID_ANY, HEADER_LEN, HOST_CID, MAX_PAYLOAD, Op, PacketHeader, RW_EOM, RW_EOR, SHUTDOWN_BOTH,
    SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType,
};
pub use lease::{InPlaceCounters, Packet, PacketLease};
pub use pool::{PayloadPool, StreamSum};
pub use rx::{RxPacket, VsockRx};
pub use stack::{
    ConnId, ConnState, Dequeued, Drain, Drained, POLL_DATA, POLL_END, POLL_NOTHING, Received, StackCounters,
    StackOptions, VsockStack,
};
pub use tx::VsockTx;

/// The queue toward the guest (§5.10.2).
pub const RX_QUEUE: u16 = 0;
/// The queue from the guest.
pub const TX_QUEUE: u16 = 1;

/// Feature bit 0: STREAM sockets (§5.10.3).
pub const F_STREAM: u64 = 1 << 0;
/// Feature bit 1: SEQPACKET sockets.
pub const F_SEQPACKET: u64 = 1 << 1;

/// Every feature that this driver can use.
pub const SUPPORTED: u64 = features::VERSION_1
    | features::ACCESS_PLATFORM
    | features::RING_INDIRECT_DESC
    | features::RING_EVENT_IDX
    | features::IN_ORDER
    | F_STREAM
    | F_SEQPACKET;
