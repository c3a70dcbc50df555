//! A file on FUSE: whoever asks its file system anything depends on the process that answers.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};

// Requests (include/uapi/linux/fuse.h, `enum fuse_opcode`).
const FORGET: u32 = 2;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
/// More than the largest request.
const REQUEST_BYTES: usize = 1 << 18;

/// A regular file on a FUSE file system of its own, which knows nothing but its name.
pub struct FuseFile {
    /// The file, open for reading and writing.
    pub file: File,
    asked: Arc<Mutex<Vec<u32>>>,
}

impl FuseFile {
    /// Mounts the file system over an empty file in `dir`, in a mount namespace of its own.
    pub fn new(dir: &Path) -> Self {
        let path = dir.join("fuse");
        File::create(&path).expect("an empty file");
        let asked = Arc::<Mutex<Vec<u32>>>::default();
        let for_server = asked.clone();
        let mount = move || {
            // SAFETY: takes no pointers; this thread ends with the namespace.
            let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            assert_eq!(done, 0, "a mount namespace: run the test as root");
            mount("none", Path::new("/"), "none", libc::MS_REC | libc::MS_PRIVATE, "");
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).expect("/dev/fuse");
            let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
            mount("zerowire", &path, "fuse", libc::MS_NOSUID | libc::MS_NODEV, &options);
            std::thread::spawn(move || serve(&device, &for_server));
            File::options().read(true).write(true).open(&path).expect("the file")
        };
        Self { file: std::thread::spawn(mount).join().expect("mounted"), asked }
    }

    /// Whether its file system was asked for more than opening and closing the file takes.
    pub fn was_asked(&self) -> bool {
        let needed = [INIT, OPEN, FLUSH, RELEASE, FORGET, INTERRUPT];
        self.asked.lock().expect("no panic").iter().any(|request| !needed.contains(request))
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

/// Answers the first request, and all others with ENOSYS. The thread keeps the mount until the
/// program ends.
fn serve(device: &OwnedFd, asked: &Mutex<Vec<u32>>) {
    let mut request = vec![0; REQUEST_BYTES];
    while let Ok(n) = rustix::io::read(device, &mut request) {
        assert!(n >= 40, "a request of {n} bytes");
        let word = |at: usize| u32::from_ne_bytes(*request[at..].first_chunk().expect("4 bytes"));
        let (opcode, id) = (word(4), &request[8..16]);
        asked.lock().expect("no panic").push(opcode);
        // struct fuse_init_out: version, readahead, flags, limits.
        let init = [word(40), word(44), 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (error, body) = match opcode {
            FORGET | INTERRUPT => continue,
            INIT => (0, init.map(u32::to_ne_bytes).concat()),
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let len = 16 + body.len() as u32;
        let answer = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), id, &body].concat();
        // Who waited may have gone.
        let _ = rustix::io::write(device, &answer);
    }
}
