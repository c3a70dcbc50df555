//! The zerowire library: moving bytes between programs, virtual machines and the network without copying
//! them in user space, and saying of every byte whether it was copied, and why.
//!
//! * [`ledger`]: the counters that every path keeps, and the tables that the tools print.
//! * [`uring`]: what io_uring can do here.
//! * [`recv`]: receiving in place.
//! * [`probe`]: what this kernel, user and network namespace can do, and how to get the missing part.
#![warn(missing_docs)]

pub mod ledger;
pub mod probe;
pub mod recv;
pub mod uring;
