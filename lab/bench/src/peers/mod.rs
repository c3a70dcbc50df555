//! zerowire beside other programs that do the same work: `zerowire-bench peers`.
//!
//! ```text
//!   part    zerowire           the peers                     what moves
//!   net     zerowire net       dpdk-testpmd                  frames between a guest and a tap
//!   udp     zerowire net       passt                         datagrams from a guest
//!   vsock   zerowire vsock     vhost-device-vsock            a stream from or to a guest
//!   replay  zerowire replay    tcpreplay                     a capture to an interface (ifb)
//!   tcp     zerowire send      iperf3 -c                     a file, or a buffer, over a veth pair
//!           zerowire recv      iperf3 -s                     a stream over a veth pair
//! ```
//!
//! The experiment is the one of all benchmarks ([`crate::experiment`]): a cell is one of the rows
//! with its lengths, the variants are the programs. The guest without a VM drives foreign back ends
//! as it drives ours. CPU time is that of all threads of a program. A peer that is not installed is
//! named with the package that has it.

pub mod cell;
mod child;
pub mod find;
mod net;
pub mod options;
pub(crate) mod replay;
pub mod report;
mod run;
mod sides;
mod tcp;
mod udp;
mod vsock;

pub use cell::ComparedPart;
pub use find::NamedPeer;
pub use options::PeersOptions;
pub use report::PeersReport;
pub(crate) use report::part_text;
pub use run::run_peers;
