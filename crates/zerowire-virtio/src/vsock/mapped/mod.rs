//! Mapped receive: a host program gets a guest's payload in memory that it shares with this process, in windows that are
//! published and released by one store each (docs/mapped-receive.md).

mod client;
mod direct;
mod memory;
mod windows;

pub use client::{AskedFor, MapClient, Stage, receive_request, send_bytes, send_reply};
pub use direct::{Direct, files as region_files, region_table};
pub use memory::ProgramFiles;
pub use windows::{Ended, Windows};

/// Who may map, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPolicy {
    /// Users, beside root and this process's own, whose programs may connect to `UDS.map`.
    pub allow: Vec<u32>,
    /// Bytes that a connection may map at most.
    pub max_bytes: u64,
    /// Programs that ask for it get the guest's memory to read, all of it, so that payload needs no copy. What else the
    /// guest keeps there they can read as well.
    pub share_guest_memory: bool,
}

impl Default for MapPolicy {
    fn default() -> Self {
        Self { allow: Vec::new(), max_bytes: 64 << 20, share_guest_memory: false }
    }
}
