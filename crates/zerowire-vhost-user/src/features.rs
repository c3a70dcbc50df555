//! Device feature masks (virtio 1.3 §5.1.3 for net, §5.10.3 for vsock, §6 for
//! the ring), and the one bit that vhost-user adds.

macro_rules! masks {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*

        /// Names of the bits set in the `mask` of a network device, lowest
        /// first; unknown ones as `bit N`.
        pub fn names(mask: u64) -> Vec<String> {
            (0..64)
                .filter(|bit| mask & (1 << bit) != 0)
                .map(|bit| match bit {
                    $($bit => stringify!($name).to_owned(),)*
                    bit => format!("bit {bit}"),
                })
                .collect()
        }
    };
}

masks! {
    /// Net bit 0: the device takes frames with a partial checksum.
    NET_CSUM = 0;
    /// Net bit 1: the driver takes frames with a partial checksum.
    NET_GUEST_CSUM = 1;
    /// Net bit 2: the driver may change its offloads while running.
    NET_CTRL_GUEST_OFFLOADS = 2;
    /// Net bit 3: the device gives its largest MTU.
    NET_MTU = 3;
    /// Net bit 5: the device gives its MAC address.
    NET_MAC = 5;
    /// Net bit 7: the driver takes TSOv4.
    NET_GUEST_TSO4 = 7;
    /// Net bit 8: the driver takes TSOv6.
    NET_GUEST_TSO6 = 8;
    /// Net bit 9: the driver takes TSO with ECN.
    NET_GUEST_ECN = 9;
    /// Net bit 10: the driver takes UFO.
    NET_GUEST_UFO = 10;
    /// Net bit 11: the device takes TSOv4.
    NET_HOST_TSO4 = 11;
    /// Net bit 12: the device takes TSOv6.
    NET_HOST_TSO6 = 12;
    /// Net bit 13: the device takes TSO with ECN.
    NET_HOST_ECN = 13;
    /// Net bit 14: the device takes UFO.
    NET_HOST_UFO = 14;
    /// Net bit 15: the driver merges receive buffers.
    NET_MRG_RXBUF = 15;
    /// Net bit 16: link state in configuration space.
    NET_STATUS = 16;
    /// Net bit 17: control queue.
    NET_CTRL_VQ = 17;
    /// Net bit 18: receive mode by control queue.
    NET_CTRL_RX = 18;
    /// Net bit 19: VLAN filter by control queue.
    NET_CTRL_VLAN = 19;
    /// Net bit 21: the driver can announce itself.
    NET_GUEST_ANNOUNCE = 21;
    /// Net bit 22: several queue pairs.
    NET_MQ = 22;
    /// Net bit 23: MAC address by control queue.
    NET_CTRL_MAC_ADDR = 23;
    /// vhost bit 26 (linux/vhost.h VHOST_F_LOG_ALL): log writes for migration.
    VHOST_LOG_ALL = 26;
    /// Ring bit 27: any layout of descriptors (always so since virtio 1.0).
    ANY_LAYOUT = 27;
    /// Ring bit 28: indirect descriptors.
    RING_INDIRECT_DESC = 28;
    /// Ring bit 29: used_event and avail_event.
    RING_EVENT_IDX = 29;
    /// vhost-user bit 30 (VHOST_USER_F_PROTOCOL_FEATURES): there are protocol
    /// features; rings start disabled until SET_VRING_ENABLE.
    VHOST_USER_PROTOCOL_FEATURES = 30;
    /// Bit 32: virtio 1.0 or later.
    VERSION_1 = 32;
    /// Bit 33: access to memory may go through an IOMMU.
    ACCESS_PLATFORM = 33;
    /// Bit 34: packed rings.
    RING_PACKED = 34;
    /// Bit 35: buffers are used in order.
    IN_ORDER = 35;
    /// Bit 36: memory order of the platform.
    ORDER_PLATFORM = 36;
    /// Bit 40: a single queue can be reset.
    RING_RESET = 40;
    /// Net bit 54: the driver takes USOv4.
    NET_GUEST_USO4 = 54;
    /// Net bit 55: the driver takes USOv6.
    NET_GUEST_USO6 = 55;
    /// Net bit 56: the device takes USO.
    NET_HOST_USO = 56;
    /// Net bit 57: the device reports hashes (a longer header).
    NET_HASH_REPORT = 57;
    /// Net bit 59: the driver gives exact header lengths.
    NET_GUEST_HDRLEN = 59;
    /// Net bit 60: receive-side scaling.
    NET_RSS = 60;
}

/// vsock bit 0: stream sockets; without any bit there are those, too.
pub const VSOCK_STREAM: u64 = 1 << 0;
/// vsock bit 1: sockets that keep the bounds of messages.
pub const VSOCK_SEQPACKET: u64 = 1 << 1;

/// Bits that mean the same for every device: 24 to 41 (virtio 1.3 §2.2).
const COMMON: u64 = 0x3ff_ff00_0000;

/// Names of the bits set in the `mask` of a vsock device, lowest first;
/// unknown ones as `bit N`.
pub fn vsock_names(mask: u64) -> Vec<String> {
    (0..64)
        .map(|bit| (bit, 1 << bit))
        .filter(|(_, one)| mask & one != 0)
        .flat_map(|(bit, one)| match one {
            VSOCK_STREAM => vec!["VSOCK_STREAM".to_owned()],
            VSOCK_SEQPACKET => vec!["VSOCK_SEQPACKET".to_owned()],
            _ if one & COMMON != 0 => names(one),
            _ => vec![format!("bit {bit}")],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cover_known_and_unknown_bits() {
        assert_eq!(names(NET_CSUM | NET_HOST_USO | 1 << 63), ["NET_CSUM", "NET_HOST_USO", "bit 63"]);
        assert!(names(0).is_empty());
    }

    #[test]
    fn vsock_bits_have_their_own_names() {
        let mask = VSOCK_STREAM | VSOCK_SEQPACKET | RING_EVENT_IDX | VERSION_1 | NET_MAC | 1 << 41 | 1 << 56;
        let expected =
            ["VSOCK_STREAM", "VSOCK_SEQPACKET", "bit 5", "RING_EVENT_IDX", "VERSION_1", "bit 41", "bit 56"];
        assert_eq!(vsock_names(mask), expected);
    }
}
