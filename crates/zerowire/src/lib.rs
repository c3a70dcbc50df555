//! The zerowire library: moving bytes between programs, virtual machines and the network without copying
//! them in user space, and saying of every byte whether it was copied, and why.
//!
//! * [`ledger`]: the counters that every path keeps, and the tables that the tools print.
//! * [`uring`]: the io_uring operations that the `io-uring` crate lacks.
//! * [`probe`]: what this kernel, user and network namespace can do, and how to get the missing part.
#![warn(missing_docs)]

pub mod ledger;
pub mod probe;
pub mod uring;
