//! What several of the modules use.

pub mod program;
pub mod sockets;
pub mod streams;
