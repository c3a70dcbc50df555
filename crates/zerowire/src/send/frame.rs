//! What every sender of whole frames has in common. Frames are built in memory that the kernel
//! sends from, handed over in batches, and come back.
//!
//! A frame here begins with its Ethernet header and ends before the checksum that the interface
//! appends. The memory of a frame belongs to the caller while [`FrameSender::push`] builds it. It
//! belongs to the kernel from then until [`FrameSender::reap`] finds it back. The sender keeps it
//! all the while.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Counters;

pub use zerowire_wire::ethernet::HEADER_BYTES as ETHERNET_HEADER_BYTES;

/// A sender of whole frames on one interface: a packet ring ([`crate::packet::PacketRing`]), a
/// plain packet socket ([`crate::packet::PacketSocket`]), or AF_XDP ([`crate::xdp`]).
///
/// One thread drives a sender. A loop pushes until `push` says false or there is nothing more to
/// send, flushes, and reaps; `drain` ends it.
pub trait FrameSender {
    /// Bytes of the longest frame that `push` takes, Ethernet header included, virtio-net header
    /// not: what the interface's MTU and the place of a frame allow.
    fn max_frame_bytes(&self) -> usize;

    /// Builds a frame of `len` bytes in place, behind all that were pushed before.
    ///
    /// `build` gets exactly `len` bytes of unspecified content (older frames) and must fill all of
    /// them. False: no place is free, and `build` was not called; flush, reap, and try again. On an
    /// error nothing was pushed, and the sender goes on.
    ///
    /// # Errors
    /// [`FrameError::TooShort`], [`FrameError::TooLong`], [`FrameError::LongerThanMtu`].
    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> Result<bool, FrameError>;

    /// Hands over what was pushed, with one system call where one is needed. It doesn't wait.
    /// Frames for which the kernel has no room at the moment (EAGAIN, ENOBUFS) stay pushed, and go
    /// with the next `flush` or `drain`.
    ///
    /// # Errors
    /// Per cause, see [`FrameError`]. Frames that were not handed over stay pushed, but for the one
    /// that the error names.
    fn flush(&mut self) -> Result<(), FrameError>;

    /// Takes back the places of frames that were sent, without a system call where the kernel posts
    /// them in shared memory. Returns how many came back since the last call.
    fn reap(&mut self) -> usize;

    /// Frames that were pushed and are not back.
    fn outstanding(&self) -> usize;

    /// Flushes, and waits until all frames are back, `timeout` at the longest.
    ///
    /// # Errors
    /// [`FrameError::Stuck`] when the time is over, naming what is not back; the sender can go on,
    /// or be drained again. Otherwise as `flush`.
    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError>;

    /// The ledger of this sender. A frame is counted when it comes back.
    fn counters(&self) -> Arc<Counters>;
}

/// Why a frame sender's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The interface was deleted, or moved to another network namespace (ENXIO, ENODEV).
    #[error("interface {interface} is gone ({frames} frames not sent): make it again, and begin anew")]
    Gone {
        /// Name of the interface at the time of opening.
        interface: String,
        /// Frames that were pushed and not handed over.
        frames: usize,
    },
    /// The interface is down (ENETDOWN).
    #[error("interface {interface} is down ({frames} frames not sent): 'ip link set {interface} up' first")]
    Down {
        /// Name of the interface.
        interface: String,
        /// Frames that were pushed and not handed over; they go with a later flush.
        frames: usize,
    },
    /// The frame is longer than the interface takes (EMSGSIZE).
    #[error(
        "frame {number} of {frame_bytes} bytes is longer than interface {interface} takes (MTU {mtu_bytes} bytes, {} with the \
         Ethernet header): raise the MTU, or send it with segmentation offload", .mtu_bytes + ETHERNET_HEADER_BYTES
    )]
    LongerThanMtu {
        /// Name of the interface.
        interface: String,
        /// Number of the frame: how many were pushed before it since the sender was opened.
        number: u64,
        /// Bytes of the frame, or of one segment of it, Ethernet header included.
        frame_bytes: usize,
        /// MTU of the interface in bytes, without the Ethernet header.
        mtu_bytes: usize,
    },
    /// The frame doesn't fit into the place that the sender keeps for one frame.
    #[error(
        "a frame of {frame_bytes} bytes doesn't fit into {slot_bytes} bytes: open the sender for longer frames"
    )]
    TooLong {
        /// Bytes of the frame.
        frame_bytes: usize,
        /// Bytes of a place.
        slot_bytes: usize,
    },
    /// The frame has no whole Ethernet header.
    #[error(
        "a frame of {frame_bytes} bytes has no whole Ethernet header: give at least {ETHERNET_HEADER_BYTES} bytes"
    )]
    TooShort {
        /// Bytes of the frame.
        frame_bytes: usize,
    },
    /// The offload fields (virtio-net header) break a rule.
    #[error("offload of a frame of {frame_bytes} bytes: {rule}")]
    BadOffload {
        /// Bytes of the frame.
        frame_bytes: usize,
        /// The rule, with the value.
        rule: String,
    },
    /// The kernel refused one frame. The sender dropped it, the others stay pushed, and the sender
    /// goes on.
    #[error("interface {interface} refused frame {number} (place {slot}, {frame_bytes} bytes): {cause}")]
    Refused {
        /// Name of the interface.
        interface: String,
        /// Number of the frame: how many were pushed before it since the sender was opened.
        number: u64,
        /// Its place in the ring.
        slot: usize,
        /// Its bytes.
        frame_bytes: usize,
        /// What the kernel said.
        cause: io::Error,
    },
    /// A place of the ring can't be used as asked.
    #[error("place {slot} of {slots}: {rule}")]
    Slot {
        /// The place.
        slot: usize,
        /// Places of the ring.
        slots: usize,
        /// What is wrong, and what to do.
        rule: &'static str,
    },
    /// Not all frames came back in time.
    #[error(
        "{frames} frames are not back from interface {interface} after {waited:?} ({unsent} of them not handed \
         over yet; the oldest is frame {oldest} of {oldest_bytes} bytes): wait longer, or look at its queue with \
         'tc -s qdisc show dev {interface}'"
    )]
    Stuck {
        /// Name of the interface.
        interface: String,
        /// Frames that are not back.
        frames: usize,
        /// Those of them that the kernel didn't take yet.
        unsent: usize,
        /// Number of the oldest, see [`FrameError::Refused`].
        oldest: u64,
        /// Its bytes.
        oldest_bytes: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// A system call failed for another reason.
    #[error("interface {interface}: {call} failed: {cause}")]
    System {
        /// Name of the interface.
        interface: String,
        /// Name of the call.
        call: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

/// How long a loop sleeps between attempts when nothing reports progress (a full queue: ENOBUFS).
pub(crate) const RETRY: Duration = Duration::from_millis(1);
