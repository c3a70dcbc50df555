//! What a confined process tries to reach, and the processes that try it.

use std::ffi::CString;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use zerowire_confine::{ConfinePlan, Layer, Owner, confine};
use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM};
use zerowire_sys::rights::{Namespace, unshare};

/// The user that nobody is.
pub const NOBODY: Owner = Owner { user: 65534, group: 65534 };

/// What came of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was done.
    Done,
    /// It failed with this errno.
    Errno(i32),
    /// The process was killed by this signal.
    Killed(i32),
    /// The process could not be confined, or panicked.
    Unconfined(i32),
}

/// Statuses of a process beyond those of errnos, which end at 133.
const SIGNALS: i32 = 140;
const NO_NAMESPACE: i32 = 250;
const NOT_CONFINED: i32 = 251;
const PANIC: i32 = 252;

/// What others have, and a confined process must not reach.
pub struct Stage {
    /// Another process.
    pub victim: i32,
    /// A port on the loopback where somebody listens.
    pub tcp_port: u16,
    /// The path of a unix socket where somebody listens.
    pub unix_path: CString,
    /// An abstract name where somebody listens.
    pub abstract_name: String,
    /// Shared memory by System V that everybody may attach.
    pub memory: i32,
    /// A file of root's, that a confined process has open.
    pub file: File,
    process: Child,
    _listeners: (TcpListener, UnixListener, UnixListener),
    _folder: tempfile::TempDir,
}

impl Stage {
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests give rights up: run them as root");
        let process = Command::new("sleep").arg("600").spawn().expect("sleep");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let unix = UnixListener::bind(&path).expect("a listener");
        let abstract_name = format!("zerowire-confine-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        let named = UnixListener::bind_addr(&address).expect("a listener");
        // SAFETY: makes a segment, which `drop` removes.
        let memory = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o666) };
        assert!(memory >= 0, "shared memory: {}", std::io::Error::last_os_error());
        Self {
            victim: process.id() as i32,
            tcp_port: tcp.local_addr().expect("an address").port(),
            unix_path: CString::new(path.as_os_str().as_bytes()).expect("a path"),
            abstract_name,
            memory,
            file: File::create(folder.path().join("file")).expect("a file"),
            process,
            _listeners: (tcp, unix, named),
            _folder: folder,
        }
    }

    /// The number of a descriptor that a confined process has.
    pub fn descriptor(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.file.as_fd().as_raw_fd()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // SAFETY: removes the segment that `new` made.
        unsafe { libc::shmctl(self.memory, libc::IPC_RMID, std::ptr::null_mut()) };
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Has a process do something that returns its status, and waits for it. The status of one that
/// was killed is the signal's number above [`SIGNALS`].
pub fn in_process(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the test has a process of its own. Its other thread waits for this one and holds no
    // lock, and the C library makes memory usable in the child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let status = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANIC);
        // SAFETY: ends the child, whose parent waits for it.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and fills `status`.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) { SIGNALS + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Puts this process, which has one thread, into a user namespace that has its user alone.
pub fn own_user_namespace() {
    unshare(Namespace::User).expect("a user namespace");
    for (file, text) in [("uid_map", "0 0 1"), ("setgroups", "deny"), ("gid_map", "0 0 1")] {
        std::fs::write(format!("/proc/self/{file}"), text).expect("a line");
    }
}

/// This thread has these capabilities no more.
pub fn without(lost: CapabilitySet) {
    let mut sets = capabilities(None).expect("capabilities");
    sets.effective.remove(lost);
    sets.permitted.remove(lost);
    set_capabilities(None, sets).expect("given up");
}

/// What a process does when it is confined, with these layers left out.
pub fn attempt(without: &[Layer], act: impl FnOnce() -> Result<(), i32>) -> Seen {
    attempt_by(&[OF_A_PROGRAM], without, act)
}

/// The same with these lists of system calls.
pub fn attempt_by(
    calls: &[&[AllowedCall]],
    without: &[Layer],
    act: impl FnOnce() -> Result<(), i32>,
) -> Seen {
    let confined = || {
        let plan = ConfinePlan { owner: NOBODY, calls, without };
        match confine(&plan) {
            Ok(_) => act().err().unwrap_or(0),
            Err(_) => NOT_CONFINED,
        }
    };
    let status = in_process(|| {
        if !without.contains(&Layer::Processes) && unshare(Namespace::Process).is_err() {
            return NO_NAMESPACE;
        }
        in_process(confined)
    });
    match status {
        0 => Seen::Done,
        errno if errno < SIGNALS => Seen::Errno(errno),
        signal if signal < NO_NAMESPACE => Seen::Killed(signal - SIGNALS),
        status => Seen::Unconfined(status),
    }
}
