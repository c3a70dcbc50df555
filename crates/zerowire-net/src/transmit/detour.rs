//! What a turn of the transmit side is given, and frames that leave the way to the port: those of
//! somebody else, and those that the guest may not send.

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::memory::{GuestMemory, access};

use super::TxFrame;
use crate::FrameGuard;

/// How much of a frame is read into private memory where something inspects it, bytes behind the
/// virtio-net header: Ethernet with two tags, IPv6 or IPv4 with options, TCP with options.
pub(crate) const INSPECT_BYTES: usize = 22 + 60 + 60;

/// What the transmit side needs besides its ring and its port.
pub struct TransmitContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// Where to count.
    pub counters: &'a Counters,
    /// Who else wants frames.
    pub detour: Option<&'a mut dyn Detour>,
    /// What the guest may send; None for any frame.
    pub guard: Option<&'a FrameGuard>,
}

/// Takes frames out of the way to the port (the metadata service).
pub trait Detour {
    /// Whether the frame that begins with `start` (up to 154 bytes, behind the virtio-net header)
    /// is wanted.
    fn wants(&self, start: &[u8]) -> bool;
    /// Takes a frame, without its virtio-net header.
    fn take(&mut self, frame: &[u8]);
}

impl TransmitContext<'_> {
    /// Whether anybody looks at the headers of frames.
    #[inline]
    pub(super) fn inspects(&self) -> bool {
        self.detour.is_some() || self.guard.is_some()
    }

    /// Hands a frame to the detour, if that wants it. Else the guard decides about it. `start` was
    /// read already, and checked; it has the virtio-net header first. Returns whether the detour
    /// has the frame.
    ///
    /// # Errors
    /// Why the guard has the frame dropped.
    #[inline]
    pub(super) fn inspect(&mut self, frame: &TxFrame<'_>, start: &[u8]) -> Result<bool, DropReason> {
        if self.take_out(frame, start) {
            return Ok(true);
        }
        if let Some(guard) = self.guard {
            let (vnet, inspected) = start.split_at(frame.header_len);
            guard.check(vnet, inspected)?;
        }
        Ok(false)
    }

    /// Hands a frame to the detour, if that wants it: `start`, which was read already and has the
    /// virtio-net header first, and the rest behind it.
    #[inline]
    fn take_out(&mut self, frame: &TxFrame<'_>, start: &[u8]) -> bool {
        let Some(detour) = self.detour.as_deref_mut() else { return false };
        let inspected = &start[frame.header_len..];
        if !detour.wants(&inspected[..inspected.len().min(12 + INSPECT_BYTES)]) {
            return false;
        }
        hand_over(frame, start, detour);
        self.counters.copied(CopyReason::Metadata, frame.len as u64);
        true
    }
}

#[cold]
fn hand_over(frame: &TxFrame<'_>, start: &[u8], detour: &mut dyn Detour) {
    let mut bytes = start[frame.header_len..].to_vec();
    let have = bytes.len();
    bytes.resize(frame.len - frame.header_len, 0);
    access::read(frame.segments, start.len(), &mut bytes[have..]);
    detour.take(&bytes);
}
