//! Payloads that the kernel or the NIC cuts into datagrams (UDP_SEGMENT).

use super::SendError;
use super::kind::{SocketFamily, SocketKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use zerowire_sys::socket::{get_int, set_int};

/// `UDP_MAX_SEGMENTS` of older kernels (include/linux/udp.h; 128 since Linux 6.9): all kernels take
/// this many.
const SURE_SEGMENTS: usize = 64;
/// The longest payload of a UDP datagram over IPv4. (Over IPv6 it is 20 bytes more.)
const LONGEST_DATAGRAM: usize = 65_507;
/// Bytes of the headers of IP, without options, and of UDP.
const IPV4_HEADERS: i32 = 20 + 8;
const IPV6_HEADERS: i32 = 40 + 8;

/// The longest [`segment_bytes`](super::SendOptions::segment_bytes) that the path of a connected
/// UDP socket takes at the moment. It is the path's MTU without the headers (options of IP, which
/// few sockets have, come off besides). `None`: not a UDP socket with a peer.
pub fn longest_segment(socket: impl AsFd) -> Option<u16> {
    let kind = SocketKind::of(&socket).ok()?;
    if kind.kind != SocketFamily::Udp {
        return None;
    }
    let peer = SocketAddr::try_from(rustix::net::getpeername(&socket).ok()??).ok()?;
    let mtu = |level, option| get_int(&socket, level, option).ok();
    let room = match peer {
        SocketAddr::V4(_) => mtu(libc::SOL_IP, libc::IP_MTU)? - IPV4_HEADERS,
        SocketAddr::V6(peer) if peer.ip().to_ipv4_mapped().is_some() => {
            mtu(libc::SOL_IPV6, libc::IPV6_MTU)? - IPV4_HEADERS
        }
        SocketAddr::V6(_) => mtu(libc::SOL_IPV6, libc::IPV6_MTU)? - IPV6_HEADERS,
    };
    Some(u16::try_from(room.max(0)).unwrap_or(u16::MAX))
}

/// Sets UDP_SEGMENT.
pub(super) fn set(socket: impl AsFd, kind: SocketKind, bytes: u16) -> Result<(), SendError> {
    if kind.kind != SocketFamily::Udp || bytes == 0 {
        return Err(SendError::Segments(bytes));
    }
    set_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes.into())
        .map_err(SendError::system("setsockopt(UDP_SEGMENT)"))?;
    // Read back: a kernel that doesn't know the option must not pass for one that does.
    get_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT)
        .map_err(SendError::system("getsockopt(UDP_SEGMENT)"))?;
    Ok(())
}

/// Takes it back.
pub(super) fn unset(socket: impl AsFd) -> Result<(), SendError> {
    set_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
        .map_err(SendError::system("setsockopt(UDP_SEGMENT)"))
}

/// What an error of a send on a socket with UDP_SEGMENT says of the segments, if anything
/// (udp_send_skb, net/ipv4/udp.c; the same in net/ipv6). Segments that are longer than the path
/// takes are EMSGSIZE since Linux 6.14, and EINVAL before.
pub(super) fn refusal(socket: impl AsFd, segment_bytes: u16, len: usize, errno: i32) -> Option<SendError> {
    let longest = || longest_segment(&socket).filter(|longest| segment_bytes > *longest);
    let segments = len.div_ceil(usize::from(segment_bytes).max(1));
    match errno {
        libc::EMSGSIZE | libc::EINVAL if longest().is_some() => {
            Some(SendError::SegmentTooLong { segment_bytes, longest: longest() })
        }
        // The whole is not too long: a header is longer than those above.
        libc::EMSGSIZE if len <= LONGEST_DATAGRAM => {
            Some(SendError::SegmentTooLong { segment_bytes, longest: None })
        }
        libc::EINVAL if segments > SURE_SEGMENTS => {
            Some(SendError::TooManySegments { len, segments, segment_bytes })
        }
        libc::EIO => Some(SendError::SegmentsRefused { segment_bytes }),
        _ => None,
    }
}
