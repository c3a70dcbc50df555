//! What servers of every device check and open before they start.

use std::collections::{HashMap, HashSet};
use std::env::current_dir;
use std::io;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use super::listen::{Endpoint, ListenError, Listener};
use super::refusal::{RefusalKind, ServerRefusal};
use super::refuser;

/// VMs that one process serves at most: each takes a few descriptors and threads.
pub const MAX_VMS: usize = 256;

/// Why a server of any device can't start. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum StartError {
    /// Too many VMs, or none.
    #[error("{0} VMs: one process serves 1 to {MAX_VMS}")]
    Count(usize),
    /// Two VMs with one name.
    #[error("two VMs are named '{0}': names must differ")]
    Name(String),
    /// No name, or one that threads can't have.
    #[error("VM name {0:?}: give each VM a name of at least one character, and no control characters in it")]
    BadName(String),
    /// The socket can't be had.
    #[error("VM {vm}: {cause}")]
    Listen { vm: String, cause: ListenError },
    /// Two sockets on one path: `other` is the VM before, or the same.
    #[error("VM {vm}: socket path {} is taken by a socket of VM {other}: give another one", path.display())]
    PathTaken { vm: String, other: String, path: PathBuf },
    /// A setting is out of its range. The text names the option of `zerowire` that sets it.
    #[error("VM {vm}: {text}")]
    Limit { vm: String, text: String },
    /// A thread or an eventfd can't be had.
    #[error("VM {vm}: {cause}; see 'ulimit -u' and 'ulimit -n'")]
    Resources { vm: String, cause: io::Error },
}

impl StartError {
    /// Checks where a VM listens that comes later.
    ///
    /// # Errors
    /// On a descriptor, whose number may mean something else by then. But for one that was handed
    /// over, and whose VM has left.
    pub fn check_late(vm: &str, endpoint: &Endpoint) -> Result<(), Self> {
        match *endpoint {
            Endpoint::Fd(fd) if !refuser::refuses(fd) => {
                let text = format!(
                    "descriptor {fd} can only be handed over at the start: give the path of a socket"
                );
                Err(Self::Limit { vm: vm.to_owned(), text })
            }
            _ => Ok(()),
        }
    }

    /// A VM on a socket that was handed over can't be another device: a late descriptor is refused.
    pub(super) fn handed_over(vm: &str) -> Self {
        let text = "its socket was handed over at the start, so its device can't change while the program runs: it stays \
                    as it is; restart the program";
        Self::Limit { vm: vm.to_owned(), text: text.to_owned() }
    }
}

impl ServerRefusal for StartError {
    fn kind(&self) -> RefusalKind {
        match self {
            Self::BadName(_) => RefusalKind::Malformed,
            Self::Count(_) | Self::Name(_) | Self::PathTaken { .. } => RefusalKind::Conflict,
            Self::Limit { .. } => RefusalKind::Unsupported,
            Self::Listen { cause, .. } => cause.kind(),
            Self::Resources { .. } => RefusalKind::Passing,
        }
    }
}

/// Checks that there are not too many VMs, and that each has a name of its own.
pub fn check_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Result<(), StartError> {
    if names.len() > MAX_VMS {
        return Err(StartError::Count(names.len()));
    }
    let mut before = HashSet::new();
    for name in names {
        // Threads are named after their VM, and so are lines of the log.
        if name.is_empty() || name.contains(char::is_control) {
            return Err(StartError::BadName(name.to_owned()));
        }
        if !before.insert(name) {
            return Err(StartError::Name(name.to_owned()));
        }
    }
    Ok(())
}

/// Which path is whose.
#[derive(Default)]
pub struct Paths(HashMap<PathBuf, String>);

impl Paths {
    /// The path is this VM's, unless it is another one's or was its own before.
    pub fn claim(&mut self, path: PathBuf, vm: &str) -> Result<(), StartError> {
        match self.0.insert(normal(&path), vm.to_owned()) {
            None => Ok(()),
            Some(other) => Err(StartError::PathTaken { vm: vm.to_owned(), other, path }),
        }
    }

    /// The paths, and the VM of each.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.0.iter().map(|(path, vm)| (path.as_path(), vm.as_str()))
    }
}

/// A path from the root on, without `.` and doubled slashes. Other ways to write one path twice are
/// found when the socket is bound.
pub fn normal(path: &Path) -> PathBuf {
    let folder = if path.is_absolute() { PathBuf::new() } else { current_dir().unwrap_or_default() };
    folder.join(path).components().filter(|c| !matches!(c, Component::CurDir)).collect()
}

/// Takes the descriptors among the end points. This has to happen before anything is opened
/// ([`Listener::inherit`]).
pub fn inherit<'a>(
    endpoints: impl Iterator<Item = (&'a str, &'a Endpoint)>,
) -> Result<Vec<Option<Listener>>, StartError> {
    endpoints
        .map(|(vm, endpoint)| match endpoint {
            Endpoint::Path(_) => Ok(None),
            Endpoint::Fd(fd) => Listener::inherit(*fd)
                .map(Some)
                .map_err(|cause| StartError::Listen { vm: vm.to_owned(), cause }),
        })
        .collect()
}
