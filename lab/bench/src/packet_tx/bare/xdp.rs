//! AF_XDP transmit (Documentation/networking/af_xdp.rst) in copy mode: resident frames, those
//! longer than a chunk in several descriptors.
//!
//! Chunks of 4096 bytes; a frame takes as many, one after the other.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};

use super::super::case::{BATCH, TxCase};
use super::super::frame::{HEAD_LEN, Head};
use super::super::lab::{TxLab, widen};
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};
use super::sys::{self, Mapping};

const CHUNK: usize = 4096;
/// Entries of each ring: two batches of the longest frames, in 16 chunks each.
const ENTRIES: usize = 1024;
/// Turns without any frame back that are one too many: the kernel works in the calls themselves.
const PATIENCE: u32 = 1_000_000;
/// How long a queue may stay busy.
const BUSY: Duration = Duration::from_millis(500);

/// A ring of descriptors or addresses: where its words lie.
struct XdpRing {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
}

impl XdpRing {
    /// Maps a ring; `at` is its entry of `struct xdp_mmap_offsets`: producer, consumer, entries,
    /// flags.
    fn map(socket: &OwnedFd, page_offset: u64, at: &[u64], entry_len: usize) -> Result<Self> {
        let [producer, consumer, entries] = [0, 1, 2].map(|index| at[index] as usize);
        let memory = Mapping::of(socket.as_fd(), page_offset, entries + ENTRIES * entry_len)?;
        Ok(Self { memory, producer, consumer, entries })
    }
}

/// Binds the socket. The kernel lets go of a queue some milliseconds after its last socket was
/// closed.
fn bind(socket: &OwnedFd, address: &[u8]) -> Result<()> {
    let begin = Instant::now();
    loop {
        match sys::bind(socket.as_fd(), address) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && begin.elapsed() < BUSY => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other.context("AF_XDP: binding to queue 0"),
        }
    }
}

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
    socket: OwnedFd,
    transmit: XdpRing,
    completion: XdpRing,
    /// Registered, so it lives as long as the socket.
    _memory: Mapping,
    source: &'a TxSource,
    /// Chunks of a frame, and frames in memory.
    chunks: usize,
    places: usize,
    next: usize,
    /// Positions in the rings, wrapping.
    produced: u32,
    consumed: u32,
}

impl<'a> Xdp<'a> {
    /// Registers memory as large as the working set and binds to the first queue.
    pub fn open(case: &TxCase, lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .context("can't open an AF_XDP socket: CAP_NET_RAW and CONFIG_XDP_SOCKETS are needed")?;
        widen(&socket)?;
        let head = Head::new(lab, case.payload, false);
        let (chunks, places) = (chunks(case), places(case));
        let mut memory = Mapping::anonymous(places * chunks * CHUNK)?;
        for index in 0..places {
            let frame = memory.bytes_mut(index * chunks * CHUNK, HEAD_LEN + case.payload);
            head.write(frame);
            frame[HEAD_LEN..].copy_from_slice(source.payload(index));
        }
        // struct xdp_umem_reg: address, length; chunk size, headroom, flags, metadata length.
        let mut registration = Vec::with_capacity(32);
        registration.extend(memory.address().to_ne_bytes());
        registration.extend((memory.len() as u64).to_ne_bytes());
        registration.extend([CHUNK as u32, 0, 0, 0].map(u32::to_ne_bytes).concat());
        let option = |option, value: &[u8], what| {
            sys::set_option(socket.as_fd(), libc::SOL_XDP, option, value)
                .with_context(|| format!("AF_XDP: {what} is refused"))
        };
        option(libc::XDP_UMEM_REG, &registration, "the memory (RLIMIT_MEMLOCK, CAP_IPC_LOCK)")?;
        let entries = (ENTRIES as u32).to_ne_bytes();
        option(libc::XDP_UMEM_FILL_RING, &entries, "the fill ring")?;
        option(libc::XDP_UMEM_COMPLETION_RING, &entries, "the completion ring")?;
        option(libc::XDP_TX_RING, &entries, "the transmit ring")?;
        // struct xdp_mmap_offsets: four words each for receive, transmit, fill and completion.
        let mut offsets = [0u8; 128];
        sys::get_option(socket.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
        let words: Vec<u64> = offsets
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or([0; 8])))
            .collect();
        let transmit = XdpRing::map(&socket, libc::XDP_PGOFF_TX_RING as u64, &words[4..8], 16)?;
        let completion = XdpRing::map(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &words[12..16], 8)?;
        // struct sockaddr_xdp: family, flags; interface, queue, shared descriptor.
        let flags = libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | libc::XDP_USE_SG;
        let mut address = Vec::with_capacity(16);
        address.extend((libc::AF_XDP as u16).to_ne_bytes());
        address.extend(flags.to_ne_bytes());
        address.extend([lab.index()?, 0, 0].map(u32::to_ne_bytes).concat());
        bind(&socket, &address)?;
        Ok(Self {
            socket,
            transmit,
            completion,
            _memory: memory,
            source,
            chunks,
            places,
            next: 0,
            produced: 0,
            consumed: 0,
        })
    }

    /// Puts the descriptors of frame `index` into the ring.
    fn push(&mut self, index: usize) {
        let base = index % self.places * self.chunks * CHUNK;
        let mut left = HEAD_LEN + self.source.payload_len();
        for chunk in 0..self.chunks {
            let len = left.min(CHUNK);
            left -= len;
            // struct xdp_desc: address, length, options.
            let at = self.transmit.entries + self.produced as usize % ENTRIES * 16;
            let more = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            let ring = &self.transmit.memory;
            ring.long(at).store((base + chunk * CHUNK) as u64, Ordering::Relaxed);
            ring.word(at + 8).store(len as u32, Ordering::Relaxed);
            ring.word(at + 12).store(more, Ordering::Relaxed);
            self.produced = self.produced.wrapping_add(1);
        }
    }

    /// Hands over what was pushed and takes back what is done.
    fn turn(&mut self) -> Result<bool> {
        self.transmit.memory.word(self.transmit.producer).store(self.produced, Ordering::Release);
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
            Err(error) => return Err(error).context("AF_XDP"),
        }
        let done = self.completion.memory.word(self.completion.producer).load(Ordering::Acquire);
        let progress = done != self.consumed;
        self.consumed = done;
        self.completion.memory.word(self.completion.consumer).store(done, Ordering::Release);
        Ok(progress)
    }
}

impl TxWay for Xdp<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let end = self.next + count;
        let mut idle = 0;
        while self.next < end || self.consumed != self.produced {
            let held = self.produced.wrapping_sub(self.consumed) as usize;
            let batch = BATCH.min(end - self.next).min(self.places.saturating_sub(held / self.chunks));
            for index in self.next..self.next + batch.min((ENTRIES - held) / self.chunks) {
                self.push(index);
                self.next = index + 1;
            }
            idle = if self.turn()? { 0 } else { idle + 1 };
            if idle > PATIENCE {
                bail!("{held} descriptors stay in the transmit ring");
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
