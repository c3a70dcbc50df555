//! Fills the queue of a tap with frames, so that its reader finds work without a pause.
//!
//! Frames enter through a packet socket on the host's side of the tap (packet(7)), past the
//! queueing discipline. They wait in the tap's own queue, which is made as long as a burst. So
//! saturation is exact: while the reader drains a burst its queue is never empty, and the generator
//! isn't running. A frame that does not fit is an error of the send, and the interface's counters
//! confirm the count.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use zerowire_sys::packet;
use zerowire_sys::socket::{Messages, set_int};

use crate::frame::Frame;
use crate::netns::{Counters, NetnsLink};

/// Room for frames that wait in a queue which counts them as the socket's, as a veth device's does.
/// A sender that has to wait for room would hold up a measured side that waits for the sender.
const SEND_BUFFER: i32 = 16 << 20;

/// Most frames of one system call: with 256 the array of its messages stays within the first-level
/// cache.
const SEND_BATCH: usize = 256;

/// A packet socket that waits for room. It receives nothing until it is bound.
pub fn packet_socket() -> Result<OwnedFd> {
    let socket = packet::socket().context("can't open a packet socket: CAP_NET_RAW is needed")?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// A source of one frame on one interface.
#[derive(Debug)]
pub struct Generator {
    socket: OwnedFd,
    /// The frame, after its virtio-net header if the kernel shall cut it.
    image: Vec<u8>,
}

impl Generator {
    /// Opens a packet socket on `link` for `frame`. Needs CAP_NET_RAW.
    pub fn new(link: &NetnsLink, frame: Frame) -> Result<Self> {
        let socket = packet_socket()?;
        let option = |option, value| {
            set_int(&socket, libc::SOL_PACKET, option, value)
                .with_context(|| format!("packet socket: option {option} is refused"))
        };
        option(packet::PACKET_QDISC_BYPASS, 1)?;
        let mut image = Vec::new();
        if frame.is_gso() {
            option(packet::PACKET_VNET_HDR, 1)?;
            image.extend_from_slice(frame.short_header());
        }
        image.extend_from_slice(frame.bytes());
        packet::bind(socket.as_fd(), link.index()?, false)?;
        Ok(Self { socket, image })
    }

    /// The same with room for bursts into the queue of a veth device. Needs CAP_NET_ADMIN outside
    /// of user namespaces.
    pub fn with_room(link: &NetnsLink, frame: Frame) -> Result<Self> {
        let generator = Self::new(link, frame)?;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE);
        set_int(&generator.socket, level, option, SEND_BUFFER)
            .context("can't enlarge a send buffer: CAP_NET_ADMIN is needed (run as root)")?;
        Ok(generator)
    }

    /// Puts `count` frames into the tap's queue. Fails when one doesn't fit.
    pub fn preload(&self, count: usize) -> Result<()> {
        let (mut sent, mut messages) = (0, Messages::default());
        while sent < count {
            let batch = std::iter::repeat_n(&self.image[..], SEND_BATCH.min(count - sent));
            let took = packet::send_many(self.socket.as_fd(), batch, &mut messages).with_context(|| {
                format!(
                    "frame {} of {count}, {} bytes, doesn't fit into the tap's queue",
                    sent + 1,
                    self.image.len()
                )
            })?;
            sent += took;
        }
        Ok(())
    }
}

/// Checks that the tap's queue dropped nothing between two readings, and that `frames` were read.
pub fn verify_received(before: Counters, after: Counters, frames: usize) -> Result<()> {
    let dropped = after.tx_dropped - before.tx_dropped;
    let read = after.tx_packets - before.tx_packets;
    if dropped != 0 || read != frames as u64 {
        bail!("{frames} frames were queued, {read} read and {dropped} dropped: the run is void");
    }
    Ok(())
}

/// Checks that the host received `frames` frames between two readings.
pub fn verify_sent(before: Counters, after: Counters, frames: usize) -> Result<()> {
    let received = after.rx_packets - before.rx_packets;
    if received != frames as u64 {
        bail!("{frames} frames were written, the host received {received}: the run is void");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_frame_voids_the_run() {
        let before = Counters::default();
        let after = Counters { tx_packets: 10, rx_packets: 7, ..before };
        assert!(verify_received(before, after, 10).is_ok());
        assert!(verify_received(before, after, 11).is_err());
        assert!(verify_sent(before, after, 7).is_ok());
        assert!(verify_sent(before, after, 8).is_err());
        let dropped = Counters { tx_dropped: 1, ..after };
        assert!(verify_received(before, dropped, 10).is_err());
    }
}
