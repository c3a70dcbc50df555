//! The zerowire library moves bytes between programs, virtual machines and the network without
//! copying them in user space. It says of every byte whether it was copied, and why.
//!
//! * [`ledger`]: the counters that every path keeps, and the tables that the tools print.
//! * [`area`]: memory that is lent: buffers, leases, mapped files.
//! * [`send`]: sending lent memory over sockets, and being told when it is back.
//! * [`packet`]: whole frames through a packet socket's transmit ring.
//! * [`xdp`]: whole frames through AF_XDP.
//! * [`recv`]: receiving in place.
//!
//! # Features
//! All are on by default. Without them the library sends and receives by plain system calls.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `uring` | [`send::uring`], and io_uring below senders and receivers |
//! | `zcrx` | [`recv::RecvBackend::Queue`] and [`recv::RecvBackend::NoDevice`]; needs `uring` |
//! | `vsock` | [`recv::vsock`] |
//! | `packet` | [`packet`] |
//! | `xdp` | [`xdp`] |
#![warn(missing_docs)]
// What all paths stand on has parts for one of them alone, and for tests. With `testing`, which
// has all features, nothing is left over.
#![cfg_attr(not(feature = "testing"), allow(dead_code))]

pub mod area;
pub mod ledger;
#[cfg(feature = "packet")]
pub mod packet;
pub mod recv;
pub mod send;
mod setters;
mod socket_error;
#[cfg(feature = "xdp")]
pub mod xdp;
