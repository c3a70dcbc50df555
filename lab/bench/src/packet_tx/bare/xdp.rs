//! AF_XDP transmit (Documentation/networking/af_xdp.rst) in copy mode: resident frames, those
//! longer than a chunk in several descriptors.
//!
//! Chunks of 4096 bytes; a frame takes as many, one after the other.

use anyhow::{Context, Result, bail};
use zerowire_sys::xdp::{Descriptor, Mode, Socket, SocketOptions, Umem, UmemOptions};

use super::super::case::{BATCH, TxCase};
use super::super::lab::{INTERFACE, TxLab, widen};
use super::super::source::{HEAD_LEN, Head, TxSource};
use super::super::way::{Proof, TxWay};

const CHUNK: usize = 4096;
/// Turns without any frame back that are one too many: the kernel works in the calls themselves.
const PATIENCE: u32 = 1_000_000;

/// Chunks of a frame.
fn chunks(case: &TxCase) -> usize {
    (HEAD_LEN + case.payload).div_ceil(CHUNK)
}

/// Frames in the working set.
pub fn places(case: &TxCase) -> usize {
    (case.working_set.bytes() / (chunks(case) * CHUNK)).max(1)
}

/// The socket with its memory.
pub struct Xdp<'a> {
    socket: Socket,
    source: &'a TxSource,
    /// Chunks of a frame, and frames in memory.
    chunks: usize,
    places: usize,
    next: usize,
    /// Descriptors that the kernel has.
    held: usize,
}

impl<'a> Xdp<'a> {
    /// Registers memory as large as the working set and binds to the first queue.
    pub fn open(case: &TxCase, lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        let head = Head::new(lab, case.payload, false);
        let (chunks, places) = (chunks(case), places(case));
        let options = UmemOptions { chunk_bytes: CHUNK as u32, ..UmemOptions::default() };
        let umem = Umem::new(places * chunks * CHUNK, options, false)?;
        for index in 0..places {
            let mut frame = umem.bytes((index * chunks * CHUNK) as u64, HEAD_LEN + case.payload)?;
            // SAFETY: nothing is bound yet, so nothing is lent to the kernel; no other reference
            // exists.
            let frame = unsafe { frame.as_mut() };
            head.write(frame);
            frame[HEAD_LEN..].copy_from_slice(source.payload(index));
        }
        let options = SocketOptions { mode: Mode::Copy, multi_buffer: true, ..SocketOptions::new(INTERFACE) };
        let socket = Socket::bind(&umem, &options).context("AF_XDP: binding to queue 0")?;
        widen(&socket)?;
        Ok(Self { socket, source, chunks, places, next: 0, held: 0 })
    }

    /// Puts the descriptors of as many frames into the ring; how many frames there was room for.
    fn push(&mut self, frames: usize) -> Result<usize> {
        let ring = self.socket.transmit().context("the socket has no transmit ring")?;
        for pushed in 0..frames {
            if (ring.room(self.chunks as u32) as usize) < self.chunks {
                return Ok(pushed);
            }
            let base = (self.next + pushed) % self.places * self.chunks * CHUNK;
            let len = HEAD_LEN + self.source.payload_len();
            for at in (0..len).step_by(CHUNK) {
                let options = if at + CHUNK < len { Descriptor::CONTINUES } else { 0 };
                let piece = len.min(at + CHUNK) - at;
                ring.push(Descriptor { address: (base + at) as u64, len: piece as u32, options });
            }
        }
        Ok(frames)
    }

    /// Hands over what was pushed and takes back what is done.
    fn turn(&mut self) -> Result<bool> {
        if let Some(ring) = self.socket.transmit() {
            ring.publish();
        }
        match self.socket.wake_transmit().map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) | Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR), _)) => {}
            Err((_, error)) => return Err(error).context("AF_XDP"),
        }
        let before = self.held;
        while self.socket.completion().pop().is_some() {
            self.held -= 1;
        }
        self.socket.completion().release();
        Ok(self.held < before)
    }
}

impl TxWay for Xdp<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let end = self.next + count;
        let mut idle = 0;
        while self.next < end || self.held > 0 {
            // No frame is sent again before it came back.
            let free = self.places.saturating_sub(self.held.div_ceil(self.chunks));
            let pushed = self.push(BATCH.min(end - self.next).min(free))?;
            self.next += pushed;
            self.held += pushed * self.chunks;
            idle = if self.turn()? { 0 } else { idle + 1 };
            if idle > PATIENCE {
                bail!("{} descriptors stay in the transmit ring", self.held);
            }
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        // Copy mode: the kernel copies each frame into a buffer of its own.
        let bytes = (self.next * self.source.payload_len()) as u64;
        Proof { kernel_copied_bytes: bytes, ..Proof::default() }
    }
}
