//! A file on FUSE: whoever asks its file system anything depends on the process that answers.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

// Requests (include/uapi/linux/fuse.h, `enum fuse_opcode`).
const FORGET: u32 = 2;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
/// A test that waits for what is held fails then.
const HELD_AT_MOST: Duration = Duration::from_secs(20);
/// More than the largest request.
const REQUEST_BYTES: usize = 1 << 18;

/// A regular file on a FUSE file system of its own, which knows nothing but its name.
pub struct FuseFile {
    /// The file, open for reading and writing.
    pub file: File,
    server: Arc<Server>,
}

#[derive(Default)]
struct Server {
    asked: Mutex<Vec<u32>>,
    /// True: who closes the file waits.
    holds: AtomicBool,
}

impl FuseFile {
    /// Mounts the file system over an empty file in `dir`, in a mount namespace of its own.
    pub fn new(dir: &Path) -> Self {
        let path = dir.join("fuse");
        std::thread::spawn(move || Self::mounted(&path)).join().expect("mounted")
    }

    /// Mounts the file system over a new, empty file. This thread and the programs that it starts
    /// from now on have a mount namespace of their own, where they find it.
    pub fn mounted(path: &Path) -> Self {
        File::create(path).expect("an empty file");
        // SAFETY: takes no pointers; only this thread moves, and it ends with the test.
        let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        assert_eq!(done, 0, "a mount namespace: run the test as root");
        mount("none", Path::new("/"), "none", libc::MS_REC | libc::MS_PRIVATE, "");
        let server = Arc::<Server>::default();
        let (for_thread, at) = (server.clone(), path.to_owned());
        let (mounted, is_mounted) = channel();
        std::thread::spawn(move || for_thread.run(&at, &mounted));
        is_mounted.recv().expect("mounted");
        let file = File::options().read(true).write(true).open(path).expect("the file");
        Self { file, server }
    }

    /// Whether its file system was asked for more than opening and closing the file takes.
    pub fn was_asked(&self) -> bool {
        let needed = [INIT, OPEN, FLUSH, RELEASE, FORGET, INTERRUPT];
        self.server.asked.lock().expect("no panic").iter().any(|request| !needed.contains(request))
    }

    /// From now on who closes the file waits, for 20 s at most, or no longer.
    pub fn hold(&self, holds: bool) {
        self.server.asked.lock().expect("no panic").retain(|request| *request != FLUSH);
        self.server.holds.store(holds, Ordering::Release);
    }

    /// Whether who closes the file waits.
    pub fn holds(&self) -> bool {
        self.server.holds.load(Ordering::Acquire)
    }

    /// Whether somebody waits who closes it.
    pub fn is_being_closed(&self) -> bool {
        self.server.asked.lock().expect("no panic").contains(&FLUSH)
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        self.hold(false);
    }
}

fn mount(what: &str, at: &Path, kind: &str, flags: u64, options: &str) {
    let text = |s: &str| std::ffi::CString::new(s).expect("no zero byte");
    let (what, kind, options) = (text(what), text(kind), text(options));
    let at = text(at.to_str().expect("a path in UTF-8"));
    // SAFETY: all strings end with zero and live for the call.
    let done =
        unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    assert_eq!(done, 0, "mount: {}", std::io::Error::last_os_error());
}

impl Server {
    /// Mounts the file system and serves it until the program ends. No other thread has the device
    /// then: the file system ends with this one, and who waits for it goes on.
    fn run(&self, path: &Path, mounted: &Sender<()>) {
        // SAFETY: takes no pointers; the descriptors stay open in the table of the other threads.
        let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
        assert_eq!(done, 0, "close_range: {}", std::io::Error::last_os_error());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).expect("/dev/fuse");
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
        mount("zerowire", path, "fuse", libc::MS_NOSUID | libc::MS_NODEV, &options);
        mounted.send(()).expect("somebody waits");
        self.serve(&device);
    }

    /// Answers the first request and those who close the file, and all others with ENOSYS.
    fn serve(&self, device: &OwnedFd) {
        let mut request = vec![0; REQUEST_BYTES];
        let mut held = Vec::new();
        let mut since = None;
        loop {
            let mut fds = [PollFd::new(device, PollFlags::IN)];
            let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let came = poll(&mut fds, Some(&soon)).is_ok_and(|n| n > 0);
            if since.is_some_and(|since: Instant| since.elapsed() > HELD_AT_MOST) {
                self.holds.store(false, Ordering::Release);
            }
            let holds = self.holds.load(Ordering::Acquire);
            if !holds {
                since = None;
                held.drain(..).for_each(|id| answer(device, id, -libc::ENOSYS, &[]));
            }
            if !came {
                continue;
            }
            let Ok(n) = rustix::io::read(device, &mut request) else { return };
            assert!(n >= 40, "a request of {n} bytes");
            let word = |at: usize| u32::from_ne_bytes(*request[at..].first_chunk().expect("4 bytes"));
            let opcode = word(4);
            let id = *request[8..].first_chunk().expect("8 bytes");
            self.asked.lock().expect("no panic").push(opcode);
            // struct fuse_init_out: version, readahead, flags, limits.
            let init = [word(40), word(44), 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            match opcode {
                FORGET | INTERRUPT => {}
                FLUSH if holds => {
                    held.push(id);
                    since.get_or_insert_with(Instant::now);
                }
                // With ENOSYS the kernel would not ask again.
                FLUSH => answer(device, id, 0, &[]),
                INIT => answer(device, id, 0, &init.map(u32::to_ne_bytes).concat()),
                _ => answer(device, id, -libc::ENOSYS, &[]),
            }
        }
    }
}

/// Who waited may have gone.
fn answer(device: &OwnedFd, id: [u8; 8], error: i32, body: &[u8]) {
    let len = 16 + body.len() as u32;
    let answer = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), &id, body].concat();
    let _ = rustix::io::write(device, &answer);
}
