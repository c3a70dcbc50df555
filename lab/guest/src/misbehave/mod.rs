//! What a guest must not do, for tests of devices against hostile guests.
//!
//! - [`RawQueue`]: a queue whose every byte can be written,
//! - [`RingAttack`]: broken chains, indices and tables, each by its rule,
//! - [`bad_headers`], [`Toggler`]: wrong offload fields, memory that changes
//!   in flight,
//! - [`bad_packets`]: wrong vsock headers, each in one field, and their answers,
//! - [`patterned`]: a guest that sees each byte which the device writes,
//! - [`malformed_messages`]: broken vhost-user messages.
//!
//! Nothing here harms the process that uses it: only guest memory and the
//! device's socket are written.

mod control;
mod header;
pub mod patterned;
mod raw_queue;
mod ring_attack;
mod toggler;
mod vsock;

pub use control::{FdKind, Malformed, malformed_messages};
pub use header::bad_headers;
pub use raw_queue::{RawDesc, RawQueue};
pub use ring_attack::{Expect, RingAttack};
pub use toggler::Toggler;
pub use vsock::{Answer, BadPacket, Fault, bad_packets};
