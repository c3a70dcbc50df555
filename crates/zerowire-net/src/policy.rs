//! When to scatter and when to gather.

use serde::{Deserialize, Serialize};

/// Frames up to this many bytes, virtio-net header included, are gathered into one private buffer:
/// below it a copy is cheaper than a scatter list. The least of the limits that a bare loop found
/// for 2 to 17 segments (4096 to 16384 bytes hot, more cold; measurements/net.md, "Gathering").
pub const GATHER_MAX_BYTES: usize = 4096;

/// Received frames up to this many bytes, virtio-net header included, are copied where nothing but
/// such frames comes. A read into one private buffer and a copy then cost less than a scatter list
/// that ends in scratch memory. Chosen by
/// `zerowire-bench net --direction rx --with '--rx-copybreak 0'`: copying is cheaper up to 4000
/// bytes, and no longer at 6000.
pub const RX_COPYBREAK_BYTES: usize = 4096;

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathMode {
    /// Scatter lists where they pay.
    #[default]
    Auto,
    /// Copy every frame in user space: the control of the benchmarks.
    Copy,
}

/// What decides whether a frame is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Policy {
    /// What the user asked for.
    pub mode: PathMode,
    /// Frames up to this length are gathered.
    pub gather_max_bytes: usize,
    /// Received frames up to this length are copied where nothing but such frames comes; with 0
    /// none is.
    pub rx_copybreak_bytes: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: PathMode::Auto,
            gather_max_bytes: GATHER_MAX_BYTES,
            rx_copybreak_bytes: RX_COPYBREAK_BYTES,
        }
    }
}

/// The kernel walks the page tables of each segment: below this mean length gathering is cheaper.
/// Chosen by the same loop as [`GATHER_MAX_BYTES`].
const SCATTER_MEAN_BYTES: usize = 2048;

/// The longest scatter list of one system call (`UIO_MAXIOV`, include/uapi/linux/uio.h).
pub(super) const MAX_IOV: usize = 1024;

impl Policy {
    zerowire_wire::setters! { mode: PathMode, gather_max_bytes: usize, rx_copybreak_bytes: usize }

    /// Why to gather a frame of `len` bytes in `segments` segments; None to scatter it.
    #[inline]
    pub fn gather(&self, len: usize, segments: usize) -> Option<zerowire::ledger::CopyReason> {
        use zerowire::ledger::CopyReason;
        if self.mode == PathMode::Copy {
            return Some(CopyReason::Asked);
        }
        if len <= self.gather_max_bytes {
            return Some(CopyReason::Small);
        }
        let scattered = segments + 1 > MAX_IOV || len / segments.max(1) < SCATTER_MEAN_BYTES;
        scattered.then_some(CopyReason::Scattered)
    }
}
