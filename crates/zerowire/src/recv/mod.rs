//! Receives in place. Payload appears in memory that the program has mapped; the program reads it
//! there and gives it back.
//!
//! * [`Receiver`]: sockets of this machine, many at a time, through io_uring or plain system calls.
//! * [`vsock`]: a guest's streams and messages, from `zerowire vsock`.
//!
//! # Who owns which bytes
//! A receiver owns one area, cut into buffers; zero-copy receive may have several. A buffer is
//! free, or the kernel may write it, or it is lent to the program as a [`Lease`]; never two of
//! these. Dropping the lease, on any thread, puts the buffer on a list that the next call to
//! receive empties. An area stays mapped as long as the receiver or any lease lives.

#[cfg(feature = "vsock")]
pub mod vsock;

mod backend;
mod core;
mod error;
mod events;
mod holdings;
mod id;
mod lease;
mod listen;
#[cfg(feature = "uring")]
mod multishot;
mod open;
mod options;
mod pace;
mod plain;
mod receiver;
mod refill;
#[cfg(feature = "uring")]
mod requests;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "zcrx")]
mod zcrx;

pub use crate::socket_error::SocketError;
pub use error::RecvError;
pub use events::{Events, ZeroCopied};
pub use id::{ConnectionId, ListenerId};
pub use lease::Lease;
pub use options::{RecvBackend, RecvOptions};
pub use receiver::{Arrival, Receiver, What};
#[cfg(feature = "zcrx")]
pub use zcrx::{Dmabuf, Flush, SharedArea, ZcrxOptions};
