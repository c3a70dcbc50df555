//! Shared by the tests, beside what the tests of all devices share.

pub mod end;
pub mod harness;
pub mod raw;

pub use zerowire_rig::*;
