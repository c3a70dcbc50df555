//! Sends over io_uring: SEND_ZC and SENDMSG_ZC, from registered areas where that is possible.
//!
//! * [`Engine`]: one ring, its registered areas, and any number of sockets on it.
//! * `backend`: one socket on an engine, as the sender drives it.
//!
//! An entry is handed over with `MSG_DONTWAIT`, so its result is known when the call returns, as
//! with a plain send. So no stream has two requests under way, and a partial send is continued
//! where it ended. Nothing has to be cancelled when a sender goes. Compared with `MSG_ZEROCOPY`, a
//! batch of payloads costs one system call and notifications cost none. Registered memory is not
//! looked up page by page.
//!
//! # Who owns which bytes
//! The sender's window owns the payloads. A ring never does, so it may be closed at any time. But
//! then its notifications are lost, and `tombstone` tells when the kernel has let go.

mod areas;
pub(crate) mod backend;
mod batch;
mod book;
mod core;
mod engine;
mod error;
mod straggle;
mod tombstone;

pub use engine::{Engine, EngineOptions, Registration};
pub use error::EngineError;
pub use zerowire_sys::uring::ring::Threads;
