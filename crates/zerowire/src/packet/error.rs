//! Why a packet sender can't be opened.

use std::io;

use zerowire_sys::packet::{GeometryError, MAX_FRAME_BYTES, MAX_RING_BYTES, MAX_SLOTS};

/// Why a [`PacketRing`](super::PacketRing) or a [`PacketSocket`](super::PacketSocket) can't be
/// opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The user may not open packet sockets.
    #[error(
        "no packet socket for this user ({cause}): run as root, or grant CAP_NET_RAW ('setcap cap_net_raw+ep PROGRAM')"
    )]
    NotPermitted {
        /// What the kernel said.
        cause: io::Error,
    },
    /// No interface in this network namespace has this name.
    #[error("interface {interface}: {cause}: 'ip link' lists those of this network namespace")]
    NoInterface {
        /// The name.
        interface: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The number of slots is out of bounds.
    #[error("a ring of {slots} slots: give 1 to {MAX_SLOTS}")]
    Slots {
        /// The number.
        slots: usize,
    },
    /// The length of frames is out of bounds.
    #[error("frames of {frame_bytes} bytes: give 14 to {MAX_FRAME_BYTES}")]
    FrameBytes {
        /// The length.
        frame_bytes: usize,
    },
    /// The ring would take too much memory.
    #[error(
        "a ring of {slots} slots of {slot_bytes} bytes is longer than {MAX_RING_BYTES} bytes: take fewer slots, or \
         shorter frames"
    )]
    RingBytes {
        /// Slots asked for.
        slots: usize,
        /// Bytes that each takes in the ring.
        slot_bytes: usize,
    },
    /// The kernel has no memory for the ring.
    #[error("no memory for a ring of {bytes} bytes ({cause}): take fewer slots, or free memory")]
    NoMemory {
        /// Bytes of the ring.
        bytes: usize,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The ring that the socket has is in use.
    #[error("the packet ring from before is still in use ({cause}): try again when its frames are sent")]
    Busy {
        /// What the kernel said.
        cause: io::Error,
    },
    /// The kernel refuses transmit rings of both versions.
    #[error(
        "transmit rings are refused (TPACKET_V3: {v3}; TPACKET_V2: {v2}): send with a PacketSocket, which copies"
    )]
    NoRing {
        /// What the kernel said to version 3.
        v3: io::Error,
        /// What it said to version 2.
        v2: io::Error,
    },
    /// An option is refused.
    #[error("packet socket option {option} is refused: {cause}: open it without this option")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
    /// A system call failed for another reason.
    #[error("interface {interface}: {call} failed: {cause}")]
    System {
        /// The interface.
        interface: String,
        /// Name of the call.
        call: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl OpenError {
    /// For `map_err`.
    pub(super) fn system(interface: &str, call: &'static str) -> impl FnOnce(io::Error) -> Self {
        let interface = interface.to_owned();
        move |cause| Self::System { interface, call, cause }
    }
}

impl From<GeometryError> for OpenError {
    fn from(e: GeometryError) -> Self {
        match e {
            GeometryError::Slots { slots } => Self::Slots { slots },
            GeometryError::RingBytes { slots, slot_bytes } => Self::RingBytes { slots, slot_bytes },
        }
    }
}
