//! Shared by the tests, beside what the tests of all devices share.

pub mod cloud_hypervisor;

pub use zerowire_rig::*;
