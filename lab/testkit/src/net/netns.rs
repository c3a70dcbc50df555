//! A network namespace for one test.

use std::io;

/// Runs `test` on a thread of its own in a new, empty network namespace. Threads and processes that
/// it starts are inside as well; the namespace goes with the last of them.
///
/// Fails, and says what to do, where a namespace can't be made: a test that needs a tap never
/// passes without one.
pub fn in_netns<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new()
        .name(std::thread::current().name().unwrap_or("test").to_owned())
        .spawn(move || {
            enter();
            test()
        })
        .expect("a thread for the test");
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Moves this thread into a new network namespace. Interfaces that come up there send nothing by
/// themselves.
pub(super) fn enter() {
    // SAFETY: takes no pointers; only this thread moves, and it ends with the test.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        panic!(
            "no network namespace for the test: {}; run the tests as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN \
             ('unshare -Urn cargo test' makes a user namespace that has both)",
            io::Error::last_os_error()
        );
    }
    set_ipv6("disable_ipv6", "1");
}

/// Sets what IPv6 does on interfaces that are made later in this thread's namespace.
pub(super) fn set_ipv6(setting: &str, value: &str) {
    match std::fs::write(format!("/proc/sys/net/ipv6/conf/default/{setting}"), value) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            panic!("IPv6 can't be turned off for the test: {setting}: {e}")
        }
        _ => {}
    }
}

/// Index of an interface of this thread's namespace; None where there is none of that name.
pub fn interface(name: &str) -> Option<i32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a string that ends with zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        n => i32::try_from(n).ok(),
    }
}
