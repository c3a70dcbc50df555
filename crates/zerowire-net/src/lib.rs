//! virtio-net (virtio 1.3 §5.1) over vhost-user, without a copy in user space on the usual path.
//!
//! * [`Server`] serves VMs. It has a control thread and a device a VM (`device`), and a worker
//!   thread (`worker`) for each queue pair in use while a front end is connected.
//! * [`transmit`] and [`receive`]: a frame's way between a ring and a port; [`header`]: what is
//!   checked; [`FrameGuard`]: what a guest may send; [`offload`]: checksums and segments in
//!   software; [`io`]: batches of system calls.
//! * [`port`]: where frames go.
//!
//! [`Server`], [`VmConfig`], [`port::PortSpec`], [`Policy`] and the statistics are for programs.
//! The rest is public for tests and benchmarks, and is not a stable interface.
#![warn(missing_docs)]

pub mod announce;
mod capture;
pub mod config;
mod device;
pub mod features;
mod fleet;
pub mod guard;
pub mod header;
pub mod io;
mod link;
mod metadata;
pub mod offload;
mod policy;
pub mod port;
pub mod receive;
mod reload;
mod server;
mod stats;
pub mod transmit;
mod vm;
mod worker;

pub use fleet::{Fleet, NetChange};
pub use guard::FrameGuard;
pub use link::{LinkObserver, LinkState, LinkStats, ToldLink};
pub use metadata::MetadataSource;
pub use policy::{GATHER_MAX_BYTES, PathMode, Policy, RX_COPYBREAK_BYTES};
pub use receive::Receive;
pub use reload::try_open;
pub use server::{ChangeError, Server, VmInfo};
pub use stats::{DirectionStats, Negotiated, PortState, ServerStats, VmStats};
pub use transmit::Transmit;
pub use vm::{FrontEndWatch, Handed, ServerError, VmConfig, check as check_vms};
pub use zerowire_vhost::limit::Limits;

/// The longest frame that is carried, bytes, without the virtio-net header. That is an IP packet of
/// 65 535 bytes behind an Ethernet header and two VLAN tags. tun itself would take 1 MiB.
pub const MAX_FRAME_BYTES: usize = 65_535 + 14 + 8;

/// Length of an Ethernet header, bytes.
pub const ETH_HEADER_BYTES: usize = zerowire_wire::ethernet::HEADER_BYTES;
