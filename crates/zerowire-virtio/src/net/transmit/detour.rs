//! Frames that leave the way to the port.

use crate::memory::{Segment, access};

/// Takes frames out of the way to the port (the metadata service).
pub trait Detour {
    /// Whether the frame that begins with `start` (up to 154 bytes, behind the virtio-net header)
    /// is wanted.
    fn wants(&self, start: &[u8]) -> bool;
    /// Takes a frame, without its virtio-net header.
    fn take(&mut self, frame: &[u8]);
}

/// Hands a frame of `len` bytes, its header included, to the detour: what was read already, `head`,
/// and the rest behind it.
#[cold]
pub(in crate::net) fn take_out(
    segments: &[Segment],
    header_len: usize,
    len: usize,
    head: &[u8],
    detour: &mut dyn Detour,
) {
    let mut frame = head[header_len..].to_vec();
    let have = frame.len();
    frame.resize(len - header_len, 0);
    access::read(segments, head.len(), &mut frame[have..]);
    detour.take(&frame);
}
