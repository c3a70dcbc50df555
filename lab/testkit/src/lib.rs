//! What the tests of several crates share. No crate of the workspace is used here: types that a
//! test sees must be those of the crate it tests.

pub mod alloc;
pub mod cc;
pub mod frames;
pub mod net;
pub mod process;
pub mod refuse;
mod wait;

pub use wait::{PATIENCE, wait_until};
