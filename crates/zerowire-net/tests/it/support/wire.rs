//! A wire that keeps frames as they are, in the place of a tap.

use std::os::fd::OwnedFd;

use zerowire_net::port::tap::TapInlet;
use zerowire_net::receive::ReceiveSetup;
use zerowire_net::{Policy, Receive};
use zerowire_vhost::ring::SplitRing;

/// Two ends of a socket that keeps the bounds of frames, as a tap does: one for the device, one for
/// the test.
pub fn wire() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair of sockets");
    for s in [&a, &b] {
        // More than a batch of the longest frames.
        rustix::net::sockopt::set_socket_send_buffer_size(s, 16 << 20).expect("a send buffer");
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(s, 16 << 20);
    }
    (a, b)
}

/// The next frame on a [`wire`].
pub fn read_frame(fd: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    match rustix::io::read(fd, &mut buffer) {
        Ok(n) => {
            buffer.truncate(n);
            Some(buffer)
        }
        Err(rustix::io::Errno::AGAIN) => None,
        Err(e) => panic!("reading the wire: {e}"),
    }
}

/// Copies received frames of up to 1024 bytes, where nothing but such frames comes.
pub fn rx_policy() -> Policy {
    Policy::default().rx_copybreak_bytes(1024)
}

/// A receive side on `ring`, of a port with an MTU of 1500 of which a read takes a frame.
pub fn receive(ring: SplitRing, setup: ReceiveSetup, policy: Policy) -> Receive<TapInlet> {
    let inlet = TapInlet::new(policy, 1500, setup).expect("memory");
    Receive::new(ring, inlet, setup)
}
