//! The zerowire library: moving bytes between programs, virtual machines and the network without copying
//! them in user space, and saying of every byte whether it was copied, and why.
//!
//! * [`ledger`]: the counters that every path keeps, and the tables that the tools print.
//! * [`area`]: memory that is lent: buffers, leases, mapped files.
//! * [`send`]: sending lent memory over sockets, and being told when it is back.
//! * [`packet`]: whole frames through a packet socket's transmit ring.
//! * [`xdp`]: whole frames through AF_XDP.
//! * [`recv`]: receiving in place.
#![warn(missing_docs)]

pub mod area;
pub mod ledger;
pub mod packet;
pub mod recv;
pub mod send;
mod socket_error;
pub mod xdp;
