//! The zerowire library moves bytes between programs, virtual machines and the network without
//! copying them in user space. It says of every byte whether it was copied, and why.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//! use zerowire::recv::{Receiver, RecvOptions, What};
//! use zerowire::send::{SendOptions, Sender};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let socket = TcpStream::connect(listener.local_addr()?)?;
//! let mut sender = Sender::new(socket.into(), SendOptions::default())?;
//! sender.send(vec![7; 10_000])?; // the sender keeps the memory until the kernel has done with it
//!
//! let mut receiver = Receiver::new(RecvOptions::default())?;
//! receiver.add(listener.accept()?.0.into())?;
//! let (mut batch, mut bytes) = (Vec::new(), 0);
//! while bytes < 10_000 {
//!     receiver.recv(&mut batch, None)?;
//!     for arrival in batch.drain(..) {
//!         if let What::Data(lease) = arrival.what {
//!             assert!(lease.iter().all(|byte| *byte == 7)); // read where it was received
//!             bytes += lease.len();
//!         } // dropping the lease gives its buffer back
//!     }
//! }
//! println!("{:?}", receiver.counters().snapshot().copied_bytes); // {"kernel": 10000}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`ledger`]: the counters that every path keeps, and the tables that the tools print.
//! * [`area`]: memory that is lent: buffers, leases, mapped files.
//! * [`send`]: sending lent memory over sockets, and being told when it is back.
//! * [`packet`]: whole frames through a packet socket's transmit ring.
//! * [`xdp`]: whole frames through AF_XDP.
//! * [`recv`]: receiving in place.
//!
//! # Programs to start from
//! They lie in `examples/`: `cargo run --release -p zerowire --example NAME -- --help`.
//!
//! * `file_server`: serves a file by HTTP and lends its pages.
//! * `proxy`: forwards TCP connections and lends what it receives.
//! * `zcrx_receiver`: receives into a NIC's queue, or says why not and receives another way.
//! * `xdp_generator`: sends numbered frames through AF_XDP.
//! * `mapped_vsock`: maps the receive buffers of a vsock connection and hashes what comes.
//! * `ledger_json`: sends over loopback and prints both ends' ledgers as JSON.
//! * `send_area`: sends standard input from buffers that it lends.
//!
//! # Features
//! All but `refill` are on by default. Without them the library sends and receives by plain system
//! calls.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `uring` | [`send::uring`], and io_uring below senders and receivers |
//! | `zcrx` | [`recv::RecvBackend::Queue`] and [`recv::RecvBackend::NoDevice`]; needs `uring` |
//! | `vsock` | [`recv::vsock`] |
//! | `packet` | [`packet`] |
//! | `xdp` | [`xdp`] |
//! | `refill` | cheaper system calls where the kernel guards its returns (docs/send.md) |
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]
// What all paths stand on has parts for one of them alone, and for tests. With `testing`, which
// has all features, nothing is left over.
#![cfg_attr(not(feature = "testing"), allow(dead_code))]

pub mod area;
pub mod ledger;
mod memlock;
#[cfg(feature = "packet")]
pub mod packet;
pub mod recv;
pub mod send;
mod socket_error;
#[cfg(feature = "xdp")]
pub mod xdp;
