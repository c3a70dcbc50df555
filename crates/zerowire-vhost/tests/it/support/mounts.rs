//! Mounts that a test's threads alone see.

use std::ffi::CString;
use std::path::Path;

/// Moves this thread into a mount namespace of its own. Threads that it starts are inside as well.
pub fn own_mounts() {
    // SAFETY: takes no pointers; the namespace goes with the last thread inside.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(done, 0, "a mount namespace: run the test as root");
    mount("none", Path::new("/"), "none", libc::MS_REC | libc::MS_PRIVATE, "");
}

/// Mounts a file system in this thread's namespace.
pub fn mount(what: &str, at: &Path, kind: &str, flags: u64, options: &str) {
    let text = |s: &str| CString::new(s).expect("no zero byte");
    let (what, kind, options) = (text(what), text(kind), text(options));
    let at = text(at.to_str().expect("a path in UTF-8"));
    // SAFETY: all strings end with zero and live for the call.
    let done =
        unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    assert_eq!(done, 0, "mount: {}", std::io::Error::last_os_error());
}
