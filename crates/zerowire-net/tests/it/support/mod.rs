//! Shared by the tests, beside what the tests of all devices share.

pub mod neighbour;
pub mod pair;
pub mod pattern;
pub mod toggle;
pub mod wire;

pub use zerowire_rig::*;
