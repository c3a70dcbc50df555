//! Where a capture comes from: a file, or standard input; plain, or gzip.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;

use super::{CaptureError, Reader};

/// First bytes of gzip (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A capture by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `-`.
    Stdin,
    /// A path, which may name a pipe.
    File(PathBuf),
}

/// A reader over either.
pub type Stream = Box<dyn Read + Send>;

impl Input {
    /// From the command line.
    pub fn new(name: &Path) -> Self {
        if name.as_os_str() == "-" { Self::Stdin } else { Self::File(name.to_owned()) }
    }

    /// In messages.
    pub fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Whether it can be read a second time: a regular file.
    pub fn can_be_read_again(&self) -> bool {
        match self {
            Self::Stdin => false,
            Self::File(path) => path.metadata().is_ok_and(|m| m.is_file()),
        }
    }

    /// Opens it from the beginning.
    pub fn open(&self) -> Result<Reader<Stream>> {
        let raw: Stream = match self {
            Self::Stdin => Box::new(io::stdin()),
            Self::File(path) => {
                Box::new(File::open(path).with_context(|| format!("can't open {}", path.display()))?)
            }
        };
        let reader = unpack(raw).map_err(|cause| CaptureError::Read { packets: 0, cause });
        reader.and_then(Reader::open).with_context(|| self.name())
    }
}

/// Unpacks gzip, also several members in a row, and leaves anything else as it is.
pub fn unpack(mut raw: Stream) -> io::Result<Stream> {
    let mut head = Vec::with_capacity(GZIP.len());
    raw.by_ref().take(GZIP.len() as u64).read_to_end(&mut head)?;
    let packed = head == GZIP;
    let whole = Cursor::new(head).chain(raw);
    Ok(if packed { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}
