//! Benchmarks of zerowire's data paths. The program `zerowire-bench` is made of them.
//!
//! [`run_net`] measures the back end of `zerowire net` against the floor. The floor is a bare loop
//! of write() or read() on the same kind of tap with the same frame. It makes a network namespace
//! and taps of its own, touches no other interface, and needs root or a user namespace
//! (`unshare -Urn`).
//!
//! [`run_vsock`] measures the back end of `zerowire vsock` against the same bytes through a pair of
//! unix sockets. It needs no privileges. [`ports::run_ports`] measures its ports on interfaces
//! against a bare AF_XDP loop, the tap's floor and a plain packet socket.
//!
//! [`vsock_rx::run_table`] compares the ways in which a program receives by vsock.
//! [`packet_tx::run_packet_tx`] compares those in which it sends to a network device.
//! [`tcp_rx::run_tcp_rx`] compares those in which it receives TCP. [`peers::run_peers`] compares
//! zerowire with other programs that do the same work.
//!
//! Each of these is an [`experiment`]: cells, variants, and figures that follow from their runs.
//! [`measurements`] makes the tables and charts of pages from their JSON.
//!
//! Rules of measurement:
//!
//! - CPU time counts of all threads of the measured side.
//! - Variants are interleaved in rounds.
//! - The working set is stated.
//! - Every frame is accounted for, else the run is void.
//! - A build without optimisation moves an eighth: it shows that a measurement works, and its
//!   figures mean nothing.
// They panic where nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![warn(missing_docs)]

pub mod ab;
pub mod added;
pub mod amount;
pub mod area;
pub mod backend;
mod bare_calls;
pub mod case;
pub mod chart;
pub mod compare;
pub mod cpu;
pub mod experiment;
pub mod floor;
pub mod frame;
pub mod generator;
pub mod guest;
pub mod held;
pub mod idle;
pub mod machine;
pub mod measurements;
pub mod net;
pub mod netns;
pub mod options;
pub mod packet_tx;
pub mod peers;
pub mod ports;
pub mod programs;
pub mod report;
pub mod scaling;
pub mod stats;
mod sys;
pub mod table;
pub mod tcp_rx;
pub mod transfer;
pub mod vsock;
pub mod vsock_rx;
pub mod words;

pub use net::run_net;
pub use options::{NetOptions, PortKind};
pub use vsock::{VsockBenchOptions, run_vsock};
pub use zerowire_cli::WrongArguments;
