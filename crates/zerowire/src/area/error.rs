//! Why an area or a mapping could not be made.

use std::io;
use thiserror::Error;

/// Why an area or a mapping could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AreaError {
    /// The length of a buffer is out of range.
    #[error("a buffer of {0} bytes is out of range: give 1 byte to 1 GiB")]
    BufferBytes(usize),
    /// The number of buffers is out of range.
    #[error(
        "{0} buffers are out of range: give 1 to 16777216 (and a whole length that fits the address space)"
    )]
    Buffers(usize),
    /// No huge pages are free.
    #[error(
        "{pages} huge pages of 2 MiB are needed and the pool has {free} free: as root, write a larger number to /proc/sys/vm/nr_hugepages, or use normal pages"
    )]
    HugePages {
        /// Pages that the area needs.
        pages: usize,
        /// HugePages_Free of /proc/meminfo, "unknown" when it can't be read.
        free: String,
    },
    /// The mapping was refused.
    #[error("mapping {len} bytes failed: {cause}")]
    Map {
        /// Length asked for.
        len: usize,
        /// The system's answer.
        cause: io::Error,
    },
    /// The file can't be opened or its length can't be read.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// Not a regular file: only files of a fixed length can be mapped.
    #[error("{0} is not a regular file: read it and send owned buffers instead")]
    NotRegular(String),
    /// A slice reaches past the end of the file.
    #[error("the slice {from}..{to} reaches past the end of the file ({len} bytes)")]
    PastEnd {
        /// First byte.
        from: u64,
        /// Byte behind the last one.
        to: u64,
        /// Length of the file when it was mapped.
        len: u64,
    },
}

impl AreaError {
    /// The errno behind it, or the one that says the same.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::BufferBytes(_) | Self::Buffers(_) | Self::NotRegular(_) | Self::PastEnd { .. } => {
                Some(libc::EINVAL)
            }
            Self::HugePages { .. } => Some(libc::ENOMEM),
            Self::Map { cause, .. } | Self::File { cause, .. } => cause.raw_os_error(),
        }
    }
}
