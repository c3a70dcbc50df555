//! The host's side of a tap: a packet socket that sees what comes out of it and sends into it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Options of packet(7), linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const ETH_P_ALL: u16 = 3;

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
        let index = super::interface(name).unwrap_or_else(|| panic!("interface {name} is not there"));
        // SAFETY: takes no pointers.
        let fd = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
        };
        assert!(fd >= 0, "packet socket: {}; run the tests with CAP_NET_RAW", io::Error::last_os_error());
        // SAFETY: the descriptor was made above and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1);
        set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: ETH_P_ALL.to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = std::mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is a sockaddr_ll of that length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        assert_eq!(bound, 0, "binding to {name}: {}", io::Error::last_os_error());
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
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit));
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

fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = std::mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is an int of this function.
    let r = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    assert_eq!(
        r,
        0,
        "socket option {level}/{option}: {}; run the tests with CAP_NET_ADMIN",
        io::Error::last_os_error()
    );
}
