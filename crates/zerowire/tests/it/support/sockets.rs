//! Senders on sockets, and what the tests ask of these.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use zerowire::send::{SendOptions, Sender};
pub use zerowire_testkit::net::{tcp_pair, udp_pair};

pub fn sender(socket: impl Into<OwnedFd>, options: SendOptions) -> Sender {
    Sender::new(socket.into(), options).unwrap()
}

/// Bytes that differ from position to position and from seed to seed.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    zerowire_testkit::net::lab::pattern(seed as u32, len)
}

pub fn set_int(socket: &impl AsRawFd, option: i32, value: i32) {
    // SAFETY: value is valid for reads for the call.
    let r = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), 4)
    };
    assert_eq!(r, 0, "setsockopt({option}): {}", std::io::Error::last_os_error());
}

/// The next datagram. A wait with a timeout is cut short with EINTR when a ring that this thread
/// has used is taken down (io_uring.c, `io_tctx_exit_cb`).
pub fn datagram(socket: &UdpSocket, into: &mut [u8]) -> usize {
    loop {
        match socket.recv(into) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            got => return got.expect("a datagram"),
        }
    }
}
