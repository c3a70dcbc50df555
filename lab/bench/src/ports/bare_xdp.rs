//! The floor: a bare loop over the rings of an AF_XDP socket, with memory of its own and no
//! virtqueue.
//!
//! The socket is bound as the port binds it: copy mode, frames of several pieces allowed, unaligned
//! chunks of 4096 bytes, 2048 entries a ring. It posts as many buffers as the guest, in batches of
//! as many frames. The loop parses nothing, writes no header, and doesn't read what a frame holds.
//!
//! **Who owns these bytes.** Frames to send are written once, before the socket is bound. From then
//! on the memory is the kernel's: nothing here reads or writes it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire_sys::xdp::program::{Hook, Rule, Steering};
use zerowire_sys::xdp::{Descriptor, KERNEL_HEADROOM_BYTES, Mode, Socket, SocketOptions, Umem, UmemOptions};

use super::bare::BareCalls;
use super::bursts::{self, BATCH, POSTED};
use crate::area::Slots;
use crate::case::{Case, Direction};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::guest::STALL_LIMIT;
use crate::netns::{NetnsLink, VNET_HEADER_LEN};
use crate::options::VETH_LONGEST;

/// Bytes of a chunk.
const CHUNK: u32 = 4096;
/// The longest frame of the port: its MTU, an Ethernet header and a VLAN tag.
const FRAME: u32 = VETH_LONGEST as u32 + 4;
/// Memory before the first slot: a chunk ends with the frame, and begins up to a chunk before it.
const PADDING: usize = 2 * CHUNK as usize;

/// The loop: the program that steers frames to it.
pub struct BareXdp(Steering);

/// A bound socket.
pub struct BoundXdp {
    socket: Socket,
    slots: Slots,
    frame_len: usize,
    /// The walk goes on where the run before ended.
    next: usize,
}

impl BareCalls for BareXdp {
    const NAME: &'static str = "bare AF_XDP";

    type Ready = BoundXdp;

    fn new(port: &NetnsLink) -> Result<Self> {
        Ok(Self(Steering::attach(port.name(), 1, Hook::Native)?))
    }

    fn open(&self, port: &NetnsLink, case: &Case) -> Result<BoundXdp> {
        let slots = bursts::slots_of(case);
        let options = UmemOptions {
            chunk_bytes: CHUNK,
            headroom_bytes: CHUNK - KERNEL_HEADROOM_BYTES - FRAME,
            unaligned: true,
            ..UmemOptions::default()
        };
        let umem = Umem::new(PADDING + slots.total() + PADDING, options, false)?;
        if case.direction == Direction::Transmit {
            let frame = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
            for place in 0..slots.places() {
                let mut bytes = umem.bytes(frame_at(slots, place), case.frame_len)?;
                // SAFETY: nothing is bound yet, so nothing is lent to the kernel; no other
                // reference exists.
                unsafe { bytes.as_mut() }.copy_from_slice(frame.bytes());
            }
        }
        let options =
            SocketOptions { mode: Mode::Copy, multi_buffer: true, ..SocketOptions::new(port.name()) };
        let mut socket = Socket::bind(&umem, &options)?;
        if case.direction == Direction::Receive {
            for place in 0..POSTED {
                socket.fill().push(chunk_of(slots, place));
            }
            socket.fill().publish();
            self.0.steer_by(&socket, &Rule { address: None, longest_bytes: FRAME })?;
        }
        Ok(BoundXdp { socket, slots, frame_len: case.frame_len, next: POSTED })
    }

    fn send(ready: &mut BoundXdp, frames: usize) -> Result<()> {
        let len = ready.frame_len as u32;
        let (mut queued, mut done) = (0, 0);
        while done < frames {
            let batch = BATCH.min(frames - queued);
            let ring = ready.socket.transmit().context("the socket has no transmit ring")?;
            for _ in 0..batch {
                let address = frame_at(ready.slots, ready.next);
                if !ring.push(Descriptor { address, len, options: 0 }) {
                    break;
                }
                ready.next += 1;
                queued += 1;
            }
            ring.publish();
            wake_until_sent(&mut ready.socket)?;
            let completion = ready.socket.completion();
            while completion.pop().is_some() {
                done += 1;
            }
            completion.release();
        }
        Ok(())
    }

    fn receive(ready: &mut BoundXdp, frames: usize, done: &AtomicUsize) -> Result<()> {
        let BoundXdp { socket, slots, frame_len, next } = ready;
        let mut total = 0;
        while total < frames {
            let mut batch = 0;
            while batch < BATCH {
                let Some(piece) = socket.receive().and_then(|ring| ring.pop()) else { break };
                if piece.len as usize != *frame_len {
                    bail!("a frame of {} bytes came where {frame_len} were sent", piece.len);
                }
                batch += 1;
                socket.fill().push(chunk_of(*slots, *next));
                *next += 1;
            }
            if batch == 0 {
                sleep(socket)?;
                continue;
            }
            let fill = socket.fill();
            fill.publish();
            if fill.needs_wakeup() {
                socket.wake_receive()?;
            }
            if let Some(ring) = socket.receive() {
                ring.release();
            }
            total += batch;
            done.store(total, Ordering::Release);
        }
        Ok(())
    }
}

/// Where the frame of a place begins: behind room for a virtio-net header, as in a guest.
fn frame_at(slots: Slots, place: usize) -> u64 {
    (PADDING + slots.offset(place) + VNET_HEADER_LEN) as u64
}

/// The fill entry for it: the chunk ends with the longest frame.
fn chunk_of(slots: Slots, place: usize) -> u64 {
    frame_at(slots, place) + u64::from(FRAME) - u64::from(CHUNK)
}

/// Has the kernel take all that was published.
fn wake_until_sent(socket: &mut Socket) -> Result<()> {
    let start = Instant::now();
    while socket.transmit().is_some_and(|ring| ring.waiting() > 0 && ring.needs_wakeup()) {
        match socket.wake_transmit() {
            Ok(()) => {}
            // The budget of one call is used up, or memory of the socket is short for a moment.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR)) => {}
            Err(e) => return Err(e).context("AF_XDP: a frame was not sent"),
        }
        if start.elapsed() > STALL_LIMIT {
            bail!("AF_XDP: frames wait in the ring for {STALL_LIMIT:?}");
        }
    }
    Ok(())
}

/// Sleeps until a frame comes.
fn sleep(socket: &Socket) -> Result<()> {
    let limit = Timespec { tv_sec: STALL_LIMIT.as_secs() as i64, tv_nsec: 0 };
    let mut events = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    match poll(&mut events, Some(&limit)) {
        Ok(0) => bail!("no frame came for {STALL_LIMIT:?}; the socket says {:?}", socket.statistics()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::WorkingSet;

    #[test]
    fn chunks_end_with_the_longest_frame_and_lie_in_the_memory() {
        let case = Case { direction: Direction::Receive, frame_len: 64, working_set: WorkingSet::Hot };
        let slots = bursts::slots(&case);
        assert!(slots.places() >= POSTED, "no buffer is posted twice");
        for place in 0..slots.places() {
            let (chunk, frame) = (chunk_of(slots, place), frame_at(slots, place));
            assert_eq!(chunk + u64::from(CHUNK), frame + u64::from(FRAME));
            assert!((chunk + u64::from(CHUNK)) as usize <= PADDING + slots.total() + PADDING);
        }
    }
}
