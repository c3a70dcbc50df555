//! What the kernel is told to do for an interface (include/uapi/linux/ethtool.h).

use std::io;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `struct ethtool_value`
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has the kernel complete checksums before the interface sees a frame, and with that segment long ones: as
/// `ethtool -K name tx off`.
pub fn no_checksums(name: &str) {
    let mut value = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: plain bytes, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
        .expect("a socket");
    use std::os::fd::AsRawFd;
    // SAFETY: the request names an interface and a value that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(done, 0, "interface {name}: tx off: {}", io::Error::last_os_error());
}
