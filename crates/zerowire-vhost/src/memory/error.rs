//! What can be wrong with the memory that a front end describes.

use std::io;

use thiserror::Error;

use super::file::NotMemory;
use super::region_pool::{OWN_REGIONS, SHARED_REGIONS};
use super::table::{MAX_BYTES, MAX_REGIONS};

/// What can be wrong with a memory table. The text is what the log shows.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of no bytes.
    #[error("memory region at guest address {0:#x} is empty")]
    Empty(u64),
    /// Addresses that leave the address space.
    #[error("memory region {what} {start:#x} + {len:#x} leaves the 64-bit address space")]
    Overflow {
        /// Which address.
        what: &'static str,
        /// Where it starts.
        start: u64,
        /// The region's length.
        len: u64,
    },
    /// Not on page bounds.
    #[error(
        "memory region at guest address {guest_addr:#x}: length {len:#x} or file offset {offset:#x} is not a multiple of its file's page size {page}"
    )]
    Unaligned {
        /// The region's guest-physical address.
        guest_addr: u64,
        /// Its length.
        len: u64,
        /// Its offset in the file.
        offset: u64,
        /// Page size of the file.
        page: u64,
    },
    /// The file is shorter than the region: touching the rest would kill the process with SIGBUS.
    #[error(
        "memory region at guest address {guest_addr:#x} needs {need:#x} bytes of its file, which has {have:#x}: use a memory-backend-memfd or -file of the full size with share=on"
    )]
    FileTooShort {
        /// The region's guest-physical address.
        guest_addr: u64,
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// Its file can't be mapped as memory.
    #[error("memory region at guest address {guest_addr:#x}: {cause}")]
    File {
        /// The region's guest-physical address.
        guest_addr: u64,
        /// What to give instead.
        cause: NotMemory,
    },
    /// Two regions overlap.
    #[error("memory regions at guest addresses {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
    /// Too many regions.
    #[error("more than {MAX_REGIONS} memory regions, or more than {} TiB of memory", MAX_BYTES >> 40)]
    TooMany,
    /// Too many regions of all VMs.
    #[error(
        "a memory region beyond {OWN_REGIONS}, where the VMs of this process have {SHARED_REGIONS} such ones together: serve \
         VMs with many memory devices by processes of their own, or give them fewer and larger ones"
    )]
    PoolEmpty,
    /// A region to remove that is not there.
    #[error("no memory region at guest address {guest_addr:#x} with length {len:#x} to remove")]
    NotFound {
        /// The address asked for.
        guest_addr: u64,
        /// The length asked for.
        len: u64,
    },
    /// The kernel refused the mapping.
    #[error("memory region at guest address {guest_addr:#x} can't be mapped: {cause}")]
    Map {
        /// The region's guest-physical address.
        guest_addr: u64,
        /// What the kernel said.
        cause: io::Error,
    },
}
