//! Files whose file system may never answer, and sockets that may never close.
//!
//! No signal ends a system call that waits for a file system such as FUSE or NFS, and close(2) is
//! one, too. So a thread of its own makes these calls. Who asked waits for a while, and leaves the
//! thread behind then. The next ones wait the shorter, the more threads are left behind, so that
//! one that asks for many files in turn goes on as well.
//!
//! A peer can send a descriptor that takes as long to close as it likes, such as the last one of a
//! TCP socket with SO_LINGER. Unread in a socket's queue, it is closed with that socket.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use zerowire_sys::lock;

use crate::answer::{NoAnswer, one_answer};

/// How long a file system may take while no thread is left behind.
const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that are left behind, at most.
const MOST_LEFT: usize = 64;

/// The same of a socket that closes.
const CLOSE_PATIENCE: Duration = Duration::from_millis(200);

/// The threads of this process.
static THREADS: FileThreads = FileThreads::new(PATIENCE);
/// Those that close listeners of front ends.
static LISTENERS: FileThreads = FileThreads::new(CLOSE_PATIENCE);
/// Those that close clients. What front ends hold up takes none of them.
static CLIENTS: FileThreads = FileThreads::new(CLOSE_PATIENCE);

/// Threads that wait for file systems.
struct FileThreads {
    patience: Duration,
    /// Nobody waits for these any more.
    left: AtomicUsize,
}

/// Has a thread of its own do `work`, which asks a file system and does not panic.
///
/// # Errors
/// Those of `work`. Or it takes too long: what it returns then is dropped by its thread.
pub fn ask<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    THREADS.ask(work)
}

/// Has a thread of its own close a listening socket, and the connections that wait there. It does
/// not block. Where closing takes long this returns before.
pub fn close_listener(socket: OwnedFd) {
    close(&LISTENERS, socket);
}

/// The same of a client of a socket that all can connect to.
pub fn close_client(socket: OwnedFd) {
    close(&CLIENTS, socket);
}

/// Whether there is a thread for [`close_client`].
pub fn may_close_client() -> bool {
    CLIENTS.has_room()
}

fn close(threads: &'static FileThreads, socket: OwnedFd) {
    // Who connects from now on is refused. None is waited for, also where a process that has a copy
    // has made the socket block.
    let _ = shutdown(&socket, Shutdown::Both);
    let closed = if threads.has_room() {
        threads.ask(move || {
            let mut next = Some(socket);
            while let Some(socket) = next {
                while accept_with(&socket, SocketFlags::CLOEXEC).is_ok() {}
                drop(socket);
                next = unclosed().pop();
            }
            Ok(())
        })
    } else {
        unclosed().push(socket);
        Err(too_many(MOST_LEFT))
    };
    // Where no thread could be made (EAGAIN) it was closed here.
    if closed.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) {
        tracing::warn!(
            "a socket is not closed yet: a descriptor that its peer has sent lingers, or its file system does not answer"
        );
    }
}

/// Sockets that found no thread. The next one that has closed its own closes them.
fn unclosed() -> MutexGuard<'static, Vec<OwnedFd>> {
    static SOCKETS: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    lock(&SOCKETS)
}

/// The text of a regular file. Any other may have no end, or none for now, and would keep the VMs
/// waiting.
///
/// # Errors
/// Those of [`ask`] and [`text_of`]; or it is not a regular file.
pub fn read_text(path: &Path, most_bytes: usize) -> io::Result<String> {
    let path = path.to_owned();
    ask(move || {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file: put one in its place"));
        }
        text_of(file, most_bytes)
    })
}

/// The text that comes from `source` up to its end.
///
/// # Errors
/// It has more than `most_bytes`, it is not UTF-8, or it can't be read.
pub fn text_of(source: impl Read, most_bytes: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(most_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most_bytes {
        return Err(io::Error::other(format!("it has more than {most_bytes} bytes: make it smaller")));
    }
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
}

// Behind a call: each kind of work has its own copy of `FileThreads::ask`.
#[cold]
#[inline(never)]
fn too_many(left: usize) -> io::Error {
    io::Error::other(format!(
        "{left} files before it have not answered yet: end what their file systems wait for"
    ))
}

#[cold]
#[inline(never)]
fn late(patience: Duration) -> io::Error {
    let text = format!("no answer within {patience:?}: its file system hangs");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl FileThreads {
    const fn new(patience: Duration) -> Self {
        Self { patience, left: AtomicUsize::new(0) }
    }

    fn has_room(&self) -> bool {
        self.left.load(Ordering::Acquire) < MOST_LEFT
    }

    fn ask<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let left = self.left.load(Ordering::Acquire);
        if left >= MOST_LEFT {
            return Err(too_many(left));
        }
        let (reply, answer) = one_answer();
        let run = move || {
            // What comes too late is dropped before the thread counts as gone.
            if reply.send(work()).is_err() {
                self.left.fetch_sub(1, Ordering::AcqRel);
            }
        };
        std::thread::Builder::new().name("file".to_owned()).spawn(run)?;
        let patience = self.patience / (1 + left as u32);
        match answer.wait(patience) {
            Ok(done) => done,
            Err(NoAnswer::Gone) => Err(io::Error::other("its thread has failed")),
            Err(NoAnswer::Late) => {
                self.left.fetch_add(1, Ordering::AcqRel);
                let Some(done) = answer.close() else { return Err(late(patience)) };
                self.left.fetch_sub(1, Ordering::AcqRel);
                done
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_text_is_read_from_a_regular_file_of_the_length() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("made");
        for path in [fifo.as_path(), "/dev/zero".as_ref(), dir.path()] {
            let said = read_text(path, 9).expect_err("no file").to_string();
            assert!(said.contains("not a regular file"), "{said}");
        }
        let file = dir.path().join("file");
        for (text, words) in [("123456789", None), ("12345678\u{fc}", Some("more than 9 bytes"))] {
            std::fs::write(&file, text).expect("written");
            let read = read_text(&file, 9);
            match words {
                None => assert_eq!(read.expect("short enough"), text),
                Some(words) => assert!(read.expect_err("too long").to_string().contains(words)),
            }
        }
        std::fs::write(&file, [b'a', 0xff]).expect("written");
        assert!(read_text(&file, 9).expect_err("no text").to_string().contains("index 1"));
    }

    #[test]
    fn what_answers_is_returned() {
        assert_eq!(ask(|| Ok(7)).expect("an answer"), 7);
        let refused = ask(|| Err::<(), _>(io::ErrorKind::NotFound.into()));
        assert_eq!(refused.expect_err("no file").kind(), io::ErrorKind::NotFound);
    }

    /// One that finds no thread is closed behind the next one. That they block holds up nothing.
    #[test]
    fn sockets_that_find_no_thread_are_closed_later() {
        use std::io::Read as _;
        use std::os::unix::net::{UnixListener, UnixStream};

        static FULL: FileThreads =
            FileThreads { patience: CLOSE_PATIENCE, left: AtomicUsize::new(MOST_LEFT) };
        static FREE: FileThreads = FileThreads::new(CLOSE_PATIENCE);
        let dir = tempfile::tempdir().expect("a folder");
        let [mut first, mut second] = [("a", &FULL), ("b", &FREE)].map(|(name, threads)| {
            let path = dir.path().join(name);
            let listener = UnixListener::bind(&path).expect("a socket");
            let waiting = UnixStream::connect(&path).expect("a place");
            close(threads, listener.into());
            waiting
        });
        for waiting in [&mut first, &mut second] {
            waiting.set_read_timeout(Some(zerowire_testkit::PATIENCE)).expect("a limit");
            let end = waiting.read(&mut [0]);
            assert!(
                end.as_ref().map_or_else(|e| e.kind() == io::ErrorKind::ConnectionReset, |n| *n == 0),
                "{end:?}"
            );
        }
    }

    /// Who asks goes on, however many there are, and later again when file systems answer.
    #[test]
    fn what_never_answers_is_left_behind() {
        static THREADS: FileThreads = FileThreads::new(Duration::from_millis(50));
        let hang = |until: mpsc::Receiver<()>| {
            THREADS.ask(move || {
                let _ = until.recv();
                Ok(())
            })
        };
        let (ends, hangs): (Vec<_>, Vec<_>) = (0..=MOST_LEFT).map(|_| mpsc::channel::<()>()).unzip();
        let kinds: Vec<_> = hangs.into_iter().map(|until| hang(until).expect_err("late").kind()).collect();
        let (last, late) = kinds.split_last().expect("some");
        assert!(late.iter().all(|kind| *kind == io::ErrorKind::TimedOut), "{late:?}");
        assert_eq!(*last, io::ErrorKind::Other, "no thread is started for one more");
        drop(ends);
        let begin = Instant::now();
        while THREADS.left.load(Ordering::Acquire) > 0 && begin.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        zerowire_testkit::wait_until("an answer", || THREADS.ask(|| Ok(7)).is_ok_and(|n| n == 7));
    }
}
