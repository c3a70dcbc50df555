//! The benchmark of the vsock device: `zerowire-bench vsock`.
//!
//! A guest without a VM ([`guest`]) exchanges streams, or messages, with a program of the host
//! ([`host`]) through a back end process ([`device`]). The floor ([`floor`]) moves the same bytes
//! through a pair of unix sockets.
//!
//! The guest has the driver's CPU. The back end, or the thread of the floor in its place, has the
//! other one. The host's program shares one of them ([`host::HostCpu`]).

pub mod attack;
pub mod case;
pub mod compare;
pub mod crowd;
pub mod device;
pub mod floor;
pub mod guest;
pub mod host;
pub mod idle;
pub mod latency;
pub mod options;
pub mod report;
pub mod run;
pub mod sibling;
pub mod weapons;

pub use case::SocketKind;
pub use options::{EndOptions, VsockBenchOptions};
pub use report::VsockReport;
pub use run::run_vsock;
