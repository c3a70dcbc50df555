//! One error type for the whole guest.

use std::io;
use std::time::Duration;

use zerowire_vhost_user::{WireError, features};

use crate::GuestAddr;
use crate::vsock::ConnState;

/// What can fail in the guest, or what the device did wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The device broke a rule of the ring; the queue can't be used further.
    #[error("queue {queue}: the device broke the ring: {rule} (used index {index}, value {value})")]
    DeviceBrokeRing {
        /// Index of the queue.
        queue: u16,
        /// The rule, with its section.
        rule: &'static str,
        /// Position in the used ring.
        index: u16,
        /// The offending value.
        value: u64,
    },
    /// The device does not offer features that the driver can't do without.
    #[error("the device does not offer {}; it offers {offered:#x}", features::names(*missing).join(", "))]
    FeaturesMissing {
        /// Features needed and not offered.
        missing: u64,
        /// All features offered.
        offered: u64,
    },
    /// The device did not accept the features (virtio 1.3 §3.1.1 step 6).
    #[error("the device refused the features {acked:#x} (status {status:#x} without FEATURES_OK)")]
    FeaturesRefused {
        /// Features that the driver acknowledged.
        acked: u64,
        /// Device status read back.
        status: u64,
    },
    /// A system call failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        cause: io::Error,
    },
    /// A guest address range is not (wholly) in one region.
    #[error("guest memory {addr} with {len} bytes is not inside one region")]
    NoSuchMemory {
        /// First byte.
        addr: GuestAddr,
        /// Bytes.
        len: usize,
    },
    /// Guest memory is used up.
    #[error("no {len} bytes of guest memory are free; make the guest's memory larger")]
    OutOfMemory {
        /// Bytes wanted.
        len: usize,
    },
    /// Two regions overlap, or one is empty or unaligned.
    #[error("region at {addr} with {len:#x} bytes: {rule}")]
    BadRegion {
        /// First byte.
        addr: GuestAddr,
        /// Bytes.
        len: usize,
        /// The rule.
        rule: &'static str,
    },
    /// A setting is out of range.
    #[error("{what} is {value}, it must be {rule}")]
    BadSetting {
        /// Name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        rule: &'static str,
    },
    /// The frame is longer than the queue's buffers.
    #[error(
        "a frame of {len} bytes does not fit buffers of {capacity} bytes; create the queue with a larger capacity"
    )]
    FrameTooLong {
        /// Bytes of the frame.
        len: usize,
        /// Bytes that fit.
        capacity: usize,
    },
    /// The back end did not answer in time.
    #[error("the back end did not answer {request} within {timeout:?}; is it stuck?")]
    NoReply {
        /// Name of the request.
        request: &'static str,
        /// How long was waited ([`crate::VhostUserOptions::reply_timeout`]).
        timeout: Duration,
    },
    /// The caller wants a feature that was not negotiated.
    #[error("{what} was not negotiated with the back end")]
    NotNegotiated {
        /// Name of the feature.
        what: &'static str,
    },
    /// A device of this machine can't be used.
    #[error("device {device}: {rule}")]
    BadDevice {
        /// Its address on the bus.
        device: String,
        /// What is wrong, and what to do.
        rule: String,
    },
    /// The caller wants a copy of payload that is received in place, or the other way round.
    #[error("the connection {}; {}", if *in_place { "is received in place" } else { "is received by copying" },
        if *in_place { "use dequeue" } else { "open it with connect_in_place or listen_in_place for dequeue" })]
    WrongReceive {
        /// How it is received.
        in_place: bool,
    },
    /// The device broke a rule of its protocol, as the text says.
    #[error("the device broke a rule: {0}")]
    DeviceBrokeRule(String),
    /// What was waited for did not happen in time.
    #[error("{what} did not happen within {timeout:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        timeout: Duration,
    },
    /// The connection can't be used for this.
    #[error("the connection is in state {state:?}; it must be established, and open in this direction")]
    NotConnected {
        /// Its state.
        state: ConnState,
    },
    /// A message is longer than the peer's whole buffer.
    #[error("a message of {len} bytes can't be sent to a peer with a buffer of {capacity} bytes; cut it")]
    MessageTooLong {
        /// Bytes of the message.
        len: usize,
        /// The peer's buf_alloc (virtio 1.3 §5.10.6.3).
        capacity: usize,
    },
    /// The vhost-user socket failed or the back end broke the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl GuestError {
    pub(crate) fn io(what: impl Into<String>, cause: impl Into<io::Error>) -> GuestError {
        GuestError::Io { what: what.into(), cause: cause.into() }
    }
}
