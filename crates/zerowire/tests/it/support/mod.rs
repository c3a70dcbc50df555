//! What several of the modules use.

pub mod sockets;
pub mod streams;
