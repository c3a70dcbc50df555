//! Managing a running server: HTTP and JSON over a unix socket, and metrics over TCP.
//!
//! ```text
//! client ──▶ serve (accepts) ──▶ a thread a connection: conversation ──▶ api ──▶ Manage
//!                                  http (bytes, no I/O)      routes, body, metrics
//! ```
//!
//! A connection costs a thread with a small stack, and its buffers have bounds. What can be managed
//! stands behind the trait [`Manage`], and what a VM tells behind [`VmReport`]: this module knows
//! no device, no socket of a VM and no port.

mod api;
mod body;
mod capture;
mod connections;
mod conversation;
#[cfg(test)]
mod described;
mod http;
mod manage;
mod metrics;
mod options;
mod routes;
mod serve;

pub use capture::{CaptureControl, CaptureTable};
pub use manage::{Manage, ManageError, ManagedVm, VmReport};
pub use metrics::{MetricsPage, Moved, OfDirection, OfReason, OfVm};
pub use options::ControlArgs;
pub use serve::Service;
