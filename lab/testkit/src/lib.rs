//! What the tests of several crates share. Of the workspace only zerowire-wire is used here, whose
//! own tests don't use this: types that a test sees must be those of the crate it tests.

pub mod alloc;
pub mod cc;
pub mod frames;
pub mod mapped;
pub mod net;
pub mod process;
pub mod refuse;
mod wait;

pub use wait::{PATIENCE, wait_until};
