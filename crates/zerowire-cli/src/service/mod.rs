//! The two protocols between a service and its manager, which is systemd as a rule.
//!
//! The manager hands sockets over at the start (`sockets`), and hears how the service fares
//! (`notify`). A program that nobody manages finds none of the environment variables, and does
//! without both.

mod notify;
mod sockets;

pub use notify::{Notifier, Watched};
pub use sockets::{HandedSockets, is_connected, lasts};
