//! A plain packet socket: frames are built in private memory, and the kernel copies them in
//! sendmmsg(2). It serves interfaces and users where rings are refused, and is the baseline that
//! rings are measured against.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::error::OpenError;
use super::link::PacketLink;
use super::options::PacketOptions;
use super::wait::{Waiter, WaitsForFrames};
use crate::ledger::{CopyReason, Counters, DropReason};
use crate::send::frame::{FrameError, FrameSender};
use zerowire_sys::packet as sys;
use zerowire_sys::socket::Messages;
use zerowire_wire::ethernet;
use zerowire_wire::vnet::VnetHeader;

/// Slots begin at the same place of a cache line. A UDP payload (behind 42 bytes of headers, and
/// the virtio-net header where there is one) begins one. The kernel copies long frames 10 to 20 %
/// slower from memory that lies across lines.
const LINE: usize = 64;
/// Bytes of Ethernet, IPv4 and UDP headers.
const UDP_HEADERS: usize = 42;

/// Most frames of one sendmmsg (`UIO_MAXIOV`, include/uapi/linux/uio.h).
const BATCH: usize = 1024;

/// A packet socket whose frames are copied by the kernel as they are handed over (ledger: `asked`).
///
/// A frame is back as soon as the kernel has taken it: [`FrameSender::outstanding`] counts those
/// that it didn't take.
pub struct PacketSocket {
    link: PacketLink,
    waiter: Waiter,
    messages: Messages,
    memory: Box<[u8]>,
    /// Where the first slot begins in it.
    start: usize,
    slots: usize,
    slot_bytes: usize,
    /// Distance of the slots: whole cache lines.
    stride: usize,
    header_bytes: usize,
    /// Number and bytes of each frame that waits, oldest first; they lie in slots from `first` on.
    waiting: VecDeque<(u64, usize)>,
    first: usize,
    next_number: u64,
    back: usize,
    counters: Arc<Counters>,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace. Of the options,
    /// `slots` is how many frames one flush can hand over.
    ///
    /// # Errors
    /// [`OpenError`] per cause.
    pub fn open(interface: &str, options: &PacketOptions) -> Result<Self, OpenError> {
        // What is for rings only.
        let options = PacketOptions { skip_refused: false, copy_up_to: 0, ..options.clone() };
        let link = PacketLink::new(interface, &options)?;
        let slot_bytes = options.data_bytes(link.mtu)?;
        let stride = slot_bytes.next_multiple_of(LINE);
        let slots = options.slots;
        if slots == 0 || slots > super::MAX_SLOTS {
            return Err(OpenError::Slots { slots });
        }
        if slots * stride > super::MAX_RING_BYTES {
            return Err(OpenError::RingBytes { slots, slot_bytes });
        }
        link.bind()?;
        let waiter = Waiter::new().map_err(OpenError::system(interface, "epoll"))?;
        let memory: Box<[u8]> = vec![0; slots * stride + LINE].into();
        let payload_at = memory.as_ptr() as usize + options.header_bytes() + UDP_HEADERS;
        Ok(Self {
            link,
            waiter,
            messages: Messages::default(),
            start: payload_at.next_multiple_of(LINE) - payload_at,
            memory,
            slots,
            slot_bytes,
            stride,
            header_bytes: options.header_bytes(),
            waiting: VecDeque::with_capacity(slots),
            first: 0,
            next_number: 0,
            back: 0,
            counters: Arc::default(),
        })
    }

    /// What runs, for people.
    pub fn path(&self) -> String {
        let offload = if self.header_bytes > 0 { ", offload" } else { "" };
        format!("packet socket on {}{offload}: the kernel copies every frame", self.link.interface)
    }

    /// As [`FrameSender::push`] with a virtio-net header in front; needs the option `offload`.
    ///
    /// # Errors
    /// As `push`, and [`FrameError::BadOffload`].
    pub fn push_offload(
        &mut self,
        header: &VnetHeader,
        len: usize,
        build: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, FrameError> {
        let number = self.next_number;
        self.link.check(number, len, self.slot_bytes - self.header_bytes, header)?;
        if self.waiting.len() == self.slots {
            return Ok(false);
        }
        let at = self.start + (self.first + self.waiting.len()) % self.slots * self.stride;
        let data = &mut self.memory[at..at + self.header_bytes + len];
        let (head, frame) = data.split_at_mut(self.header_bytes);
        if !head.is_empty() {
            head.copy_from_slice(&header.to_bytes());
        }
        build(frame);
        let ethertype = ethernet::first_type(frame).unwrap_or_default();
        self.link.check_tag(number, header.longest_segment(len), ethertype)?;
        self.waiting.push_back((number, len));
        self.next_number += 1;
        Ok(true)
    }

    /// Sends one frame with one send(2), from where it lies, if none waits. False: no room at the
    /// moment, or frames wait (flush first). `frame` begins with its Ethernet header; with the
    /// option `offload` it goes without any.
    ///
    /// # Errors
    /// As `flush`.
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, FrameError> {
        if !self.waiting.is_empty() {
            return Ok(false);
        }
        if self.header_bytes > 0 {
            // The header has to lie before the frame.
            self.push(frame.len(), &mut |to| to.copy_from_slice(frame))?;
            let flushed = self.flush();
            // The caller keeps a frame that wasn't taken: it must not go with a later flush, too.
            let taken = self.waiting.is_empty();
            self.waiting.clear();
            if !taken {
                self.next_number -= 1;
            }
            return flushed.map(|()| taken);
        }
        let number = self.next_number;
        self.link.check(number, frame.len(), usize::MAX, &VnetHeader::NONE)?;
        let result = sys::send(self.link.fd(), frame);
        self.counters.system_calls.add(1);
        match result {
            Ok(_) => {
                self.next_number += 1;
                self.count(frame.len());
                Ok(true)
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(false),
                Some(libc::ENXIO | libc::ENODEV | libc::ENETDOWN) => Err(self.link.error("send", e, 1)),
                _ => {
                    self.counters.dropped(DropReason::PortRefused);
                    Err(self.link.refused(number, 0, frame.len(), e))
                }
            },
        }
    }

    /// Flushes, and waits until a place is free, `timeout` at the longest; returns whether `push`
    /// finds one now.
    ///
    /// # Errors
    /// As `flush`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let late = self.wait_until(timeout, |socket| socket.waiting.len() < socket.slots)?;
        Ok(late.is_none())
    }

    /// Counts a frame that the kernel took.
    fn count(&mut self, len: usize) {
        self.counters.frames.add(1);
        self.counters.copied(CopyReason::Asked, len as u64);
        self.back += 1;
    }

    /// Takes the oldest frame out.
    fn shift(&mut self) -> Option<(u64, usize)> {
        let oldest = self.waiting.pop_front()?;
        self.first = (self.first + 1) % self.slots;
        Some(oldest)
    }

    /// Hands over as many as one call takes.
    fn send_batch(&mut self) -> io::Result<usize> {
        let (memory, slots, stride, skip) =
            (&self.memory[self.start..], self.slots, self.stride, self.header_bytes);
        let first = self.first;
        if let (1, Some((_, len))) = (self.waiting.len(), self.waiting.front()) {
            let at = first * stride;
            return sys::send(self.link.fd(), &memory[at..at + skip + len]).map(|_| 1);
        }
        let frames = self.waiting.iter().take(BATCH).enumerate().map(|(i, (_, len))| {
            let at = (first + i) % slots * stride;
            &memory[at..at + skip + len]
        });
        sys::send_many(self.link.fd(), frames, &mut self.messages)
    }
}

impl WaitsForFrames for PacketSocket {
    fn waiter(&mut self) -> (&mut Waiter, &PacketLink) {
        (&mut self.waiter, &self.link)
    }
}

impl FrameSender for PacketSocket {
    fn max_frame_bytes(&self) -> usize {
        (self.slot_bytes - self.header_bytes).min(self.link.longest())
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> Result<bool, FrameError> {
        self.push_offload(&VnetHeader::NONE, len, build)
    }

    fn flush(&mut self) -> Result<(), FrameError> {
        self.waiter.queue_full = false;
        if self.header_bytes > 0 && !self.waiting.is_empty() {
            self.link.refresh_mtu();
        }
        while !self.waiting.is_empty() {
            let result = self.send_batch();
            self.counters.system_calls.add(1);
            match result {
                Ok(0) => break,
                Ok(n) => {
                    for _ in 0..n {
                        if let Some((_, len)) = self.shift() {
                            self.count(len);
                        }
                    }
                }
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => break,
                    Some(libc::ENOBUFS) => {
                        self.waiter.queue_full = true;
                        break;
                    }
                    Some(libc::EMSGSIZE | libc::EINVAL | libc::EFAULT) => {
                        // The error is that of the first frame.
                        let slot = self.first;
                        let Some((number, len)) = self.shift() else { break };
                        self.counters.dropped(DropReason::PortRefused);
                        return Err(self.link.refused(number, slot, len, e));
                    }
                    _ => return Err(self.link.error("sendmmsg", e, self.waiting.len())),
                },
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> usize {
        std::mem::take(&mut self.back)
    }

    fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let late = self.wait_until(timeout, |socket| socket.waiting.is_empty())?;
        let (Some(waited), Some(&(oldest, oldest_bytes))) = (late, self.waiting.front()) else {
            return Ok(());
        };
        Err(FrameError::Stuck {
            interface: self.link.interface.clone(),
            frames: self.waiting.len(),
            unsent: self.waiting.len(),
            oldest,
            oldest_bytes,
            waited,
        })
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

impl AsFd for PacketSocket {
    /// The socket, for event loops.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}

#[cfg(feature = "testing")]
impl PacketSocket {
    /// Changes bytes of the private memory of a place, to show which bytes really go out.
    pub fn scribble(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        let at = self.start + slot * self.stride + self.header_bytes + offset;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
