//! virtio-vsock over vhost-user: streams and messages between a guest and the host, and between
//! guests (virtio 1.3 §5.10).
//!
//! [`VsockServer`] serves VMs: a control thread for each VM, and one data thread for each set of
//! VMs that share groups (`group`, `threads`). VMs come and go while it runs. It, [`VsockConfig`],
//! [`VsockLimits`], [`mapped::MapPolicy`] and the statistics are for programs. The rest is public
//! for tests, and is not a stable interface.
#![warn(missing_docs)]

mod capture;
mod config;
mod connection;
mod connector;
mod counters;
pub mod credit;
mod device;
mod doors;
mod error;
mod fleet;
mod forecast;
mod group;
pub mod held;
mod lists;
mod loans;
pub mod mapped;
mod names;
mod paces;
pub mod protocol;
mod queues;
mod reload;
mod request_rate;
mod rings;
mod server;
mod sets;
mod socket;
mod stats;
mod switch;
pub mod system_calls;
mod table;
mod threads;
mod vm;

pub use config::{DEFAULT_GROUP, VsockConfig, check_vms, group_sets};
pub use connector::{HostKeeper, HostQuestion, OwnEntry, OwnSockets, PathConnector};
pub use counters::{KickTotals, LimitTotals, VsockCounters, VsockTotals};
pub use doors::HostSockets;
pub use error::VsockServerError;
pub use fleet::VsockFleet;
pub(crate) use group::GroupVm;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use group::testing;
pub use names::names_file;
pub use reload::try_open;
pub use request_rate::RequestRate;
use serde::{Deserialize, Serialize};
pub use server::{HandedVsock, VsockChangeError, VsockServer, VsockVmInfo};
pub use sets::{SetMember, joined_set};
pub use stats::{VsockServerStats, VsockVmStats};
pub use zerowire_vhost::limit::Limits;
use zerowire_vhost_user::features as f;
pub use zerowire_wire::vsock as packet;

/// The queue toward the guest.
pub const RX_QUEUE: u16 = 0;
/// The queue from the guest.
pub const TX_QUEUE: u16 = 1;
/// The event queue.
pub const EVENT_QUEUE: u16 = 2;

/// `VIRTIO_VSOCK_F_STREAM` (virtio 1.3 §5.10.3).
pub const F_STREAM: u64 = 1 << 0;
/// `VIRTIO_VSOCK_F_SEQPACKET` (virtio 1.3 §5.10.3).
pub const F_SEQPACKET: u64 = 1 << 1;

/// Features that the device offers. Programs that hold payload in the guest's memory (`lends`) give
/// chains back in another order.
pub fn offered(lends: bool) -> u64 {
    let order = if lends { 0 } else { f::IN_ORDER };
    order
        | f::VERSION_1
        | f::RING_INDIRECT_DESC
        | f::RING_EVENT_IDX
        | f::ACCESS_PLATFORM
        | f::VHOST_LOG_ALL
        | f::VHOST_USER_PROTOCOL_FEATURES
        | F_STREAM
        | F_SEQPACKET
}

/// Bounds of one VM's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VsockLimits {
    /// Bytes that a guest may send on a connection before the other side has taken them; 4 KiB to
    /// 16 MiB. They are the credit that it is given (`buf_alloc`, virtio 1.3 §5.10.6.3), and the
    /// most that waits for a slow host program.
    pub buffer_bytes: u32,
    /// Connections at once; further ones are reset. 1 to 65536.
    pub max_connections: usize,
    /// Of these, the ones that one other guest may have with this one; further ones are reset. A
    /// quarter where it is None, but 2 at least.
    pub peer_connections: Option<usize>,
    /// Of these, the ones that all other guests together may have, so that the rest are the host's.
    /// Seven eighths, rounded up, where it is None.
    pub sibling_connections: Option<usize>,
    /// Connection requests of the guest to the host that the device handles a second, and at once.
    /// It resets further ones unseen. Up to 1000000; 0 for no bound.
    pub request_rate: u32,
}

impl Default for VsockLimits {
    fn default() -> Self {
        Self {
            buffer_bytes: 256 << 10,
            max_connections: 8192,
            peer_connections: None,
            sibling_connections: None,
            request_rate: 10_000,
        }
    }
}

impl VsockLimits {
    zerowire_wire::setters! {
        buffer_bytes: u32,
        max_connections: usize,
        peer_connections: Option<usize>,
        sibling_connections: Option<usize>,
        request_rate: u32,
    }

    /// Connections with one other guest at most.
    pub fn of_peer(&self) -> usize {
        self.peer_connections.unwrap_or((self.max_connections / 4).max(2))
    }

    /// Connections with all other guests at most.
    pub fn of_siblings(&self) -> usize {
        self.sibling_connections.unwrap_or(self.max_connections - self.max_connections / 8)
    }
}
