//! A sender's places, given out before their frames are pushed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "testing")]
use super::Resident;
use super::{PAUSE, XdpSender};
use crate::send::frame::{FrameError, FrameSender};
use crate::send::in_place::{FrameSlot, InPlace};
use zerowire_wire::vnet::VnetHeader;

impl XdpSender {
    /// The next place, if there is one and the ring has room for a frame of `len` bytes.
    #[inline]
    pub(super) fn free_place(&mut self, len: usize) -> Option<u32> {
        let pieces = len.div_ceil(self.cut.chunk) as u32;
        self.slots.next().filter(|_| self.ring_has(pieces))
    }

    /// The first `len` bytes of a place that is free.
    #[inline]
    pub(super) fn place(&mut self, slot: u32, len: usize) -> Result<&mut [u8], FrameError> {
        let address = u64::from(slot) * self.cut.slot as u64;
        self.memory("push", address, len)
    }

    /// Bytes of the sender's memory. Callers name a place that is free, or room that was just given
    /// out, so that no frame changes on its way.
    #[inline]
    pub(super) fn memory(
        &mut self,
        call: &'static str,
        address: u64,
        len: usize,
    ) -> Result<&mut [u8], FrameError> {
        let bytes = self.socket.umem().bytes(address, len);
        let mut bytes = bytes.map_err(|e| self.system(call, io::Error::other(e)))?;
        // SAFETY: the kernel only reads this memory: no chunk of it is ever in the fill ring. The
        // sender has its only handle, so `&mut self` says that no other slice of it is borrowed.
        Ok(unsafe { bytes.as_mut() })
    }
}

#[cfg(feature = "testing")]
impl XdpSender {
    /// Changes a resident frame that may be on its way: which bytes arrive shows when they are
    /// read.
    ///
    /// False if the frame is not one of this sender, or the range is not within it.
    pub fn scribble(&mut self, frame: Resident, offset: usize, bytes: &[u8]) -> bool {
        if !self.residents.has(&frame) || offset.checked_add(bytes.len()).is_none_or(|end| end > frame.len())
        {
            return false;
        }
        let room = self.memory("scribble", frame.address + offset as u64, bytes.len());
        room.map(|room| room.copy_from_slice(bytes)).is_ok()
    }
}

impl InPlace for XdpSender {
    fn reserve(&mut self, len: usize) -> Result<Option<FrameSlot<'_>>, FrameError> {
        self.check_len(len)?;
        self.collect();
        let Some(slot) = self.free_place(len) else { return Ok(None) };
        Ok(Some(FrameSlot { number: slot as usize, bytes: self.place(slot, len)? }))
    }

    fn commit(&mut self, len: usize, header: &VnetHeader) -> Result<bool, FrameError> {
        if *header != VnetHeader::NONE {
            let rule = "AF_XDP has no virtio-net headers: finish checksums and segments before, or use a packet ring";
            return Err(FrameError::BadOffload { frame_bytes: len, rule: rule.to_owned() });
        }
        self.push(len, &mut |_| {})
    }

    fn is_out(&self, place: usize) -> bool {
        self.slots.is_out(place)
    }

    fn bytes(&mut self, place: usize, len: usize) -> Option<&[u8]> {
        let slot = u32::try_from(place).ok().filter(|_| len <= self.cut.slot && !self.is_out(place))?;
        self.place(slot, len).ok().map(|bytes| &*bytes)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let start = Instant::now();
        let mut pause = PAUSE.start;
        loop {
            // A driver that stopped is found out by a call only.
            self.kick(pause >= PAUSE.end)?;
            self.collect();
            if self.free_place(self.cut.slot).is_some() {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(false);
            }
            std::thread::sleep(pause.min(timeout - waited));
            pause = (pause * 2).min(PAUSE.end);
        }
    }

    fn path(&self) -> String {
        self.path()
    }
}

impl AsFd for XdpSender {
    /// The socket, for event loops: writable while its transmit ring is at most half full
    /// (`xsk_tx_writeable`, net/xdp/xsk.c); in copy mode polling it sends. Nothing tells of
    /// completions.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
