//! The vhost-user wire protocol: messages, file descriptors, feature bits.
//!
//! vhost-user is how a VMM (the front end) hands the queues of a virtio device to another process
//! (the back end). Both exchange small messages with file descriptors attached, over a Unix stream
//! socket (QEMU `docs/interop/vhost-user.rst`). This crate encodes and decodes them for both sides.
//! It knows no device and keeps no state but a half-received message.
//!
//! - [`MessageSocket`] moves whole messages over a socket,
//! - [`Message`] is one received message with typed, checked readers,
//! - [`payload`] has the payload structs, each with `encode` and `decode`,
//! - [`features`] and [`protocol`] name the bits,
//! - [`retry_while_crowded`] sends descriptors as soon as the kernel takes them.
//!
//! # Who owns what
//! Received file descriptors become [`std::os::fd::OwnedFd`] before anything else is read. So
//! dropping a [`Message`], an error or a [`MessageSocket`] closes them. Sent descriptors are
//! borrowed.
//!
//! # Trust
//! The peer is not trusted. Sizes are bounded before memory is taken. At most [`MAX_FDS`]
//! descriptors are accepted a message. Each reader checks the exact size that the protocol gives.
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use zerowire_vhost_user::{MessageSocket, Request};
//!
//! let (a, b) = UnixStream::pair()?;
//! let (mut front, mut back) = (MessageSocket::new(a), MessageSocket::new(b));
//! front.send_request(Request::GetFeatures, false, &[], &[])?;
//! let message = back.recv()?.expect("the front end is still there");
//! assert_eq!(message.request()?, Request::GetFeatures);
//! back.send_reply(&message, &7u64.to_ne_bytes(), &[])?;
//! let reply = front.recv_reply(Request::GetFeatures)?;
//! assert_eq!(reply.u64()?, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(clippy::missing_errors_doc)]

mod crowd;
mod error;
pub mod features;
mod header;
mod message;
mod message_socket;
pub mod payload;
pub mod protocol;
mod request;

pub use crowd::retry_while_crowded;
pub use error::WireError;
pub use header::{FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, VERSION};
pub use message::{Message, VringFd};
pub use message_socket::MessageSocket;
pub use payload::{
    Config, Inflight, LogRegion, MAX_REGIONS, MemoryRegion, MemoryTable, SingleRegion, StateTransfer,
    VringAddr, VringState,
};
pub use request::Request;

/// The longest payload that is accepted or sent, in bytes.
///
/// The longest real one is the configuration space (12 + 256 bytes); the rest
/// is room for messages that the protocol may grow.
pub const MAX_BODY: usize = 4096;

/// The most file descriptors that one message may carry: one for each region
/// of SET_MEM_TABLE.
pub const MAX_FDS: usize = 8;
