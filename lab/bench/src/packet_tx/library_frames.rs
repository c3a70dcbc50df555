//! The library's senders of whole frames: packet socket, transmit ring, AF_XDP.
//!
//! Memory that is resident is as large as the working set, and is walked in order.

use anyhow::{Context, Result, bail};
use zerowire::packet::{self, PacketRing, PacketSocket, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire::xdp::{self, Resident, XdpSender};

use super::bare::{resident_slots, xdp_places};
use super::case::{BATCH, TxCase};
use super::lab::{INTERFACE, TxLab};
use super::library::{PATIENCE, proof_of};
use super::source::{HEAD_LEN, Head, TxSource};
use super::way::{Proof, TxWay};

/// A packet socket, `batch` frames a system call.
pub fn socket<'a>(case: &TxCase, source: &'a TxSource, batch: usize) -> Result<Box<dyn TxWay + 'a>> {
    let head = *source.head();
    let slots = resident_slots(case, source)?;
    let sender = PacketSocket::open(INTERFACE, &options(source, slots))?;
    if batch == 1 && head.cut.is_none() {
        return Ok(Box::new(Single { sender, source, sent: 0 }));
    }
    let calls: (Offload<_>, fn(&_) -> _) = (PacketSocket::push_offload, PacketSocket::path);
    Ok(Box::new(SlotWay::new(sender, calls, source, slots, batch, Fill::Resident)))
}

/// A transmit ring: the payload resident in it, or each frame copied into it.
pub fn ring<'a>(case: &TxCase, source: &'a TxSource, copied: bool) -> Result<Box<dyn TxWay + 'a>> {
    let (slots, fill) = match copied {
        true => (2 * BATCH, Fill::Copied),
        false => (resident_slots(case, source)?, Fill::Resident),
    };
    let sender = PacketRing::open(INTERFACE, &options(source, slots))?;
    let calls: (Offload<_>, fn(&_) -> _) = (PacketRing::push_offload, PacketRing::path);
    Ok(Box::new(SlotWay::new(sender, calls, source, slots, BATCH, fill)))
}

fn options(source: &TxSource, slots: usize) -> packet::PacketOptions {
    packet::PacketOptions::default()
        .slots(slots)
        .frame_bytes(Some(HEAD_LEN + source.payload_len()))
        .offload(source.head().cut.is_some())
}

/// AF_XDP with resident frames.
pub fn xdp<'a>(case: &TxCase, lab: &TxLab, source: &'a TxSource) -> Result<Box<dyn TxWay + 'a>> {
    let head = Head::new(lab, case.payload, false);
    let mut frame = vec![0; HEAD_LEN + case.payload];
    let places = xdp_places(case);
    let all = std::iter::repeat_n(frame.len(), places);
    let resident = xdp::SenderOptions::resident_bytes_for(frame.len(), all);
    let options = xdp::SenderOptions::new(INTERFACE)
        .mode(xdp::Mode::Copy)
        .frames(1)
        .max_frame_bytes(frame.len())
        .resident_bytes(resident.context("the working set is larger than the address space")?);
    let mut sender = XdpSender::open(options)?;
    let mut frames = Vec::with_capacity(places);
    for index in 0..places {
        head.write(&mut frame);
        frame[HEAD_LEN..].copy_from_slice(source.payload(index));
        frames.push(sender.load(&frame)?);
    }
    Ok(Box::new(Xdp { sender, frames, next: 0 }))
}

/// One send() a frame.
struct Single<'a> {
    sender: PacketSocket,
    source: &'a TxSource,
    sent: usize,
}

impl TxWay for Single<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let first = self.source.take(count);
        for index in first..first + count {
            while !self.sender.send(self.source.frame(index))? {
                self.sender.wait(PATIENCE)?;
            }
        }
        self.sent += count;
        Ok(())
    }

    fn proof(&self) -> Proof {
        payload_only(proof_of(&self.sender.counters()), self.sent * HEAD_LEN)
    }

    fn path(&self) -> String {
        self.sender.path()
    }
}

/// What a slot is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Headers; the payload has been there since the first pass.
    Resident,
    /// All of it.
    Copied,
}

/// Builds a frame in a slot, with a virtio-net header.
type Offload<S> = fn(&mut S, &VnetHeader, usize, &mut dyn FnMut(&mut [u8])) -> Result<bool, FrameError>;

/// A sender whose frames are built in slots, in order.
struct SlotWay<'a, S> {
    sender: S,
    /// What [`FrameSender`] lacks.
    calls: (Offload<S>, fn(&S) -> String),
    source: &'a TxSource,
    vnet: Option<VnetHeader>,
    head: [u8; HEAD_LEN],
    batch: usize,
    slots: usize,
    fill: Fill,
    next: usize,
}

impl<'a, S: FrameSender> SlotWay<'a, S> {
    fn new(
        sender: S,
        calls: (Offload<S>, fn(&S) -> String),
        source: &'a TxSource,
        slots: usize,
        batch: usize,
        fill: Fill,
    ) -> Self {
        let head = source.head();
        Self { sender, calls, source, vnet: head.cut, head: head.bytes, batch, slots, fill, next: 0 }
    }

    /// Builds frame `index` in the next slot; false: none is free.
    #[inline]
    fn push(&mut self, index: usize) -> Result<bool> {
        let (source, head) = (self.source, &self.head);
        let len = HEAD_LEN + source.payload_len();
        let first_pass = index < self.slots;
        let whole = first_pass || self.fill == Fill::Copied;
        // Also taken when no slot is free: then a place of the source is left out.
        let from = if whole { source.take(1) } else { 0 };
        let mut build = |to: &mut [u8]| match whole {
            true => {
                let frame = source.frame(from);
                to.copy_from_slice(&frame[frame.len() - len..]);
            }
            false => to[..HEAD_LEN].copy_from_slice(head),
        };
        Ok(match &self.vnet {
            Some(vnet) => (self.calls.0)(&mut self.sender, vnet, len, &mut build)?,
            None => self.sender.push(len, &mut build)?,
        })
    }
}

impl<S: FrameSender> TxWay for SlotWay<'_, S> {
    fn send(&mut self, count: usize) -> Result<()> {
        let end = self.next + count;
        while self.next < end {
            let batch_end = end.min(self.next + self.batch);
            while self.next < batch_end && self.push(self.next)? {
                self.next += 1;
            }
            self.sender.flush()?;
            self.sender.reap();
        }
        if self.sender.outstanding() > 0 {
            self.sender.drain(PATIENCE)?;
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        let headers = self.next * HEAD_LEN;
        let proof = payload_only(proof_of(&self.sender.counters()), headers);
        match self.fill {
            Fill::Resident => proof,
            // The copy is this loop's own, so the ledger knows nothing of it.
            Fill::Copied => Proof { copied_bytes: proof.total(), ..Proof::default() },
        }
    }

    fn path(&self) -> String {
        (self.calls.1)(&self.sender)
    }

    fn warm_up(&self) -> usize {
        // The first pass fills the slots.
        self.slots.next_multiple_of(BATCH)
    }
}

/// AF_XDP.
struct Xdp {
    sender: XdpSender,
    frames: Vec<Resident>,
    next: usize,
}

impl TxWay for Xdp {
    fn send(&mut self, count: usize) -> Result<()> {
        let end = self.next + count;
        let mut idle = 0;
        while self.next < end {
            let batch_end = end.min(self.next + BATCH);
            let before = self.next;
            while self.next < batch_end
                && self.sender.send_resident(self.frames[self.next % self.frames.len()])?
            {
                self.next += 1;
            }
            self.sender.flush()?;
            idle = if self.sender.reap() > 0 || self.next > before { 0 } else { idle + 1 };
            if idle > 1_000_000 {
                bail!("{} frames stay in the AF_XDP ring", self.sender.outstanding());
            }
        }
        if self.sender.outstanding() > 0 {
            self.sender.drain(PATIENCE)?;
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        payload_only(proof_of(&self.sender.counters()), self.next * HEAD_LEN)
    }

    fn path(&self) -> String {
        self.sender.path()
    }
}

/// A ledger of frames, less the bytes of their headers: they are counted with the payload.
fn payload_only(mut proof: Proof, mut headers: usize) -> Proof {
    for bytes in [&mut proof.zero_copied_bytes, &mut proof.kernel_copied_bytes, &mut proof.copied_bytes] {
        let less = (headers as u64).min(*bytes);
        *bytes -= less;
        headers -= less as usize;
    }
    proof
}
