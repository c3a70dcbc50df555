//! How a guest's connection reaches the host program that serves its port.
//!
//! ```text
//!  this process opens paths:  connect ─▶ socket
//!  it opens none:             ask ─▶ another process connects ─▶ the answer comes as a command
//! ```

mod own;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::packet::Kind;
use crate::socket;
use crate::table::SlotKey;
pub use own::{OwnEntry, OwnSockets};

/// Questions of a VM that are under way at most. Further connections wait as for a full backlog.
const MAX_QUESTIONS: usize = 64;

/// Ports of a VM at most that are known to have busy programs. A guest chooses them.
const MAX_BUSY: usize = 1024;

/// A file, however it is named: its device and inode.
type FileId = (u64, u64);

/// Which file a path leads to.
fn file_id(path: &Path) -> io::Result<FileId> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

/// The file that a path leads to, whatever takes its place later.
fn held(path: &Path) -> io::Result<(OwnedFd, FileId)> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    Ok((file, (stat.st_dev, stat.st_ino)))
}

/// Connects to the programs behind a VM's end on the host.
#[derive(Debug)]
pub struct PathConnector {
    uds: PathBuf,
    own: OwnSockets,
}

impl PathConnector {
    /// To the programs at `uds` with `_PORT` behind it, but to none of `own`.
    pub fn new(uds: &Path, own: OwnSockets) -> Self {
        Self { uds: uds.to_owned(), own }
    }

    /// Connects to the program that serves a port, without waiting.
    ///
    /// # Errors
    /// EAGAIN: the program's backlog is full. EACCES: the path leads to one of our own sockets.
    pub fn connect(&self, port: u32, kind: Kind) -> io::Result<OwnedFd> {
        let path = with_suffix(&self.uds, &format!("_{port}"));
        let (file, id) = held(&path)?;
        if self.own.has(id) {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let at = format!("/proc/self/fd/{}", file.as_raw_fd());
        match socket::connect(at.as_ref(), kind) {
            // There is no /proc here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => socket::connect(&path, kind),
            other => other,
        }
    }
}

/// A path with more text behind it.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// What another process hears of a connection that a guest wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQuestion {
    /// The VM's number ([`HandedVsock::number`](crate::HandedVsock::number)).
    pub vm: usize,
    /// Names the question: the answer has it too.
    pub number: u64,
    /// The port of the host.
    pub port: u32,
    /// The type of its socket.
    pub kind: Kind,
}

/// Another process, which connects for this one.
pub trait HostKeeper: fmt::Debug + Send + Sync {
    /// Asks, without waiting. The answer comes by
    /// [`VsockServer::answer`](crate::VsockServer::answer).
    ///
    /// # Errors
    /// The question did not go out. It goes again soon if the error is EAGAIN.
    fn ask(&self, question: HostQuestion) -> io::Result<()>;

    /// A front end of the VM with this number has come, or gone.
    fn connected(&self, _vm: usize, _now: bool) {}
}

/// What an attempt to connect has come to.
#[derive(Debug)]
pub(crate) enum Dialled {
    /// A socket, or none.
    Now(io::Result<OwnedFd>),
    /// The answer comes by itself.
    Later,
}

/// How a VM reaches host programs.
#[derive(Debug)]
pub(crate) enum HostConnector {
    /// By their paths.
    Paths(PathConnector),
    /// By asking another process.
    Asks(AskingConnector),
}

impl HostConnector {
    /// Connects to the program that serves a port; `number` names the connection at `place`.
    pub fn connect(&mut self, port: u32, kind: Kind, place: SlotKey, number: u64) -> Dialled {
        match self {
            Self::Paths(paths) => Dialled::Now(paths.connect(port, kind)),
            Self::Asks(asking) => asking.ask(port, kind, place, number),
        }
    }

    /// Whether the answer for a connection is under way.
    pub fn is_asked(&self, place: SlotKey) -> bool {
        matches!(self, Self::Asks(asking) if asking.under_way.contains_key(&place))
    }

    /// Whether another try for any connection is of use, when one was not even asked.
    pub fn has_room(&self) -> bool {
        !matches!(self, Self::Asks(asking) if asking.is_full)
    }

    /// Whether the backlog of a port's program was full when it was tried last, and another try is
    /// under way.
    pub fn is_tried(&self, port: u32, kind: Kind) -> bool {
        let Self::Asks(asking) = self else { return false };
        let program = (port, kind);
        asking.busy.contains(&program) && asking.under_way.values().any(|asked| *asked == program)
    }

    /// An answer has come. Returns whether one for this connection was under way.
    pub fn answered(&mut self, place: SlotKey) -> bool {
        match self {
            Self::Paths(_) => false,
            Self::Asks(asking) => asking.under_way.remove(&place).is_some(),
        }
    }

    /// The last answer for a port said that its program's backlog is full, or that it is not.
    pub fn set_busy(&mut self, port: u32, kind: Kind, is_busy: bool) {
        let Self::Asks(asking) = self else { return };
        if is_busy {
            // It tries those that it forgets once more.
            if asking.busy.len() >= MAX_BUSY {
                asking.busy.clear();
            }
            asking.busy.insert((port, kind));
        } else {
            asking.busy.remove(&(port, kind));
        }
    }
}

/// Has another process connect.
#[derive(Debug)]
pub(crate) struct AskingConnector {
    keeper: Arc<dyn HostKeeper>,
    vm: usize,
    /// Connections whose answers have not come, and their ports.
    under_way: HashMap<SlotKey, (u32, Kind)>,
    /// Ports whose programs had a full backlog when they were tried last, up to [`MAX_BUSY`].
    busy: HashSet<(u32, Kind)>,
    /// True: the last question could not be asked.
    is_full: bool,
}

impl AskingConnector {
    /// For the VM that has this number.
    pub fn new(keeper: Arc<dyn HostKeeper>, vm: usize) -> Self {
        Self { keeper, vm, under_way: HashMap::new(), busy: HashSet::new(), is_full: false }
    }

    fn ask(&mut self, port: u32, kind: Kind, place: SlotKey, number: u64) -> Dialled {
        let asked = match self.under_way.len() {
            MAX_QUESTIONS.. => Err(io::ErrorKind::WouldBlock.into()),
            _ => self.keeper.ask(HostQuestion { vm: self.vm, number, port, kind }),
        };
        self.is_full = asked.is_err();
        match asked {
            Ok(()) => {
                self.under_way.insert(place, (port, kind));
                Dialled::Later
            }
            Err(e) => Dialled::Now(Err(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Answers nothing.
    #[derive(Debug)]
    struct Nobody;

    impl HostKeeper for Nobody {
        fn ask(&self, _question: HostQuestion) -> io::Result<()> {
            Ok(())
        }
    }

    /// The guest gives each of them up, so no other answer for its port comes.
    #[test]
    fn a_guest_that_asks_for_all_ports_fills_no_memory() {
        let mut asking = AskingConnector::new(Arc::new(Nobody), 0);
        let busy = |connector: &HostConnector| match connector {
            HostConnector::Asks(asking) => asking.busy.len(),
            HostConnector::Paths(_) => 0,
        };
        let place = SlotKey { slot: 0, tenant: 0 };
        assert!(matches!(asking.ask(7, Kind::Stream, place, 1), Dialled::Later));
        let mut connector = HostConnector::Asks(asking);
        for port in 0..100_000 {
            connector.set_busy(port, Kind::Stream, true);
            assert!(busy(&connector) <= MAX_BUSY);
        }
        connector.set_busy(7, Kind::Stream, true);
        assert!(connector.is_tried(7, Kind::Stream));
        connector.set_busy(7, Kind::Stream, false);
        assert!(!connector.is_tried(7, Kind::Stream));
    }

    /// Somebody puts a link to one of our own sockets in the place of a program's, again and again.
    #[test]
    fn what_was_checked_is_what_is_connected() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let listen = |name| {
            let socket = UnixListener::bind(at(name)).expect("a socket");
            socket.set_nonblocking(true).expect("it waits not");
            socket
        };
        let (ours, program) = (listen("ours"), listen("program"));
        let own = OwnSockets::default();
        let _entry = own.enter(&[at("ours")]);
        let connector = PathConnector::new(&at("vm"), own);
        let ends = AtomicBool::new(false);
        let connected = std::thread::scope(|scope| {
            scope.spawn(|| {
                for target in ["ours", "program"].iter().cycle().take_while(|_| !ends.load(Ordering::Relaxed))
                {
                    symlink(target, at("next")).expect("a link");
                    std::fs::rename(at("next"), at("vm_1")).expect("it takes the place");
                }
            });
            let begin = std::time::Instant::now();
            let (mut tries, mut connected) = (0, 0);
            while tries < 10_000 || (connected == 0 && begin.elapsed() < zerowire_testkit::PATIENCE) {
                tries += 1;
                connected += usize::from(connector.connect(1, Kind::Stream).is_ok());
                let _ = program.accept();
            }
            ends.store(true, Ordering::Relaxed);
            connected
        });
        assert!(connected > 0, "the program is reached");
        assert!(ours.accept().is_err(), "nobody else is");
    }
}
