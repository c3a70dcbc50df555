//! Which features are offered, and what the port must be told about those that the guest took.

use serde::{Deserialize, Serialize};
use zerowire_vhost_user::features as f;

/// What frames may leave to whoever takes them (virtio 1.3 §5.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// Partial checksums.
    pub csum: bool,
    /// TCP segmentation over IPv4.
    pub tso4: bool,
    /// TCP segmentation over IPv6.
    pub tso6: bool,
    /// TCP segmentation with ECN.
    pub ecn: bool,
    /// UDP fragmentation.
    pub ufo: bool,
    /// UDP segmentation over IPv4 and IPv6 (Linux 6.2).
    pub uso: bool,
}

impl Offloads {
    /// The bits of those that are there, in the order of the fields.
    pub(crate) fn bits(self, masks: [u64; 6]) -> u64 {
        let each = [self.csum, self.tso4, self.tso6, self.ecn, self.ufo, self.uso];
        each.into_iter().zip(masks).filter(|(has, _)| *has).fold(0, |all, (_, mask)| all | mask)
    }
}

/// Features that need nothing from the port.
const BASE: u64 = f::VERSION_1
    | f::ACCESS_PLATFORM
    | f::RING_INDIRECT_DESC
    | f::RING_EVENT_IDX
    | f::NET_MRG_RXBUF
    | f::NET_MTU
    | f::VHOST_LOG_ALL
    | f::VHOST_USER_PROTOCOL_FEATURES;

/// The virtio features to offer over a port with `pairs` queue pairs. The port takes frames with
/// `offloads` from the guest, and has frames with `toward_guest` for it.
pub fn offered(offloads: Offloads, toward_guest: Offloads, pairs: usize) -> u64 {
    let mut bits = BASE;
    if pairs > 1 {
        bits |= f::NET_MQ;
    }
    let from =
        [f::NET_CSUM, f::NET_HOST_TSO4, f::NET_HOST_TSO6, f::NET_HOST_ECN, f::NET_HOST_UFO, f::NET_HOST_USO];
    let toward = [
        f::NET_GUEST_CSUM,
        f::NET_GUEST_TSO4,
        f::NET_GUEST_TSO6,
        f::NET_GUEST_ECN,
        f::NET_GUEST_UFO,
        f::NET_GUEST_USO4 | f::NET_GUEST_USO6,
    ];
    bits | offloads.bits(from) | toward_guest.bits(toward)
}

/// What frames toward the guest may look like, given what it acknowledged.
pub fn toward_guest(acked: u64) -> Offloads {
    let has = |bit| acked & bit != 0;
    let csum = has(f::NET_GUEST_CSUM);
    let tso4 = csum && has(f::NET_GUEST_TSO4);
    let tso6 = csum && has(f::NET_GUEST_TSO6);
    Offloads {
        csum,
        tso4,
        tso6,
        ecn: (tso4 || tso6) && has(f::NET_GUEST_ECN),
        ufo: csum && has(f::NET_GUEST_UFO),
        // Both or none, as a tap has it; a guest that takes only one gets none.
        uso: csum && has(f::NET_GUEST_USO4) && has(f::NET_GUEST_USO6),
    }
}

/// Length of the virtio-net header, bytes: `num_buffers` is there with VERSION_1 or MRG_RXBUF
/// (virtio 1.3 §5.1.6).
pub fn header_len(acked: u64) -> usize {
    if acked & (f::VERSION_1 | f::NET_MRG_RXBUF) != 0 { 12 } else { 10 }
}

#[cfg(test)]
mod tests;
