//! A ring between one worker and the writer: packets as words of 8 bytes, one behind the other.
//!
//! ```text
//!  [ time │ bytes kept, direction, bytes in all │ bytes, filled up to a word ][ time │ … ]
//!          taken ──────────────────────────────▶ published ─────▶ at (the worker's own)
//! ```
//!
//! The worker writes behind what it has published, and may take that back
//! ([`CaptureQueue::rewind`]). Words are atomic, so that no line of this needs to be unsafe. Stores
//! of `published` and `taken` release what was written before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zerowire_wire::pcapng::PacketDirection;

use crate::shared::{InterfaceState, Shared, now};

/// Words of a ring: 4 MiB.
const RING_WORDS: usize = 1 << 19;

/// A batch that is longer than this is handed on before it ends, words.
const LONG_WORDS: u64 = RING_WORDS as u64 / 8;

/// Words in front of a packet's bytes.
const HEAD_WORDS: u64 = 2;

/// Bytes that a worker copies at once.
const PIECE_BYTES: usize = 4096;

/// Set in the second word of a packet that went out.
const OUTBOUND: u64 = 1 << 31;

/// A number on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

struct Ring {
    words: Box<[AtomicU64]>,
    /// Words that the writer may take.
    published: Line,
    /// Words that it has taken.
    taken: Line,
    /// The worker publishes no more.
    over: AtomicBool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("published", &self.published).field("taken", &self.taken).finish()
    }
}

impl Ring {
    /// `words` is a power of two.
    fn new(words: usize) -> Arc<Self> {
        Arc::new(Self {
            words: std::iter::repeat_with(AtomicU64::default).take(words).collect(),
            published: Line::default(),
            taken: Line::default(),
            over: AtomicBool::new(false),
        })
    }

    /// Where the word of this number is.
    #[inline]
    fn place(&self, at: u64) -> usize {
        at as usize & (self.words.len() - 1)
    }

    fn word(&self, at: u64) -> u64 {
        self.words[self.place(at)].load(Ordering::Relaxed)
    }

    /// The capture has ended: what was published and not taken is lost to this interface. Writer
    /// and worker both come here, and whoever takes the packets counts them.
    #[cold]
    fn lose(&self, interface: &InterfaceState) {
        let end = self.published.0.load(Ordering::Acquire);
        let mut begin = self.taken.0.load(Ordering::Acquire);
        while begin < end {
            let (mut at, mut packets) = (begin, 0);
            while at < end {
                at += HEAD_WORDS + kept_bytes(self.word(at + 1)).div_ceil(8);
                packets += 1;
            }
            match self.taken.0.compare_exchange(begin, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    interface.lost.fetch_add(packets, Ordering::Relaxed);
                    return;
                }
                Err(now) => begin = now,
            }
        }
    }
}

/// The bytes that are kept of a packet with this second word.
fn kept_bytes(word: u64) -> u64 {
    word & (OUTBOUND - 1)
}

/// Before a packet that may be taken back.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The packet's number in its batch.
    number: usize,
    /// Where it begins, and what was lost before it.
    at: u64,
    lost: u64,
}

/// A worker's end of a ring: it records packets of an interface.
#[derive(Debug)]
pub struct CaptureQueue {
    ring: Arc<Ring>,
    interface: Arc<InterfaceState>,
    shared: Arc<Shared>,
    /// Words written, published or not.
    at: u64,
    /// Words taken when that was looked at last.
    taken: u64,
    /// Packets that found no room and are not counted yet: they may be taken back.
    lost: u64,
    /// Packets that may be taken back.
    marks: Vec<Mark>,
    piece: Box<[u8]>,
}

impl CaptureQueue {
    pub(crate) fn new(interface: Arc<InterfaceState>, shared: Arc<Shared>) -> Self {
        // Where the capture has ended packets are counted as lost, since none has room.
        let words = if shared.has_ended() { 1 } else { RING_WORDS };
        let ring = Ring::new(words);
        let drain = Drain { ring: ring.clone(), interface: interface.clone(), at: 0, end: 0 };
        shared.arrive(|new| new.drains.push(drain));
        let piece = vec![0; PIECE_BYTES].into();
        Self { ring, interface, shared, at: 0, taken: 0, lost: 0, marks: Vec::new(), piece }
    }

    /// What is recorded next is packet `number` of its batch: [`Self::rewind`] takes it back.
    /// Numbers of a batch don't shrink. With `holds` packets before it may have to be taken back
    /// later as well.
    #[inline]
    pub fn mark(&mut self, number: usize, holds: bool) {
        if !holds {
            self.publish_long();
        }
        self.marks.push(Mark { number, at: self.at, lost: self.lost });
    }

    /// Takes back the packets of the batch from `number` on: they are not over.
    pub fn rewind(&mut self, number: usize) {
        while let Some(mark) = self.marks.pop_if(|mark| mark.number >= number) {
            (self.at, self.lost) = (mark.at, mark.lost);
        }
    }

    /// Takes back the packet that was marked last, whatever its number.
    pub fn rewind_last(&mut self) {
        if let Some(mark) = self.marks.pop() {
            (self.at, self.lost) = (mark.at, mark.lost);
        }
    }

    /// Records a packet of `len` bytes. `fill` writes those from an offset on.
    #[inline]
    pub fn record(&mut self, direction: PacketDirection, len: usize, fill: impl FnMut(usize, &mut [u8])) {
        self.record_part(now, direction, (len, len), fill);
    }

    /// Records a packet of `len` bytes, of which these were kept, that went this way at `time`.
    pub fn record_kept(&mut self, time: u64, direction: PacketDirection, len: u32, kept: &[u8]) {
        self.record_part(
            || time,
            direction,
            (len as usize, kept.len()),
            |at, to| to.copy_from_slice(&kept[at..at + to.len()]),
        );
    }

    /// Records a packet of which at most this part can be kept.
    #[inline]
    fn record_part(
        &mut self,
        time: impl FnOnce() -> u64,
        direction: PacketDirection,
        (len, at_most): (usize, usize),
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        if self.marks.is_empty() {
            self.publish_long();
        }
        let kept = at_most.min(self.shared.copied_bytes as usize);
        if self.shared.has_ended() || !self.has_room(HEAD_WORDS + kept.div_ceil(8) as u64) {
            self.lost += 1;
            return;
        }
        let way = if direction == PacketDirection::Outbound { OUTBOUND } else { 0 };
        self.put(&time().to_ne_bytes());
        self.put(&(kept as u64 | way | u64::from(len as u32) << 32).to_ne_bytes());
        let mut piece = std::mem::take(&mut self.piece);
        let mut done = 0;
        while done < kept {
            let part = &mut piece[..(kept - done).min(PIECE_BYTES)];
            fill(done, part);
            self.put(part);
            done += part.len();
        }
        self.piece = piece;
    }

    /// Hands the batch on to the writer.
    #[inline]
    pub fn publish(&mut self) {
        self.marks.clear();
        if self.lost > 0 {
            self.interface.lost.fetch_add(std::mem::take(&mut self.lost), Ordering::Relaxed);
        }
        if self.ring.published.0.load(Ordering::Relaxed) == self.at {
            return;
        }
        self.ring.published.0.store(self.at, Ordering::Release);
        let half = self.ring.words.len() as u64 / 2;
        self.shared.published(self.at - self.ring.taken.0.load(Ordering::Relaxed) > half);
        if self.shared.has_ended() {
            self.ring.lose(&self.interface);
        }
    }

    /// Hands on the begin of a long batch, so that the writer can start with it.
    #[inline]
    fn publish_long(&mut self) {
        if self.at - self.ring.published.0.load(Ordering::Relaxed) > LONG_WORDS {
            self.publish();
        }
    }

    #[inline]
    fn has_room(&mut self, words: u64) -> bool {
        let end = self.at + words;
        let most = self.ring.words.len() as u64;
        if end - self.taken <= most {
            return true;
        }
        self.taken = self.ring.taken.0.load(Ordering::Acquire);
        end - self.taken <= most
    }

    /// Writes words; the last one is filled up with zeros. There was room for them.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        let start = self.ring.place(self.at);
        let (first, second) = whole.split_at(whole.len().min(self.ring.words.len() - start));
        store(&self.ring.words[start..], first);
        store(&self.ring.words, second);
        self.at += whole.len() as u64;
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            store(&self.ring.words[self.ring.place(self.at)..], &[last]);
            self.at += 1;
        }
    }
}

#[inline]
fn store(places: &[AtomicU64], words: &[[u8; 8]]) {
    for (place, word) in places.iter().zip(words) {
        place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
}

impl Drop for CaptureQueue {
    fn drop(&mut self) {
        self.publish();
        self.ring.over.store(true, Ordering::Release);
        self.shared.published(true);
    }
}

/// A packet that waits in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingPacket {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes that are kept.
    pub kept: u32,
    /// Bytes that it had.
    pub len: u32,
    pub direction: PacketDirection,
}

/// The writer's end of a ring.
#[derive(Debug)]
pub(crate) struct Drain {
    ring: Arc<Ring>,
    pub interface: Arc<InterfaceState>,
    /// Words taken.
    at: u64,
    /// Words published when that was looked at last.
    end: u64,
}

impl Drain {
    /// Looks what was published.
    pub fn look(&mut self) {
        self.end = self.ring.published.0.load(Ordering::Acquire);
    }

    /// Whether more was published than was taken.
    pub fn has_more(&self) -> bool {
        self.ring.published.0.load(Ordering::Acquire) != self.at
    }

    /// Whether all is taken, and nothing more comes.
    pub fn is_over(&self) -> bool {
        self.ring.over.load(Ordering::Acquire) && !self.has_more()
    }

    /// The capture has ended: what it has not taken is lost.
    pub fn lose(&self) {
        self.ring.lose(&self.interface);
    }

    /// The next packet's time, of those that were looked at.
    #[inline]
    pub fn next_time(&self) -> Option<u64> {
        (self.at < self.end).then(|| self.ring.word(self.at))
    }

    /// The next packet.
    pub fn peek(&self) -> Option<WaitingPacket> {
        let time = self.next_time()?;
        let word = self.ring.word(self.at + 1);
        Some(WaitingPacket {
            time,
            kept: kept_bytes(word) as u32,
            len: (word >> 32) as u32,
            direction: match word & OUTBOUND {
                0 => PacketDirection::Inbound,
                _ => PacketDirection::Outbound,
            },
        })
    }

    /// Takes the next packet, which is `packet`, and appends its bytes.
    pub fn take(&mut self, packet: &WaitingPacket, out: &mut Vec<u8>) {
        let kept = packet.kept as usize;
        let words = kept.div_ceil(8);
        let start = self.ring.place(self.at + HEAD_WORDS);
        let first = words.min(self.ring.words.len() - start);
        let end = out.len() + kept;
        out.reserve(8 * words);
        for part in [&self.ring.words[start..start + first], &self.ring.words[..words - first]] {
            for word in part {
                out.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
        }
        out.truncate(end);
        self.at += HEAD_WORDS + words as u64;
        self.ring.taken.0.store(self.at, Ordering::Release);
    }
}
