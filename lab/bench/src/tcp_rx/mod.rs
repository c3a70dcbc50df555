//! How a program receives TCP, and what it costs: `zerowire-bench tcp-rx`.
//!
//! Ways ([`TcpWay`]): `select` and read (what iperf does), `epoll` and read, a loop of `recv`,
//! io_uring reads, and the back ends of the library. Numbers of connections are the rows.
//!
//! The bytes come from a thread of this process over the loopback interface of a network namespace
//! of its own ([`run`]). Or they come from an iperf3 client elsewhere ([`iperf3`], [`external`]),
//! which is the only way to reach a NIC's queue. CPU time is that of the receiving thread.

mod bare;
pub mod external;
pub mod iperf3;
mod library;
pub mod options;
pub mod report;
pub mod run;
pub mod traffic;
mod uring_read;
pub mod way;

pub use options::{Client, TcpRxOptions};
pub use run::run_tcp_rx;
pub use way::{TcpWay, WayName};
