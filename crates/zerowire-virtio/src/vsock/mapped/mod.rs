//! Mapped receive: a host program gets a guest's payload in memory that it shares with this process, in windows that are
//! published and released by one store each (docs/mapped-receive.md).

mod client;
mod memory;
mod windows;

pub use client::{AskedFor, MapClient, Stage, receive_request, send_reply};
pub use memory::ProgramFiles;
pub use windows::{Ended, Windows};

/// Who may map, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPolicy {
    /// Users, beside root and this process's own, whose programs may connect to `UDS.map`.
    pub allow: Vec<u32>,
    /// Bytes that a connection may map at most.
    pub max_bytes: u64,
}

impl Default for MapPolicy {
    fn default() -> Self {
        Self { allow: Vec::new(), max_bytes: 64 << 20 }
    }
}
