//! The host's side of a tap: a packet socket that sees what comes out of it and sends into it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::packet_socket::{PACKET_IGNORE_OUTGOING, PACKET_VNET_HDR, packet_socket};

/// Bytes of the virtio-net header of a packet socket: the old one, without num_buffers
/// (include/uapi/linux/if_packet.h).
pub const PEER_HEADER: usize = 10;

/// A frame on the host's side with the offload fields in front of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerFrame {
    /// flags, gso_type, hdr_len, gso_size, csum_start, csum_offset as they lie in memory.
    pub header: [u8; PEER_HEADER],
    /// The frame.
    pub bytes: Vec<u8>,
}

impl PeerFrame {
    /// Kind of segmentation, without the ECN bit.
    pub fn gso_type(&self) -> u8 {
        self.header[1] & 0x7f
    }

    /// Whether the frame's checksum is still incomplete.
    pub fn needs_csum(&self) -> bool {
        self.header[0] & 1 != 0
    }
}

impl std::fmt::Debug for PeerFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.bytes[..self.bytes.len().min(64)];
        write!(f, "{} bytes, header {:?}, {head:02x?}…", self.bytes.len(), self.header)
    }
}

/// The packet socket.
pub struct Peer {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Peer {
    /// Binds to interface `name` of this thread's namespace, which must exist.
    pub fn new(name: &str) -> Self {
        let options = [
            (libc::SOL_PACKET, PACKET_VNET_HDR, 1),
            (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20),
            (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20),
        ];
        let socket = packet_socket(name, libc::ETH_P_ALL as u16, &options);
        Self { socket, buffer: vec![0; 70_000] }
    }

    /// Sends a plain frame to the guest.
    pub fn send(&self, frame: &[u8]) {
        self.send_with(&[0; PEER_HEADER], frame)
            .unwrap_or_else(|e| panic!("frame of {} bytes: {e}", frame.len()));
    }

    /// Sends a frame with offload fields.
    pub fn send_with(&self, header: &[u8; PEER_HEADER], frame: &[u8]) -> io::Result<()> {
        let whole = [header.as_slice(), frame].concat();
        rustix::net::send(&self.socket, &whole, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// The next frame from the guest; None where `patience` is over first.
    pub fn recv(&mut self, patience: Duration) -> Option<PeerFrame> {
        let start = Instant::now();
        loop {
            match rustix::io::read(&self.socket, &mut self.buffer) {
                Ok(n) => {
                    assert!(n >= PEER_HEADER, "a packet of {n} bytes without its header");
                    let mut header = [0; PEER_HEADER];
                    header.copy_from_slice(&self.buffer[..PEER_HEADER]);
                    if is_igmp(&self.buffer[PEER_HEADER..n]) {
                        continue;
                    }
                    return Some(PeerFrame { header, bytes: self.buffer[PEER_HEADER..n].to_vec() });
                }
                Err(rustix::io::Errno::AGAIN) => {}
                Err(e) => panic!("reading the packet socket: {e}"),
            }
            let left = patience.checked_sub(start.elapsed())?;
            let limit = Timespec::try_from(left).ok();
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], limit.as_ref());
        }
    }

    /// The next frame, which must come.
    pub fn expect(&mut self) -> PeerFrame {
        self.recv(crate::PATIENCE).expect("a frame from the guest")
    }

    /// Everything that is there now.
    pub fn drain(&mut self) -> Vec<PeerFrame> {
        std::iter::from_fn(|| self.recv(Duration::ZERO)).collect()
    }
}

/// Whether it is a report of the kernel's own, which it makes some time after an interface joined
/// groups.
fn is_igmp(frame: &[u8]) -> bool {
    matches!(frame, [1, 0, 0x5e, ..]) && frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&2)
}
