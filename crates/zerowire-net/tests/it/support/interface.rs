//! Settings that the kernel takes for an interface (include/uapi/linux/ethtool.h).

const ETHTOOL_STXCSUM: u32 = 0x17;

/// Has the kernel complete checksums before the interface sees a frame, and with that segment long
/// ones: as `ethtool -K name tx off`.
pub fn no_checksums(name: &str) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
        .expect("a socket");
    // SAFETY: the command reads two numbers (struct ethtool_value).
    let done = unsafe { zerowire_sys::netdevice::ethtool(&socket, name, &mut [ETHTOOL_STXCSUM, 0]) };
    done.unwrap_or_else(|e| panic!("interface {name}: tx off: {e}"));
}
