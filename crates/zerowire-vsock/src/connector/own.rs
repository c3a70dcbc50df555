//! The sockets on which this process listens.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use super::{FileId, file_id};

/// Sockets on which this process listens, of all VMs: guests are not connected to them.
#[derive(Clone, Debug, Default)]
pub struct OwnSockets(Arc<RwLock<HashSet<FileId>>>);

impl OwnSockets {
    /// Enters the sockets of a VM, which are there by now.
    pub fn enter(&self, paths: &[PathBuf]) -> OwnEntry {
        let ids: Vec<_> = paths.iter().filter_map(|path| file_id(path).ok()).collect();
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(&ids);
        OwnEntry { all: self.clone(), ids }
    }

    /// Whether a file is one of them.
    pub(super) fn has(&self, id: FileId) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }
}

/// The sockets of a VM, entered until this value is dropped.
#[derive(Debug)]
pub struct OwnEntry {
    all: OwnSockets,
    ids: Vec<FileId>,
}

impl Drop for OwnEntry {
    fn drop(&mut self) {
        let mut all = self.all.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id| !self.ids.contains(id));
    }
}
