//! What the tests of several crates share. Of the workspace it uses zerowire-wire alone, whose own
//! tests don't use this. Types that a test sees must be those of the crate it tests.

pub mod alloc;
pub mod captures;
pub mod cc;
pub mod conventions;
pub mod frames;
pub mod fuse;
pub mod limits;
pub mod linger;
pub mod mapped;
pub mod net;
mod not_run;
pub mod process;
pub mod random;
pub mod refuse;
pub mod terminal;
mod told;
mod wait;

pub use not_run::not_run;
pub use told::told_once;
pub use wait::{PATIENCE, SetAtEnd, measure_until, median_within, wait_until};
