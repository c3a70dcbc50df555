//! The copies and system calls that move one frame: the floor's, or the device's without its rings
//! and checks.
//!
//! The device reads what it checks into private memory first, and doesn't know a received frame's
//! length before it was read. So its calls are not one write() or read() of the guest's memory:
//!
//! ```text
//!            up to 4096 bytes                     longer frames
//! transmit   copy to a slot, write(slot)          copy the head, writev(head, rest in place …)
//! receive    read(scratch), copy to the buffer    readv(buffers …, scratch)
//! ```
//!
//! What is short, how long a head is and where private memory lies are the device's own constants.
//! As in the device, private memory is a slot for each frame of a batch.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsFd;

use crate::area::{Area, Slots};
use crate::case::{Case, Direction};
use crate::frame::Frame;
use crate::guest::{buffer_len, buffers_of_frame, frame_slots, pieces};
use crate::netns::VNET_HEADER_LEN;
use anyhow::Result;
use rustix::io;
use zerowire_net::io::MAX_BATCH;
use zerowire_net::receive::{SCRATCH_BYTES, SCRATCH_STRIDE};
use zerowire_net::transmit::{FRAME_SLOT_BYTES, FRAME_SLOTS, head_len, small_slot_bytes};
use zerowire_net::{MAX_FRAME_BYTES, Policy, RX_COPYBREAK_BYTES};

/// The name of the variant with the device's calls.
pub(crate) const BARE_CALLS: &str = "bare calls";

/// Entries of the longest scatter list: the mean of its pieces is 2048 bytes at least.
const MOST_ENTRIES: usize = 1 + (VNET_HEADER_LEN + MAX_FRAME_BYTES).div_ceil(2048);

/// How a frame moves between the working set and the tap.
#[derive(Debug)]
pub(crate) enum Calls {
    /// One call on one buffer.
    One,
    /// As the device sends frames.
    Transmit(Transmit),
    /// As the device receives frames.
    Receive(DeviceReceive),
}

impl Calls {
    /// The device's calls for `frame` in this case, and the slots that they are for.
    pub(crate) fn of_device(case: &Case, frame: &Frame, fragment_len: usize) -> Result<(Slots, Self)> {
        let set = case.working_set.bytes();
        Ok(match case.direction {
            Direction::Transmit => {
                let transmit = Transmit::new(pieces(frame, fragment_len))?;
                (frame_slots(set, frame, fragment_len), Self::Transmit(transmit))
            }
            Direction::Receive => {
                let receive = DeviceReceive::new(case.frame_len)?;
                let slots = match receive.copies {
                    true => case.slots(),
                    false => Slots::received(set, buffer_len(case.frame_len)),
                };
                (slots, Self::Receive(receive))
            }
        })
    }

    /// Lays a frame with its header into each slot, in the pieces that [`Calls::write`] takes it
    /// from.
    pub(crate) fn fill(&self, bytes: &mut [u8], slots: Slots, image: &[u8]) {
        let whole = 0..image.len();
        let pieces = match self {
            Self::Transmit(transmit) => &transmit.pieces[..],
            _ => std::slice::from_ref(&whole),
        };
        for at in (0..slots.places()).map(|index| slots.offset(index)) {
            let mut rest = image;
            for piece in pieces {
                let (part, behind) = rest.split_at(piece.len());
                bytes[at + piece.start..at + piece.end].copy_from_slice(part);
                rest = behind;
            }
        }
    }

    /// Writes the frame of `len` bytes in slot `index`; how many bytes were taken.
    #[inline]
    pub(crate) fn write(
        &mut self,
        tap: impl AsFd,
        bytes: &[u8],
        slots: Slots,
        index: usize,
        len: usize,
    ) -> io::Result<usize> {
        let at = slots.offset(index);
        match self {
            Self::Transmit(transmit) => transmit.write(tap, &bytes[at..], index),
            _ => io::write(tap, &bytes[at..at + len]),
        }
    }

    /// Reads a frame of `len` bytes into slot `index`; how many bytes came. `EAGAIN`: none waits.
    #[inline]
    pub(crate) fn read(
        &mut self,
        tap: impl AsFd,
        bytes: &mut [u8],
        slots: Slots,
        index: usize,
        len: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Receive(receive) => receive.read(tap, bytes, slots, index),
            _ => {
                let at = slots.offset(index);
                io::read(tap, &mut bytes[at..at + len])
            }
        }
    }
}

/// Transmit as the device does it.
#[derive(Debug)]
pub(crate) struct Transmit {
    /// Where a frame lies, from the start of its slot.
    pieces: Vec<Range<usize>>,
    /// What of it is copied, and what is sent from where it lies.
    copied: Vec<Range<usize>>,
    in_place: Vec<Range<usize>>,
    /// Bytes that are copied.
    head: usize,
    private: Area,
    /// Bytes of a private slot, and how many there are.
    slot: usize,
    count: usize,
}

impl Transmit {
    fn new(pieces: Vec<Range<usize>>) -> Result<Self> {
        let policy = Policy::default();
        let len = pieces.iter().map(Range::len).sum();
        let gathers = policy.gather(len, pieces.len()).is_some();
        let head = if gathers { len } else { head_len(pieces.iter().map(Range::len), len) };
        let (slot, count) = match small_slot_bytes(&policy) {
            small if head <= small => (small, MAX_BATCH),
            _ => (FRAME_SLOT_BYTES, FRAME_SLOTS),
        };
        let (mut copied, mut in_place, mut left) = (Vec::new(), Vec::new(), head);
        for piece in &pieces {
            let border = piece.start + piece.len().min(left);
            left -= border - piece.start;
            copied.push(piece.start..border);
            in_place.push(border..piece.end);
        }
        copied.retain(|part| !part.is_empty());
        in_place.retain(|part| !part.is_empty());
        Ok(Self { pieces, copied, in_place, head, private: Area::new(slot * count)?, slot, count })
    }

    #[inline]
    fn write(&mut self, tap: impl AsFd, frame: &[u8], index: usize) -> io::Result<usize> {
        let at = index % self.count * self.slot;
        let head = &mut self.private.bytes_mut()[at..at + self.head];
        let mut done = 0;
        for part in &self.copied {
            head[done..done + part.len()].copy_from_slice(&frame[part.clone()]);
            done += part.len();
        }
        match self.in_place.len() {
            0 => io::write(tap, head),
            1..=2 => write_list::<3>(tap, head, frame, &self.in_place),
            _ => write_list::<MOST_ENTRIES>(tap, head, frame, &self.in_place),
        }
    }
}

/// Writes a private head and the parts of a frame behind it, at most `N - 1`.
#[inline]
fn write_list<const N: usize>(
    tap: impl AsFd,
    head: &[u8],
    frame: &[u8],
    parts: &[Range<usize>],
) -> io::Result<usize> {
    let mut list = [IoSlice::new(head); N];
    for (entry, part) in list[1..].iter_mut().zip(parts) {
        *entry = IoSlice::new(&frame[part.clone()]);
    }
    io::writev(tap, &list[..1 + parts.len()])
}

/// Receive as the device does it.
#[derive(Debug)]
pub(crate) struct DeviceReceive {
    /// Bytes of a frame with its header.
    len: usize,
    /// Frames are read into private memory and copied.
    copies: bool,
    /// The guest's buffers that a frame is offered, and the bytes that they hold.
    buffers: usize,
    room: usize,
    scratch: Area,
}

impl DeviceReceive {
    fn new(frame_len: usize) -> Result<Self> {
        let len = frame_len + VNET_HEADER_LEN;
        let copies = len <= RX_COPYBREAK_BYTES;
        let buffers = buffers_of_frame(frame_len);
        let room = buffers * buffer_len(frame_len);
        Ok(Self { len, copies, buffers, room, scratch: Area::new(SCRATCH_STRIDE * MAX_BATCH)? })
    }

    #[inline]
    fn read(&mut self, tap: impl AsFd, bytes: &mut [u8], slots: Slots, index: usize) -> io::Result<usize> {
        let at = slots.offset(index * self.buffers);
        let private = index % MAX_BATCH * SCRATCH_STRIDE;
        let mut scratch = &mut self.scratch.bytes_mut()[private..private + SCRATCH_BYTES];
        if self.copies {
            let read = io::read(tap, &mut *scratch)?;
            let whole = read.min(self.len);
            bytes[at..at + whole].copy_from_slice(&scratch[..whole]);
            return Ok(read);
        }
        if self.room >= VNET_HEADER_LEN + MAX_FRAME_BYTES {
            scratch = &mut [];
        }
        // Buffers that lie one behind the other are one entry, up to the end of the working set.
        let (front, back) = bytes.split_at_mut(at);
        let (first, second) = (self.room.min(back.len()), self.room.saturating_sub(back.len()));
        let mut list = [&mut back[..first], &mut front[..second], scratch].map(IoSliceMut::new);
        if second == 0 {
            list.swap(1, 2);
        }
        let entries = 3 - usize::from(list[1].is_empty()) - usize::from(list[2].is_empty());
        io::readv(tap, &mut list[..entries])
    }
}

#[cfg(test)]
mod tests;
