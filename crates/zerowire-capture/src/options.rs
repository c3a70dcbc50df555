//! What a capture is made with.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::filter::{CaptureFilter, LOOKED_AT_BYTES};

/// Most bytes of a packet that are kept: as other programs have it, which refuse longer packets.
pub const MAX_SNAPLEN: u32 = 262_144;

/// Where a capture goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureTarget {
    /// Standard output.
    Stdout,
    /// A file that is made, or emptied if it exists.
    File(PathBuf),
}

impl std::fmt::Display for CaptureTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// When another file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRotation {
    /// Bytes of a file at most.
    pub bytes: u64,
    /// Files at most, the present one included: 2 or more.
    pub files: u32,
}

/// What a capture is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureOptions {
    /// Where it goes.
    pub target: CaptureTarget,
    /// Bytes that are kept of a packet, 1 to [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// When another file begins; None for never.
    pub rotation: Option<CaptureRotation>,
    /// True: a symbolic link is refused, and a file that has other names.
    pub no_links: bool,
    /// Names of the interfaces to capture; none for all.
    pub only: Vec<String>,
    /// Which packets are kept; None for all.
    pub filter: Option<CaptureFilter>,
}

impl CaptureOptions {
    /// All packets, whole, in one file.
    pub fn new(target: CaptureTarget) -> Self {
        Self { target, snaplen: MAX_SNAPLEN, rotation: None, no_links: false, only: Vec::new(), filter: None }
    }

    zerowire_wire::setters! {
        snaplen: u32,
        rotation: Option<CaptureRotation>,
        no_links: bool,
        only: Vec<String>,
        filter: Option<CaptureFilter>,
    }

    /// Bytes of a packet that the writer gets: those that are kept, and those that the filter looks
    /// at.
    pub(crate) fn copied_bytes(&self) -> u32 {
        if self.filter.is_some() { self.snaplen.max(LOOKED_AT_BYTES) } else { self.snaplen }
    }
}

/// Why a capture can't begin. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file, or standard output, can't be had.
    #[error("the capture can't be written to {target}: {cause}")]
    Open {
        /// Where it should go.
        target: CaptureTarget,
        /// What is wrong.
        cause: io::Error,
    },
    /// It goes into a pipe without a reader.
    #[error("the capture can't be written to {0}: nobody reads the pipe; start its reader first")]
    NoReader(CaptureTarget),
    /// Only a regular file can be renamed and followed by another one.
    #[error("a capture with several files needs a regular file, which {0} is not")]
    NotAFile(CaptureTarget),
    /// No thread.
    #[error("no thread to write the capture: {0}")]
    Thread(io::Error),
}
