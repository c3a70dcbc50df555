//! Packet sockets (packet(7)) and options of sockets.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `PACKET_VNET_HDR` (include/uapi/linux/if_packet.h): frames have a virtio-net header in front.
pub(super) const PACKET_VNET_HDR: libc::c_int = 15;
/// `PACKET_IGNORE_OUTGOING`: not what the interface sends.
pub(super) const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A packet socket that does not block, bound to one interface of this thread's namespace.
/// `protocol` is what it receives (`ETH_P_ALL`); 0 is nothing. It has these options (level, option,
/// value) from the first frame on.
pub(super) fn packet_socket(
    name: &str,
    protocol: u16,
    options: &[(libc::c_int, libc::c_int, libc::c_int)],
) -> OwnedFd {
    let index = super::interface(name).unwrap_or_else(|| panic!("interface {name} is not there"));
    // SAFETY: takes no pointers.
    let fd = unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    assert!(fd >= 0, "a packet socket: {}; run the tests with CAP_NET_RAW", io::Error::last_os_error());
    // SAFETY: the descriptor was made above and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    for &(level, option, value) in options {
        set_option(&socket, level, option, value);
    }
    // SAFETY: integers only; zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is a sockaddr_ll of that length.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
    assert_eq!(bound, 0, "binding to {name}: {}", io::Error::last_os_error());
    socket
}

/// Sets an option of a socket that is a number.
pub fn set_option(socket: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is an int of this function.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    let error = io::Error::last_os_error();
    assert_eq!(set, 0, "socket option {level}/{option}: {error}; run the tests with CAP_NET_ADMIN");
}
