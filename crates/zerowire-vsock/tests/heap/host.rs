//! Host programs of the first guest, in the test's own thread.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use zerowire_testkit::limits::allow_descriptors;
use zerowire_vsock::packet::{HOST_CID, Kind};

use super::device::{Device, bytes};

/// A connection of the first guest to a host program.
pub struct Host {
    /// The guest's end.
    pub key: (u32, u32),
    socket: OwnedFd,
    /// Bytes of the pattern that were read and written.
    pub read: usize,
    pub written: usize,
    buffer: Vec<u8>,
}

/// Makes `count` connections and accepts them.
pub fn connect(device: &mut Device, count: usize, kind: Kind) -> Vec<Host> {
    allow_descriptors();
    let socket_type = if kind == Kind::Stream { SocketType::STREAM } else { SocketType::SEQPACKET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, socket_type, flags, None).expect("a socket");
    let address = SocketAddrUnix::new(device.port_path(7)).expect("a path");
    rustix::net::bind(&listener, &address).expect("a free path");
    rustix::net::listen(&listener, 4).expect("listening");
    let one = |_| {
        let key = device.connect(0, HOST_CID, 7, kind);
        assert!(device.conns[0][&key].open);
        let socket = rustix::net::accept_with(&listener, flags).expect("a connection");
        Host { key, socket, read: 0, written: 0, buffer: Vec::new() }
    };
    (0..count).map(one).collect()
}

impl Host {
    /// Reads up to `most` bytes, or a message; returns how many there were.
    pub fn read(&mut self, most: usize) -> usize {
        self.buffer.resize(self.buffer.len().max(most), 0);
        match rustix::net::recv(&self.socket, &mut self.buffer[..most], RecvFlags::DONTWAIT) {
            Ok((n, whole)) => {
                assert!(n > 0 && n == whole, "an end");
                assert!(self.buffer[..n] == bytes(self.read as u32, n), "a byte changed on its way");
                self.read += n;
                n
            }
            Err(e) => {
                assert_eq!(e, Errno::AGAIN);
                0
            }
        }
    }

    /// Writes `len` bytes, or a message of them; the socket must have room.
    pub fn write(&mut self, len: usize) {
        let out = bytes(self.written as u32, len);
        let n = rustix::net::send(&self.socket, &out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        assert_eq!(n, Ok(len));
        self.written += len;
    }
}
