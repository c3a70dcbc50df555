//! Refuses front ends on sockets that were handed over, while no VM takes them from there.
//!
//! Who hands a socket over has it as well, so it listens on when the VM drains or has left. A front
//! end that connects would wait for an answer for ever, and all of QEMU with it. If the socket were
//! shut down, it would be so at the next start, too. So a thread a socket accepts what connects,
//! and closes it at once. A front end can make that take long, by a descriptor that it has sent and
//! that lingers. The others of its own VM wait then.
//!
//! ```text
//! a VM takes front ends ─▶ it drains, or its listener is dropped ─▶ refused ─▶ a VM takes it again
//! ```
//! A program does that while it has a [`FrontEndRefusal`]. Without one who connects waits for the
//! next process, as at a restart.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use zerowire_sys::lock;

use super::listen::accept_now;

/// Connections of a socket that are closed at once, at most, and the pause behind that.
const AT_ONCE: usize = 128;
const PAUSE: Duration = Duration::from_millis(10);

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 16 * 1024;

/// A file, however it is named: its device and inode. A socket holds its own one, so no other file
/// gets this inode meanwhile.
type FileId = (u64, u64);

/// Which file a path leads to.
fn file_id(path: &Path) -> io::Result<FileId> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

/// Where a socket listens that was handed over.
struct HandedName {
    path: PathBuf,
    /// None: nothing is there, as far as this process sees.
    file: Option<FileId>,
}

/// A socket where front ends are refused.
struct RefusedSocket {
    /// The number that it was handed over with.
    number: RawFd,
    /// That of its thread, which closes it: that can take long, too.
    socket: Weak<UnixListener>,
    /// Tells the thread that it is refused no more.
    wake: Arc<OwnedFd>,
}

impl RefusedSocket {
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Refuser {
    sockets: Vec<RefusedSocket>,
    /// The names of these and of those that VMs have, by the same numbers.
    names: BTreeMap<RawFd, HandedName>,
    /// Whether sockets are refused that no VM takes front ends from.
    refuses: bool,
}

static REFUSER: Mutex<Refuser> =
    Mutex::new(Refuser { sockets: Vec::new(), names: BTreeMap::new(), refuses: false });

impl Refuser {
    /// Starts the thread that refuses front ends on a socket.
    fn begin(&mut self, number: RawFd, socket: UnixListener) -> io::Result<()> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (socket, for_thread) = (Arc::new(socket), wake.clone());
        let refused = RefusedSocket { number, socket: Arc::downgrade(&socket), wake };
        let thread = std::thread::Builder::new().name("refuse".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || run(&socket, &for_thread))?;
        self.sockets.push(refused);
        Ok(())
    }

    /// Gives a socket back to a VM.
    fn take(&mut self, number: RawFd) -> Option<io::Result<UnixListener>> {
        let at = self.sockets.iter().position(|refused| refused.number == number)?;
        let socket = self.sockets[at].socket.upgrade()?.try_clone();
        if socket.is_ok() {
            self.sockets.swap_remove(at).wake();
        }
        Some(socket)
    }
}

/// While this value is there, front ends are refused on sockets that this process was started with
/// and that no VM takes them from.
#[derive(Debug)]
#[must_use = "front ends are refused while this value is there"]
pub struct FrontEndRefusal(());

impl FrontEndRefusal {
    /// Begins when the VMs of the start have their sockets.
    pub fn begin() -> Self {
        lock(&REFUSER).refuses = true;
        Self(())
    }
}

impl Drop for FrontEndRefusal {
    fn drop(&mut self) {
        let mut refuser = lock(&REFUSER);
        refuser.refuses = false;
        std::mem::take(&mut refuser.sockets).iter().for_each(RefusedSocket::wake);
    }
}

/// A socket was handed over with this number. The file at its path is its own by now.
pub(super) fn enter(number: RawFd, socket: &UnixListener) {
    let path = socket.local_addr().ok().and_then(|address| Some(address.as_pathname()?.to_owned()));
    let name = path.map(|path| HandedName { file: file_id(&path).ok(), path });
    let mut refuser = lock(&REFUSER);
    refuser.names.remove(&number);
    refuser.names.extend(name.map(|name| (number, name)));
}

/// Where the socket listens that was handed over with this number, if it has a name.
pub(super) fn path(number: RawFd) -> Option<PathBuf> {
    lock(&REFUSER).names.get(&number).map(|name| name.path.clone())
}

/// Refuses front ends on the socket that was handed over with this number.
pub(super) fn refuse(number: RawFd, socket: io::Result<UnixListener>) {
    let mut refuser = lock(&REFUSER);
    if !refuser.refuses {
        refuser.names.remove(&number);
        return;
    }
    if let Err(e) = socket.and_then(|socket| refuser.begin(number, socket)) {
        tracing::error!("descriptor {number}: front ends wait there, since they can't be refused: {e}");
    }
}

/// Whether front ends are refused on the socket that was handed over with this number.
pub(super) fn refuses(number: RawFd) -> bool {
    lock(&REFUSER).sockets.iter().any(|refused| refused.number == number)
}

/// The socket that was handed over with this number, if front ends are refused there. They are not
/// from now on.
///
/// # Errors
/// No descriptor is left.
pub(super) fn take(number: RawFd) -> Option<io::Result<UnixListener>> {
    lock(&REFUSER).take(number)
}

/// The same of the socket that `path` leads to, with its number. Its file may have been removed
/// since, and another one may be there: who connects does not reach this socket then.
pub(super) fn take_at(path: &Path) -> Option<(RawFd, io::Result<UnixListener>)> {
    let there = file_id(path).ok()?;
    let mut refuser = lock(&REFUSER);
    let is_there = |number: &RawFd| refuser.names.get(number).is_some_and(|name| name.file == Some(there));
    let number = refuser.sockets.iter().map(|refused| refused.number).find(is_there)?;
    Some((number, refuser.take(number)?))
}

/// The thread of a socket: accepts and closes until a VM has the socket.
fn run(socket: &Arc<UnixListener>, wake: &OwnedFd) {
    loop {
        let mut fds = [wake.as_fd(), socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut fds, None);
        for _ in 0..AT_ONCE {
            let refuser = lock(&REFUSER);
            if refuser.sockets.iter().all(|refused| refused.socket.as_ptr() != Arc::as_ptr(socket)) {
                return;
            }
            let accepted = accept_now(socket);
            // Nobody waits while it closes.
            drop(refuser);
            if accepted.is_err() {
                break;
            }
        }
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use zerowire_testkit::linger::send_lingering;

    use super::*;
    use crate::serve::{Endpoint, ListenError, Listener, SocketAccess};

    /// Front ends are refused in the whole process: the tests take turns.
    static TURN: Mutex<()> = Mutex::new(());

    /// A listener on a socket of `path` that its maker keeps, too, and the number of it.
    fn handed(path: &Path) -> (UnixListener, RawFd, Listener) {
        let kept = UnixListener::bind(path).expect("a socket");
        let Endpoint::Fd(number) = Endpoint::of(kept.try_clone().expect("a copy")) else { unreachable!() };
        (kept, number, Listener::inherit(number).expect("it was given up"))
    }

    /// Also what waits by then.
    fn is_refused(path: &Path) {
        let mut stream = UnixStream::connect(path).expect("its maker has it");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        assert_eq!(stream.read(&mut [0]).ok(), Some(0), "it ends");
    }

    fn is_taken(path: &Path, mut listener: Listener) -> Listener {
        let _stream = UnixStream::connect(path).expect("a VM has it");
        assert!(listener.accept().expect("no error").is_some());
        listener
    }

    #[test]
    fn a_socket_without_a_vm_refuses_until_another_one_has_it() {
        let _turn = lock(&TURN);
        let dir = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let access = SocketAccess::default();
        let (at_a, late) = (Endpoint::Path(a.clone()), Endpoint::Fd);
        // At the end of a process who connects waits for the next one.
        let (kept, number, listener) = handed(&a);
        drop(listener);
        assert!(!refuses(number));
        let _waits = UnixStream::connect(&a).expect("its maker has it");
        kept.accept().expect("it waits");
        drop(kept);
        std::fs::remove_file(&a).expect("a file");

        let refusal = FrontEndRefusal::begin();
        let ((_a, first, at_first), (_b, second, mut at_second)) = (handed(&a), handed(&b));
        drop(at_first);
        // It drains: it has the socket for the process that goes on with its session.
        at_second.refuse();
        assert!(at_second.socket().is_some());
        for path in [&a, &b, &a] {
            is_refused(path);
        }
        drop(at_second);
        is_refused(&b);
        assert!(refuses(first) && refuses(second));
        let at_first = is_taken(&a, Listener::new(&late(first), &access).expect("it has no VM"));
        assert!(!refuses(first) && Listener::new(&at_a, &access).is_err(), "it has a VM");
        drop(at_first);
        is_refused(&a);
        drop(is_taken(&a, Listener::new(&at_a, &access).expect("it has no VM")));
        is_refused(&a);
        // By another way to its file as well.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&a, &link).expect("a link");
        drop(is_taken(&a, Listener::new(&Endpoint::Path(link), &access).expect("it leads there")));
        is_refused(&a);
        drop(refusal);
        assert!(!refuses(first) && !refuses(second));
    }

    #[test]
    fn a_socket_that_its_maker_has_block_holds_up_no_other_vm() {
        let _turn = lock(&TURN);
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s");
        let _refusal = FrontEndRefusal::begin();
        let (kept, _number, listener) = handed(&path);
        drop(listener);
        kept.set_nonblocking(false).expect("it blocks");
        is_refused(&path);
        let is_free = (0..100).any(|_| {
            std::thread::park_timeout(PAUSE);
            REFUSER.try_lock().is_ok()
        });
        // It ends what waits there, or nothing of this process would go on.
        kept.set_nonblocking(true).expect("it does not block");
        is_refused(&path);
        assert!(is_free, "no thread waits for front ends with the lock");
    }

    /// It waits on the socket of its VM, with a descriptor that takes an hour to close.
    #[test]
    fn a_front_end_that_is_slow_to_refuse_holds_up_no_other_vm() {
        let _turn = lock(&TURN);
        let dir = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let _refusal = FrontEndRefusal::begin();
        let ((_a, first, at_first), (_b, _second, at_second)) = (handed(&a), handed(&b));
        let slow = UnixStream::connect(&a).expect("a VM has it");
        let _peer = send_lingering(&slow, b"x").expect("sent");
        drop((at_first, at_second));
        is_refused(&b);
        // Accepted: it sees the end.
        let mut fds = [PollFd::new(&slow, PollFlags::RDHUP)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1));
        is_refused(&b);
        let late = Listener::new(&Endpoint::Fd(first), &SocketAccess::default());
        drop(is_taken(&a, late.expect("it has no VM")));
    }

    #[test]
    fn a_path_that_does_not_lead_to_a_socket_any_more_takes_it_for_no_vm() {
        let _turn = lock(&TURN);
        let dir = tempfile::tempdir().expect("a folder");
        let (path, access) = (dir.path().join("s"), SocketAccess::default());
        let (at_path, new) = (Endpoint::Path(path.clone()), |at: &Endpoint| Listener::new(at, &access));
        let _refusal = FrontEndRefusal::begin();
        let (_kept, number, listener) = handed(&path);
        drop(listener);
        std::fs::remove_file(&path).expect("its file");
        drop(is_taken(&path, new(&at_path).expect("nobody has the path")));
        let _other = UnixListener::bind(&path).expect("nobody has the path");
        let taken = new(&at_path);
        assert!(matches!(taken, Err(ListenError::InUse(_))), "{taken:?}");
        assert!(refuses(number));
    }
}
