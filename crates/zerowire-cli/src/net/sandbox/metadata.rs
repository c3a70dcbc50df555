//! Metadata of a VM whose children come and go.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use zerowire_net::MetadataSource;

/// Metadata that a child takes, or has taken.
#[derive(Clone)]
pub(super) struct KeptMetadata {
    pub(super) source: MetadataSource,
    /// What the file had when it was read, in a form that was checked.
    text: Arc<str>,
}

impl KeptMetadata {
    /// Reads them from their file.
    pub(super) fn read(source: MetadataSource) -> Result<Self, String> {
        let text = source.text()?;
        source.parse(&text)?;
        Ok(Self { source, text: text.into() })
    }

    /// A file that a child reads once.
    pub(super) fn file(&self) -> Result<OwnedFd, String> {
        let write = || -> std::io::Result<OwnedFd> {
            let mut file = File::from(memfd_create("metadata", MemfdFlags::CLOEXEC)?);
            file.write_all(self.text.as_bytes())?;
            file.rewind()?;
            Ok(file.into())
        };
        write().map_err(|e| format!("metadata: {e}"))
    }
}
