//! A tap that is there before the program and stays when the program is killed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;

/// Makes the tap `name` in this thread's network namespace, and sets it up. `flags` come on top of
/// those of a tap with a virtio-net header.
pub fn persistent(name: &str, flags: libc::c_int) {
    let queue = open(name, libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags);
    // While it has a carrier: `wait_for_carrier` could not see that frames don't pass yet.
    set_up(name);
    drop(queue);
}

/// Waits until the kernel passes frames on to the tap `name`, whose one queue has just been opened.
/// A tap without a queue has no carrier. The kernel drops what is sent to it until some time after
/// the carrier has come (net/core/link_watch.c).
pub fn wait_for_carrier(name: &str) {
    let socket = socket();
    let mut request = ifreq(name);
    crate::wait_until("the tap has a carrier", || {
        // SAFETY: SIOCGIFFLAGS reads and fills the ifreq.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) });
        // SAFETY: every member of the union is made of integers: any bytes are a valid value.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        libc::c_int::from(flags) & libc::IFF_RUNNING != 0
    });
    // Frames pass a moment behind the flag. The kernel holds the lock meanwhile that this takes.
    set_up(name);
}

fn set_up(name: &str) {
    let mut request = ifreq(name);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the ifreq.
    check(unsafe { libc::ioctl(socket().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) });
}

/// A socket of this thread's namespace, to ask for interfaces by.
fn socket() -> OwnedFd {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let kind = rustix::net::SocketType::DGRAM;
    rustix::net::socket_with(rustix::net::AddressFamily::INET, kind, flags, None).expect("a socket")
}

/// Makes the interface `name`, a tap or a tun, as `flags` say.
pub fn make(name: &str, flags: libc::c_int) {
    open(name, flags);
}

/// The same, with its queue.
fn open(name: &str, flags: libc::c_int) -> OwnedFd {
    let fd = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .expect("/dev/net/tun");
    let mut request = ifreq(name);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and fills the ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) });
    // SAFETY: takes a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETPERSIST, 1) });
    fd
}

fn ifreq(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn check(r: libc::c_int) {
    assert!(r >= 0, "tap: {}; run the tests with CAP_NET_ADMIN", io::Error::last_os_error());
}
