//! Senders on sockets, and what the tests ask of these.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use zerowire::area::{Area, AreaOptions};
use zerowire::send::{Segment, SendBackend, SendMode, SendOptions, Sender};
pub use zerowire_testkit::net::{tcp_pair, udp_pair};

pub fn sender(socket: impl Into<OwnedFd>, options: SendOptions) -> Sender {
    Sender::new(socket.into(), options).unwrap()
}

/// A sender's options that use socket calls, without io_uring.
pub fn socket_options(mode: SendMode) -> SendOptions {
    SendOptions::default().mode(mode).backend(SendBackend::Socket)
}

pub fn area(buffers: usize, buffer_bytes: usize) -> Area {
    Area::new(AreaOptions::default().buffers(buffers).buffer_bytes(buffer_bytes)).unwrap()
}

/// A buffer of the area with `bytes` in it.
pub fn lease(area: &Area, bytes: &[u8]) -> Segment {
    let mut lease = area.lease().expect("a free buffer");
    assert!(lease.set_len(bytes.len()));
    lease.copy_from_slice(bytes);
    Segment::Lease(lease)
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

/// Takes one notification out of the socket's error queue, if there is one.
pub fn take_notification(socket: &impl AsRawFd) -> bool {
    let mut control = [0u64; 32];
    // SAFETY: all zeroes is a valid msghdr; the control buffer is alive for the call.
    let r = unsafe {
        let mut h: libc::msghdr = std::mem::zeroed();
        h.msg_control = control.as_mut_ptr().cast();
        h.msg_controllen = size_of_val(&control);
        libc::recvmsg(socket.as_raw_fd(), &raw mut h, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
    };
    r >= 0
}
