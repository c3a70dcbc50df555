//! Transmit: from the guest's ring to the port.
//!
//! ```text
//!  guest:   [vnet header | Ethernet … TCP headers | payload …][ payload … ][ payload … ]
//!                 │ read once                          │            │            │
//!  private: [ header slot ]  checked, rewritten        │            │            │
//!                 ▼                                    ▼            ▼            ▼
//!  iovec:   { slot, n }                         { rest of seg 0 } { seg 1 }  { seg 2 } ──▶ writev
//! ```
//!
//! The first bytes of a frame are read once into a private slot; what is checked there is what goes
//! out. Short frames are copied whole into their slot.
//!
//! **Ownership.** A chain is taken from the ring, sent, and given back before [`Transmit::run`]
//! returns: nothing is lent to the kernel across calls.

mod hold;
mod place;
mod ring;

use std::io;

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::offload::longest_segment;
use super::policy::MAX_IOV;
use super::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, Policy, header};
use crate::host::HostRing;
use crate::io::{Lists, MAX_BATCH, Op, PortIo};
use crate::memory::{GuestMemory, MAX_REGIONS, PrivateMap, Segment, access};
use crate::ring::{ChainCursor, RingError, RingRule, SplitRing};
pub use place::head_len;
pub use ring::FrameRing;
use ring::Pushed;

/// Room for the inspected head of a frame, bytes.
const HEADER_SLOT_BYTES: usize = 512;

/// How much of a frame is read into the private slot at least, if there is so much: Ethernet with
/// two tags, IPv6 or IPv4 with options, TCP with options, behind the virtio-net header.
const INSPECT_BYTES: usize = 12 + 22 + 60 + 60;

/// Room for a whole frame, bytes, where it is gathered.
pub const FRAME_SLOT_BYTES: usize = (12 + MAX_FRAME_BYTES).next_multiple_of(4096);

/// Frames longer than `gather_max_bytes` that may be gathered in one batch; further ones wait for
/// the next.
pub const FRAME_SLOTS: usize = 8;

/// Room for a frame that is gathered, up to `gather_max_bytes`, or for a head, bytes.
pub fn small_slot_bytes(policy: &Policy) -> usize {
    policy.gather_max_bytes.next_multiple_of(64).max(HEADER_SLOT_BYTES)
}

/// Scatter-list entries of one batch.
const IOV_CAPACITY: usize = 4 * MAX_IOV;

/// Takes frames out of the way to the port (the metadata service).
pub trait Detour {
    /// Whether the frame that begins with `start` (up to 154 bytes, behind the virtio-net header)
    /// is wanted.
    fn wants(&self, start: &[u8]) -> bool;
    /// Takes a frame, without its virtio-net header.
    fn take(&mut self, frame: &[u8]);
}

/// What the transmit side needs besides its ring.
pub struct TransmitContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// The port.
    pub io: &'a mut PortIo,
    /// Where to count.
    pub counters: &'a Counters,
    /// Who else wants frames.
    pub detour: Option<&'a mut dyn Detour>,
}

/// How a ring's turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Chains taken.
    pub chains: usize,
    /// The driver wants to be notified.
    pub notify: bool,
}

/// A chain of the batch.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    head: u16,
    /// Bytes that are not copied, bytes that are, and why; none for a frame that was dropped or
    /// taken out.
    scattered: u32,
    copied: u32,
    reason: Option<CopyReason>,
    sent: bool,
    /// The port had no room for it.
    full: bool,
    /// It is in the frame ring: its number there.
    number: Option<u64>,
}

/// The transmit side of a queue pair.
pub struct Transmit {
    host: HostRing,
    policy: Policy,
    acked: u64,
    header_len: usize,
    hint: usize,
    segments: Vec<Segment>,
    lists: Lists,
    slots: Vec<Slot>,
    /// Private slots. First a small one for each frame of the batch, where short frames are
    /// gathered and heads lie; then large ones, where longer frames are gathered.
    private: PrivateMap,
    /// Length of a small slot, bytes.
    small_slot: usize,
    /// Large slots that the batch uses.
    large_used: usize,
    /// Offload errors seen, so that the log tells of the first only.
    offload_errors: u64,
    /// A frame that a full port does not take stays in the ring.
    holds: bool,
    /// The port is nearly full.
    pressed: bool,
    /// Room in the port that is known to be there, bytes.
    room: usize,
    /// The longest segment that may be made of a frame, bytes.
    segment_bytes: usize,
    /// The port's interface was not there for a frame.
    port_gone: bool,
    /// Where frames go rather than to the port's socket.
    frame_ring: Option<Box<FrameRing>>,
    /// Frames of the batch that go by that ring, and by the socket.
    by_ring: usize,
    by_socket: usize,
}

impl std::fmt::Debug for Transmit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmit")
            .field("host", &self.host)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Transmit {
    /// The transmit side on `ring`, for a guest that acknowledged the features `acked`.
    pub fn new(ring: impl Into<HostRing>, policy: Policy, acked: u64, header_len: usize) -> io::Result<Self> {
        let host = ring.into();
        let small_slot = small_slot_bytes(&policy);
        // A chain may be as long as the ring (virtio 1.3 §2.7.5.2), and a descriptor may cross
        // regions.
        let most = usize::from(host.ring.size()).max(MAX_IOV) + MAX_REGIONS;
        Ok(Self {
            host,
            policy,
            acked,
            header_len,
            hint: 0,
            segments: Vec::with_capacity(most),
            lists: Lists::new(IOV_CAPACITY),
            slots: Vec::with_capacity(MAX_BATCH),
            private: PrivateMap::new(small_slot * MAX_BATCH + FRAME_SLOT_BYTES * FRAME_SLOTS)?,
            small_slot,
            large_used: 0,
            offload_errors: 0,
            holds: false,
            pressed: false,
            room: 0,
            segment_bytes: usize::MAX,
            port_gone: false,
            frame_ring: None,
            by_ring: 0,
            by_socket: 0,
        })
    }

    /// From now on a frame whose segments would be longer than `bytes`, with all headers and
    /// without VLAN tags, is dropped, and so is one of which that can't be told: kernels and
    /// drivers look at the MTU only where a frame is not to be segmented.
    pub fn limit_segments(&mut self, bytes: usize) {
        self.segment_bytes = bytes;
    }

    /// Whether the port's interface was gone when a frame was handed to it, since this was asked
    /// last.
    pub fn take_port_gone(&mut self) -> bool {
        std::mem::take(&mut self.port_gone)
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host(&self) -> &HostRing {
        &self.host
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host_mut(&mut self) -> &mut HostRing {
        &mut self.host
    }

    /// Gives up the ring.
    pub fn into_host(self) -> HostRing {
        self.host
    }

    /// The ring.
    pub fn ring(&mut self) -> &mut SplitRing {
        &mut self.host.ring
    }

    /// The ring is in other memory: what was known of that, and of the port, is forgotten.
    pub fn moved(&mut self) {
        self.hint = 0;
        self.offload_errors = 0;
        (self.pressed, self.room) = (false, 0);
    }

    /// Lets go of the private memory that bursts have touched.
    pub fn trim(&mut self) {
        // No operation is under way.
        self.private.release_pages();
    }

    /// Gives back everything that the driver has made available without sending it: what a disabled
    /// transmit ring does (vhost-user, "Ring states").
    pub fn discard(&mut self, counters: &Counters) -> Result<Turn, RingError> {
        let mut chains = 0;
        // One ring's worth a turn: a driver that adds as fast as this takes must not hold the
        // thread.
        while chains < usize::from(self.host.ring.size())
            && let Some(head) = self.host.ring.take()?
        {
            self.host.ring.push_used(head, 0);
            counters.dropped(DropReason::PortRefused);
            chains += 1;
        }
        Ok(Turn { chains, notify: self.host.ring.publish() })
    }

    /// Sends one batch.
    #[inline]
    pub fn run(&mut self, cx: &mut TransmitContext<'_>) -> Result<Turn, RingError> {
        let available = self.host.ring.refresh()?;
        self.slots.clear();
        if available == 0 {
            self.flush_waiting(cx.counters);
            return Ok(Turn::default());
        }
        self.lists.clear();
        self.large_used = 0;
        (self.by_ring, self.by_socket) = (0, 0);
        cx.io.clear();
        self.look_for_room(cx.io);
        let mut broken = None;
        for _ in 0..usize::from(available).min(MAX_BATCH) {
            if self.lists.room() < MAX_IOV || self.large_used == FRAME_SLOTS {
                break;
            }
            match self.chain(cx) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
            if self.holds && self.may_be_full(cx.io) {
                break;
            }
        }
        self.host.ring.prefetch(MAX_BATCH as u16);
        self.finish(broken.is_none(), cx);
        let turn = Turn { chains: self.slots.len(), notify: self.host.ring.publish() };
        match broken {
            // What was sent before the error is given back; the ring stops after it.
            Some(e) => Err(e),
            None => Ok(turn),
        }
    }

    /// Hands over frames that the kernel had no room for in the turns before.
    #[inline]
    fn flush_waiting(&mut self, counters: &Counters) {
        if self.frame_ring.as_ref().is_some_and(|r| r.is_waiting()) {
            self.flush_ring(counters);
        }
    }

    /// Takes one chain and queues its frame. On an error the chain is not given back: its ring
    /// stops. Returns false where the chain went back, and the batch ends before it.
    #[inline]
    fn chain(&mut self, cx: &mut TransmitContext<'_>) -> Result<bool, RingError> {
        let Some(head) = self.host.ring.take()? else { return Ok(true) };
        let len = parse(&self.host.ring, head, cx.memory, &mut self.hint, &mut self.segments)?;
        let mut slot = Slot { head, ..Slot::default() };
        match self.frame(len, cx, &mut slot) {
            Ok(true) => {}
            Ok(false) => {
                self.host.ring.untake(std::iter::once(head));
                return Ok(false);
            }
            Err(reason) => cx.counters.dropped(reason),
        }
        self.slots.push(slot);
        Ok(true)
    }

    /// Queues the frame in `self.segments`, or says why it is dropped. Returns false where it has
    /// to wait for another turn.
    #[inline]
    fn frame(
        &mut self,
        len: usize,
        cx: &mut TransmitContext<'_>,
        slot: &mut Slot,
    ) -> Result<bool, DropReason> {
        if len < self.header_len + ETH_HEADER_BYTES {
            return Err(DropReason::TooShort);
        }
        if len > self.header_len + MAX_FRAME_BYTES {
            return Err(DropReason::TooLong);
        }
        let index = self.slots.len();
        let rings = self.frame_ring.is_some();
        let mut place = self.place(index, len, rings);
        let head = &mut self.private[place.range()];
        access::read(&self.segments, 0, head);
        if let Err(e) = header::check(head, self.header_len, len - self.header_len, self.acked) {
            return Err(self.bad_offload(&e));
        }
        if head[1] != header::GSO_NONE && self.segment_bytes != usize::MAX {
            let (vnet, frame) = head.split_at(self.header_len);
            match vnet.first_chunk().map(|vnet| longest_segment(vnet, frame)) {
                Some(Ok(n)) if n <= self.segment_bytes => {}
                Some(Err(e)) => return Err(self.bad_offload(&e)),
                _ => return Err(DropReason::TooLong),
            }
        }
        if let Some(detour) = cx.detour.as_deref_mut() {
            let start = &head[self.header_len..];
            if detour.wants(&start[..start.len().min(INSPECT_BYTES)]) {
                take_out(&self.segments, self.header_len, len, head, detour);
                cx.counters.copied(CopyReason::Metadata, len as u64);
                return Ok(true);
            }
        }
        if rings {
            match self.push_by_ring(&place, len)? {
                Pushed::Taken(number) => {
                    Self::note_by_ring(slot, number, len);
                    return Ok(true);
                }
                Pushed::NotNow => return Ok(false),
                Pushed::Never => self.gather_rest(&mut place, len),
            }
        }
        let first = self.lists.end();
        if self.append(&place, len).is_err() {
            // It is not taken as long as a turn begins no frame with less room than the longest
            // list needs.
            self.lists.truncate(first);
            return Err(DropReason::PortRefused);
        }
        self.by_socket += 1;
        self.room = self.room.saturating_sub(hold::cost(len));
        slot.sent = true;
        slot.copied = place.len as u32;
        slot.scattered = (len - place.len) as u32;
        slot.reason = Some(place.gather.unwrap_or(CopyReason::Header));
        let (iov, entries) = self.lists.list_from(first);
        let op = Op { slot: index as u16, write: true, iov, len: entries };
        if self.pressed {
            // SAFETY: as below.
            unsafe { cx.io.carry_out(op) };
            return Ok(true);
        }
        // SAFETY: `lists` never moves, and is not cleared before the batch has run; the private
        // slots are this side's own, and guest memory is held by `cx.memory`.
        unsafe { cx.io.push(op) };
        Ok(true)
    }

    /// Tells the log of the first frame with a wrong offload.
    #[cold]
    fn bad_offload(&mut self, error: &dyn std::fmt::Display) -> DropReason {
        self.offload_errors += 1;
        if self.offload_errors == 1 {
            let queue = self.host.ring.queue();
            tracing::warn!("queue {queue}: frame dropped: {error} (further ones are only counted)");
        }
        DropReason::BadOffload
    }

    /// Runs the batch, counts, and gives every chain back, or puts it back if the port was full and
    /// it may be taken again.
    #[inline]
    fn finish(&mut self, again: bool, cx: &mut TransmitContext<'_>) {
        self.host.ring.hand_on(self.slots.iter().filter(|s| s.sent).map(|s| s.head));
        if self.frame_ring.is_some() {
            self.flush_ring(cx.counters);
        }
        let (done, calls) = cx.io.run();
        let mut full = false;
        for d in done {
            if d.result < 0
                && let Some(slot) = self.slots.get_mut(usize::from(d.slot))
            {
                slot.sent = false;
                if self.holds && d.result == -libc::EAGAIN {
                    slot.full = true;
                    full = true;
                    continue;
                }
                self.port_gone |= matches!(-d.result, libc::ENXIO | libc::ENODEV | libc::ENETDOWN);
                cx.counters.dropped(DropReason::PortRefused);
            }
        }
        if full {
            self.put_back(again, cx.counters);
        }
        let (mut frames, mut whole, mut scattered) = (0u64, 0u64, 0u64);
        let mut copied: (Option<CopyReason>, u64) = (None, 0);
        for s in &self.slots {
            self.host.ring.push_used(s.head, 0);
            let (true, Some(reason)) = (s.sent, s.reason) else { continue };
            frames += 1;
            whole += u64::from(s.scattered > 0);
            scattered += u64::from(s.scattered);
            // Runs of the same reason are the rule: one addition for each run.
            if copied.0 != Some(reason) {
                if let (Some(r), n) = copied {
                    cx.counters.copied(r, n);
                }
                copied = (Some(reason), 0);
            }
            copied.1 += u64::from(s.copied);
        }
        if let (Some(r), n) = copied {
            cx.counters.copied(r, n);
        }
        cx.counters.frames.add(frames);
        cx.counters.zero_copied_frames.add(whole);
        cx.counters.zero_copied_bytes.add(scattered);
        cx.counters.system_calls.add(calls);
    }
}

/// The segments of a chain that is to be sent, and its length.
#[inline]
pub(super) fn parse(
    ring: &SplitRing,
    head: u16,
    memory: &GuestMemory,
    hint: &mut usize,
    segments: &mut Vec<Segment>,
) -> Result<usize, RingError> {
    segments.clear();
    if let Some(d) = ChainCursor::single(ring, head)
        && !d.is_writable()
        && memory.translate(d.addr, d.len, hint, segments)
    {
        return Ok(d.len as usize);
    }
    let mut cursor = ChainCursor::new(ring, head);
    let mut len = 0usize;
    while let Some(d) = cursor.next(ring, memory, hint)? {
        if d.is_writable() {
            return Err(ring.error(RingRule::WritableInTransmit));
        }
        if !memory.translate(d.addr, d.len, hint, segments) {
            return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
        }
        len += d.len as usize;
    }
    Ok(len)
}

/// Hands a frame of `len` bytes, its header included, to the detour: what was read already, `head`,
/// and the rest behind it.
#[cold]
pub(super) fn take_out(
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
