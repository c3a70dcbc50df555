//! The C interface of zerowire; include/zerowire.h is its documentation.
//!
//! Handles are boxes that C owns until it closes them. No panic crosses into C: each function catches it, and reports -EIO
//! ("internal error"); a value that was being changed is not used further by the function that failed. Errors are negative
//! numbers of errno.h; the words are kept for each thread.
#![warn(missing_docs)]

mod guard;
mod vsock;

pub use guard::zw_last_error;
pub use vsock::*;
