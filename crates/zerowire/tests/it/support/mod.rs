//! What several of the modules use.

pub mod mapped;
pub mod sockets;
pub mod streams;
