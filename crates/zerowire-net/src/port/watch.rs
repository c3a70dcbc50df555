//! Tells when an interface goes or changes: a receiver that waits for frames of one that is gone
//! would wait for ever.
//!
//! The kernel tells a bound socket nothing that a waiting thread could see (net/xdp/xsk.c,
//! `xsk_notifier`). But it reports interfaces by rtnetlink (man 7 rtnetlink, RTM_NEWLINK and
//! RTM_DELLINK). A filter in the kernel lets only the wanted messages through, so that nobody wakes
//! for others.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerowire_sys::socket::{attach_filter, set_int};

/// Where the type is in `struct nlmsghdr`, and the index in `struct ifinfomsg` behind that, bytes.
const TYPE_AT: u32 = 4;
const INDEX_AT: u32 = 20;

/// What is heard of, in the thread's network namespace from now on.
#[derive(Clone, Copy, Debug)]
pub enum WatchedLinks {
    /// Any change of the interface with this number, and its end.
    One(u32),
    /// Any change of any interface: for who waits for one that is not there yet.
    Any,
    /// Nothing: a socket to ask by about interfaces.
    Nothing,
}

/// Hears of interfaces; readable when there is something.
#[derive(Debug)]
pub struct LinkWatch {
    pub(super) socket: OwnedFd,
}

impl LinkWatch {
    /// Hears of `of`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn new(of: WatchedLinks) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        filter(&socket, of)?;
        // Who gets the socket hears of nothing else.
        set_int(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
        Ok(Self { socket })
    }

    /// Takes what has come, so that the next message is seen.
    pub fn drain(&self) {
        let mut byte = [0u8; 1];
        // A message that does not fit is taken all the same; one that was lost counts as one that
        // came.
        let mut read = || rustix::io::read(&self.socket, &mut byte);
        while matches!(read(), Ok(1..) | Err(Errno::INTR | Errno::NOBUFS)) {}
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Lets only the wanted messages through. Loads are in network order
/// (Documentation/networking/filter.rst).
fn filter(socket: &OwnedFd, of: WatchedLinks) -> io::Result<()> {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let of_type = |t: u16| u16::from_be_bytes(t.to_ne_bytes()).into();
    let load_type = code(load | libc::BPF_H, 0, 0, TYPE_AT);
    let (pass, drop) = (code(ret, 0, 0, u32::MAX), code(ret, 0, 0, 0));
    let mut program = match of {
        WatchedLinks::One(index) => vec![
            load_type,
            code(equal, 1, 0, of_type(libc::RTM_NEWLINK)),
            code(equal, 0, 3, of_type(libc::RTM_DELLINK)),
            code(load | libc::BPF_W, 0, 0, INDEX_AT),
            code(equal, 0, 1, u32::from_be_bytes(index.to_ne_bytes())),
            pass,
            drop,
        ],
        WatchedLinks::Any => vec![
            load_type,
            code(equal, 1, 0, of_type(libc::RTM_NEWLINK)),
            code(equal, 0, 1, of_type(libc::RTM_DELLINK)),
            pass,
            drop,
        ],
        WatchedLinks::Nothing => vec![drop],
    };
    attach_filter(socket, &mut program)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use zerowire_testkit::wait_until;

    use super::*;

    #[test]
    fn an_error_that_lasts_ends_the_draining() {
        let folder = File::open("/").expect("a descriptor that can't be read");
        let watch = LinkWatch { socket: folder.into() };
        let drained = thread::spawn(move || watch.drain());
        wait_until("the draining ends", || drained.is_finished());
    }
}
