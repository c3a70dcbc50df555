//! What can be wrong with the memory that a front end describes.

use std::io;

use thiserror::Error;

use super::file::NotMemory;
use super::region_pool::{OWN_REGIONS, SHARED_REGIONS};
use super::table::{MAX_BYTES, MAX_REGIONS};

/// What can be wrong with a memory table. The text is what the log shows.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum MemoryError {
    /// A region of no bytes.
    #[error("memory region at guest address {0:#x} is empty")]
    Empty(u64),
    /// Addresses that leave the address space.
    #[error("memory region {what} {start:#x} + {len:#x} leaves the 64-bit address space")]
    Overflow { what: &'static str, start: u64, len: u64 },
    /// Not on page bounds.
    #[error(
        "memory region at guest address {guest_addr:#x}: length {len:#x} or file offset {offset:#x} is not a multiple of its file's page size {page}"
    )]
    Unaligned { guest_addr: u64, len: u64, offset: u64, page: u64 },
    /// The file is shorter than the region: touching the rest would kill the process with SIGBUS.
    #[error(
        "memory region at guest address {guest_addr:#x} needs {need:#x} bytes of its file, which has {have:#x}: use a memory-backend-memfd or -file of the full size with share=on"
    )]
    FileTooShort { guest_addr: u64, need: u64, have: u64 },
    /// Its file can't be mapped as memory.
    #[error("memory region at guest address {guest_addr:#x}: {cause}")]
    File { guest_addr: u64, cause: NotMemory },
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
    NotFound { guest_addr: u64, len: u64 },
    /// The kernel refused the mapping.
    #[error("memory region at guest address {guest_addr:#x} can't be mapped: {cause}")]
    Map { guest_addr: u64, cause: io::Error },
}
