//! The program as a child process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zerowire_guest::VhostUser;

use super::{PATIENCE, wait_until};
use zerowire_testkit::process::{IPC_LOCK, NET_ADMIN, NET_RAW, drop_capability, limit};
use zerowire_testkit::refuse::{Argument, refuse_syscall};

/// What is done in the child before it becomes the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restrict {
    /// Without CAP_IPC_LOCK, and with this many bytes of locked memory.
    pub memlock: Option<u64>,
    /// Without CAP_NET_ADMIN.
    pub no_net_admin: bool,
    /// Without CAP_NET_RAW.
    pub no_net_raw: bool,
    /// socket(2) for this family fails with this error.
    pub no_sockets: Option<(i32, i32)>,
    /// This system call fails with this error.
    pub refused: Option<(libc::c_long, i32)>,
    /// Soft and hard limit of open files.
    pub descriptors: Option<(u64, u64)>,
    /// This descriptor of the test becomes number [`HANDED_FD`] of the child.
    pub fd: Option<i32>,
    /// These descriptors of the test become numbers 3 and 4 of the child, as a service manager
    /// hands sockets over.
    pub handed: [Option<i32>; 2],
    /// Its standard output is a pipe that nobody reads any more.
    pub unread: bool,
    /// This descriptor of the test is its standard output.
    pub stdout: Option<i32>,
    /// This descriptor of the test is its standard error.
    pub stderr: Option<i32>,
}

/// Number of a descriptor that is handed over.
pub const HANDED_FD: i32 = 77;

/// A running `zerowire`. Killed on drop if it still runs.
pub struct Program {
    child: Child,
    out: Arc<Mutex<String>>,
    log: Arc<Mutex<String>>,
}

impl Program {
    /// Starts `zerowire net` with `args`.
    pub fn net<S: AsRef<OsStr>>(args: &[S]) -> Self {
        Self::restricted(args, Restrict::default())
    }

    /// Starts `zerowire net` in a restricted process.
    pub fn restricted<S: AsRef<OsStr>>(args: &[S], restrict: Restrict) -> Self {
        Self::start("net", args, restrict)
    }

    /// Starts `zerowire vsock` with `args`.
    pub fn vsock<S: AsRef<OsStr>>(args: &[S], restrict: Restrict) -> Self {
        Self::start("vsock", args, restrict)
    }

    fn start<S: AsRef<OsStr>>(name: &str, args: &[S], restrict: Restrict) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        command.arg(name).args(args);
        Self::of(command, restrict)
    }

    /// Starts a command that becomes the program.
    pub fn of(mut command: Command, restrict: Restrict) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("ZEROWIRE_LOG");
        // SAFETY: `apply` makes system calls only.
        unsafe { command.pre_exec(move || apply(restrict)) };
        let mut child = command.spawn().expect("the program starts");
        let out = collect(child.stdout.take().expect("its output"));
        let log = collect(child.stderr.take().expect("its log"));
        Self { child, out, log }
    }

    /// Runs `zerowire net` to the end: exit code, standard output, log.
    pub fn run<S: AsRef<OsStr>>(args: &[S]) -> (i32, String, String) {
        Self::net(args).result()
    }

    /// Waits for the end: exit code, standard output, log.
    pub fn result(mut self) -> (i32, String, String) {
        let status = self.wait();
        (status.code().expect("an exit code"), self.out(), self.log())
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Everything on standard output so far.
    pub fn out(&self) -> String {
        self.out.lock().expect("output").clone()
    }

    /// Everything on standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("log").clone()
    }

    /// Waits until the log holds `word`.
    pub fn wait_log(&self, word: &str) {
        let start = Instant::now();
        while !self.log().contains(word) {
            assert!(start.elapsed() < PATIENCE, "no '{word}' in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for `count` lines on standard output and returns the last one.
    pub fn wait_line(&self, count: usize) -> String {
        wait_until("a line of output", || self.out().lines().count() >= count);
        self.out().lines().nth(count - 1).unwrap_or_default().to_owned()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so that the id is still its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        // The readers see the end of the pipes right after.
        wait_until("its output ends", || {
            Arc::strong_count(&self.out) == 1 && Arc::strong_count(&self.log) == 1
        });
        status.expect("a status")
    }

    /// Ends it by SIGTERM, which must be a clean end.
    pub fn stop(mut self) -> (String, String) {
        self.signal(libc::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "{status}:\n{}", self.log());
        (self.out(), self.log())
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        self.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the program:\n{}", self.log.lock().map(|l| l.clone()).unwrap_or_default());
        }
    }
}

/// Whether nobody listens at a socket, which is there.
pub fn is_refused(path: &std::path::Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Connects to a socket, waiting until somebody listens.
pub fn connect(path: &std::path::Path) -> VhostUser {
    VhostUser::connect(path, PATIENCE).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn collect(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let to = text.clone();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
            to.lock().expect("text").push_str(&line);
            line.clear();
        }
    });
    text
}

fn apply(restrict: Restrict) -> std::io::Result<()> {
    let check = |r: libc::c_int| if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) };
    // What these tests were started with is not the program's: a number that is meant to be
    // nothing's must be that. SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if let Some(bytes) = restrict.memlock {
        limit(libc::RLIMIT_MEMLOCK, bytes, bytes)?;
        drop_capability(IPC_LOCK)?;
    }
    for (without, capability) in [(restrict.no_net_admin, NET_ADMIN), (restrict.no_net_raw, NET_RAW)] {
        if without {
            drop_capability(capability)?;
        }
    }
    if let Some((soft, hard)) = restrict.descriptors {
        limit(libc::RLIMIT_NOFILE, soft, hard)?;
    }
    if let Some(fd) = restrict.fd {
        // SAFETY: the descriptor is the test's; the copy has no close-on-exec flag.
        check(unsafe { libc::dup2(fd, HANDED_FD) })?;
    }
    hand_over(restrict.handed)?;
    if restrict.unread {
        let mut pipe = [0; 2];
        // SAFETY: two descriptors are written to the array; those of this function are its own to
        // close.
        unsafe {
            check(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC))?;
            check(libc::dup2(pipe[1], libc::STDOUT_FILENO))?;
            check(libc::close(pipe[0]))?;
        }
    }
    for (fd, number) in [(restrict.stdout, libc::STDOUT_FILENO), (restrict.stderr, libc::STDERR_FILENO)] {
        let Some(fd) = fd else { continue };
        // SAFETY: the descriptor is the test's; the copy has no close-on-exec flag.
        check(unsafe { libc::dup2(fd, number) })?;
    }
    if let Some((family, errno)) = restrict.no_sockets {
        refuse_syscall(libc::SYS_socket, &[(0, Argument::Is(family as u32))], errno)?;
    }
    if let Some((number, errno)) = restrict.refused {
        refuse_syscall(number, &[], errno)?;
    }
    Ok(())
}

/// Makes these descriptors 3 and 4. Each one goes to a number above first: it may itself be 3 or 4.
fn hand_over(handed: [Option<i32>; 2]) -> std::io::Result<()> {
    let check = |r: libc::c_int| if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(r) };
    let mut above = [None; 2];
    for (fd, above) in handed.into_iter().zip(&mut above) {
        let Some(fd) = fd else { continue };
        // SAFETY: the descriptor is the test's; the copy is this process's.
        *above = Some(check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100) })?);
    }
    for (fd, number) in above.into_iter().zip(3..) {
        let Some(fd) = fd else { continue };
        // SAFETY: both numbers are this process's, which becomes the program or ends.
        check(unsafe { libc::dup2(fd, number) })?;
    }
    Ok(())
}
