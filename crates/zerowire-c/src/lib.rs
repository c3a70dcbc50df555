//! The C interface of zerowire. include/zerowire.h is generated from these sources: doc comments
//! here are its documentation, and are written for readers of C. After a change:
//! `ZEROWIRE_UPDATE_HEADER=1 cargo test -p zerowire-c`.
//!
//! Handles are boxes that C owns until it closes them. What C passes is made into safe types at the
//! border (src/arguments.rs). No panic crosses into C: each function
//! catches it, and reports -EIO ("internal error"); a value that was being changed is not used
//! further by the function that failed. Errors are negative numbers of errno.h; the words are kept
//! for each thread.
#![warn(missing_docs)]

mod area;
mod arguments;
mod arrays;
mod failure;
mod frames;
mod frames_types;
mod guard;
mod held;
mod lent;
mod library;
mod memory;
mod recv;
mod recv_shared;
mod recv_types;
mod send;
mod send_report;
mod send_types;
mod types;
mod vsock;

pub use area::*;
pub use frames::*;
pub use frames_types::*;
pub use library::*;
pub use memory::*;
pub use recv::*;
pub use recv_shared::*;
pub use recv_types::*;
pub use send::*;
pub use send_report::*;
pub use send_types::*;
pub use types::*;
pub use vsock::*;
