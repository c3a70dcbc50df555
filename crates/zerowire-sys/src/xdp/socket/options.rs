//! How a socket is bound.

use std::time::Duration;

use super::XdpError;

/// Which mode a queue is bound in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy where the driver can, else copy.
    #[default]
    Auto,
    /// One copy, the kernel's: works on any interface.
    Copy,
    /// None; an error where the driver can't.
    ZeroCopy,
}

/// Entries of the rings: powers of two. Fill and completion rings are always there; receive and
/// transmit rings can be left out with 0, but not both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Chunks waiting for received frames.
    pub fill: u32,
    /// Pieces that were sent.
    pub completion: u32,
    /// Pieces that were received.
    pub receive: u32,
    /// Pieces to send.
    pub transmit: u32,
}

impl Default for RingSizes {
    /// 2048 each.
    fn default() -> Self {
        Self { fill: 2048, completion: 2048, receive: 2048, transmit: 2048 }
    }
}

/// More entries than this take more memory than the kernel gives in one piece for descriptors of 16
/// bytes.
const MAX_ENTRIES: u32 = 1 << 20;

impl RingSizes {
    pub(super) fn check(&self) -> Result<(), XdpError> {
        let rings = [
            ("the fill ring", self.fill, false),
            ("the completion ring", self.completion, false),
            ("the receive ring", self.receive, true),
            ("the transmit ring", self.transmit, true),
        ];
        for (name, size, optional) in rings {
            let fine = (size.is_power_of_two() && size <= MAX_ENTRIES) || (optional && size == 0);
            if !fine {
                let rule = format!("take a power of two up to {MAX_ENTRIES} entries");
                return Err(XdpError::Value { name, value: size.into(), rule });
            }
        }
        if self.receive == 0 && self.transmit == 0 {
            let rule = "take a receive or a transmit ring, or both".into();
            return Err(XdpError::Value { name: "the receive ring", value: 0, rule });
        }
        Ok(())
    }
}

/// How a socket is bound.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: String,
    /// Number of its queue, from 0.
    pub queue: u32,
    /// Copy or not. Further sockets on one UMEM have the mode of the first.
    pub mode: Mode,
    /// Frames can have several pieces (`XDP_USE_SG`, since Linux 6.6).
    pub multi_buffer: bool,
    /// Entries of the rings.
    pub rings: RingSizes,
    /// Chunks to put into the fill ring before the queue is bound, at most as many as it has
    /// entries. The caller answers for their addresses. In zero-copy mode a driver may take chunks
    /// at the bind and then only when frames come. So a queue that is bound without chunks receives
    /// no frames.
    pub first_chunks: Vec<u64>,
    /// How long to wait for the kernel to let go of a queue whose socket was closed (EBUSY).
    /// Measured: 2 to 15 ms.
    pub busy_timeout: Duration,
}

impl SocketOptions {
    /// Queue 0, mode auto, wake-ups on demand, frames of one piece, 2048 entries a ring, 500 ms for
    /// a busy queue.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: 0,
            mode: Mode::Auto,
            multi_buffer: false,
            rings: RingSizes::default(),
            first_chunks: Vec::new(),
            busy_timeout: Duration::from_millis(500),
        }
    }
}
