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
//! out. Short frames are copied whole into their slot. Where slots are, and how frames go out, is
//! the port's matter (`outlet`), and what it can't do to a frame is done before (`software`).
//!
//! **Ownership.** A chain is taken from the ring and sent. To most ports nothing is lent across
//! calls: the chain goes back before [`Transmit::run`] returns. A port that lends has it until the
//! frame's last piece is sent; before the ring stops all chains are back ([`Transmit::release`]).
//! Where no in-flight region is kept, they go back in the order in which they were taken
//! (`returns`).

mod batch;
mod detour;
mod errors;
mod line;
mod outlet;
mod parse;
mod returns;
mod software;
#[cfg(test)]
mod tests;

use std::time::Instant;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::host::HostRing;
use zerowire_vhost::limit::Meter;
use zerowire_vhost::memory::{MAX_REGIONS, Segment, access};
use zerowire_vhost::ring::RingError;
use zerowire_wire::vnet::Fields;

use super::offload::longest_segment;
use super::policy::{GATHER_MAX_BYTES, MAX_IOV};
use super::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, header};
use crate::capture::FrameCapture;
use crate::io::MAX_BATCH;
pub(crate) use batch::SendBatch;
pub use batch::{FRAME_SLOT_BYTES, FRAME_SLOTS, head_len, small_slot_bytes};
pub(crate) use detour::INSPECT_BYTES;
pub use detour::{Detour, TransmitContext};
use errors::OffloadErrors;
use line::Late;
pub(crate) use outlet::Outlet;
pub(crate) use outlet::{Pushed, TxFrame, TxPlace, TxSkip, TxSlot, TxState, TxTally};
use parse::{fetch_ahead, parse};
use returns::Returns;
use software::Long;
pub(crate) use software::{FIRST_PIECE_BYTES, TxPart};

/// How a ring's turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Chains taken.
    pub chains: usize,
    /// The driver wants to be notified.
    pub notify: bool,
}

/// What became of a chain.
enum Taken {
    Frame(Pushed),
    /// It is lent, and becomes many frames.
    Begun,
    /// Nothing of it goes to the port.
    Out,
}

/// The transmit side of a queue pair, toward one kind of port.
pub struct Transmit<O> {
    pub(crate) host: HostRing,
    outlet: O,
    acked: u64,
    header_len: usize,
    hint: usize,
    segments: Vec<Segment>,
    /// The chains of this turn; of a port that lends, those whose frames it has not had before.
    batch: Vec<TxSlot>,
    /// Chains that are out across turns.
    returns: Returns,
    /// A frame that becomes many, of which not all are queued.
    long: Option<Long>,
    errors: OffloadErrors,
    /// What may pass in a turn: chains, and bytes of their frames without virtio-net headers.
    /// Chains beyond that stay in the ring.
    pub meter: Meter,
    /// True: the guest broke a rule, and nobody reads the ring any more.
    abandoned: bool,
    capture: Option<Box<FrameCapture>>,
}

impl<O> std::fmt::Debug for Transmit<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmit").field("host", &self.host).finish_non_exhaustive()
    }
}

impl<O: Outlet> Transmit<O> {
    /// How much of a frame is fetched ahead, bytes: what is gathered at most by default. Of one
    /// that is lent only the header is read here.
    const AHEAD_BYTES: usize = if O::LENDS { 64 } else { GATHER_MAX_BYTES };

    /// The transmit side on `ring`, for a guest that acknowledged the features `acked`.
    pub fn new(ring: impl Into<HostRing>, outlet: O, acked: u64, header_len: usize) -> Self {
        let host = ring.into();
        let (queue, size) = (host.ring.queue(), host.ring.size());
        // A chain may be as long as the ring (virtio 1.3 §2.7.5.2), and a descriptor may cross
        // regions.
        let most = usize::from(size).max(MAX_IOV) + MAX_REGIONS;
        Self {
            host,
            outlet,
            acked,
            header_len,
            hint: 0,
            segments: Vec::with_capacity(most),
            // A turn before may have begun to cut one more.
            batch: Vec::with_capacity(MAX_BATCH + 1),
            returns: Returns::new(if O::LENDS { size } else { 0 }),
            long: None,
            errors: OffloadErrors::new(queue),
            meter: Meter::default(),
            abandoned: false,
            capture: None,
        }
    }

    /// Has frames go to a capture as well.
    pub(crate) fn set_capture(&mut self, capture: Option<FrameCapture>) {
        self.capture = capture.map(Box::new);
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

    /// The ring is new, or in other memory, and nothing of it is lent. Forgets what was known of
    /// it.
    ///
    /// # Errors
    /// A text that says why the port can't send.
    pub fn begin(&mut self, port: &mut O::Port) -> Result<(), String> {
        self.hint = 0;
        self.errors.forget();
        self.returns.line.clear();
        self.abandoned = false;
        self.outlet.start(port, self.header_len)
    }

    /// Lets go of the private memory that bursts have touched.
    pub fn trim(&mut self) {
        self.outlet.trim();
    }

    /// Ends all that is under way, before the ring stops: all chains are back.
    pub fn release(&mut self, port: &mut O::Port, counters: &Counters) {
        if self.abandoned {
            return;
        }
        self.end_long(port, counters);
        self.outlet.end(port, counters);
        if O::LENDS {
            // All are back, so that none waits for another.
            self.give_back_or(port, |_| Late::PassAll);
            if self.host.publish() {
                counters.calls.add(1);
            }
        }
    }

    /// Ends what is lent, and gives nothing back.
    pub fn abandon(&mut self, port: &mut O::Port, counters: &Counters) {
        if O::LENDS {
            self.end_long(port, counters);
            self.outlet.end(port, counters);
            self.outlet.returned(port, !self.host.ring.is_tracked(), |_| {});
            self.outlet.passed(port, 0, None);
            self.returns.line.clear();
            self.abandoned = true;
        }
    }

    /// Gives back everything that the driver has made available without sending it: what a disabled
    /// transmit ring does (vhost-user, "Ring states"). What was queued before goes out.
    pub fn discard(&mut self, port: &mut O::Port, counters: &Counters) -> Result<Turn, RingError> {
        self.outlet.send_waiting(port, counters);
        self.refuse(port, counters)
    }

    fn refuse(&mut self, port: &mut O::Port, counters: &Counters) -> Result<Turn, RingError> {
        self.end_long(port, counters);
        let mut back = self.give_back(port);
        let mut chains = 0;
        self.returns.now = None;
        // One ring's worth a turn: a driver that adds as fast as this takes must not hold the
        // thread.
        let size = self.host.ring.size();
        while chains < usize::from(size)
            && self.returns.line.has_room(size)
            && let Some(head) = self.host.ring.take()?
        {
            self.returns.done(&mut self.host.ring, head);
            counters.dropped(DropReason::PortRefused);
            chains += 1;
        }
        back += self.give_back(port);
        Ok(Turn { chains: chains + back, notify: self.host.ring.publish() })
    }

    /// Gives the guest back what was lent and is not any more, as far as nothing before that is.
    /// Returns how many chains came back.
    #[inline]
    fn give_back(&mut self, port: &mut O::Port) -> usize {
        let most = usize::from(self.host.ring.size() / 2).max(1);
        self.give_back_or(port, |waits| match waits {
            true => Late::Wait,
            false => Late::Pass { now: Instant::now(), most },
        })
    }

    /// The same; `late` decides about chains that have to wait for others. Its argument says
    /// whether those others come as soon as the port takes anything.
    #[inline]
    fn give_back_or(&mut self, port: &mut O::Port, late: impl FnOnce(bool) -> Late) -> usize {
        let Self { host: HostRing { ring, .. }, outlet, returns, .. } = self;
        let mut back = 0;
        let in_order = !ring.is_tracked();
        let waits = outlet.returned(port, in_order, |head| {
            returns.back(ring, head);
            back += 1;
        });
        let passed = returns.give(ring, || late(waits));
        outlet.passed(port, passed, returns.line.due().filter(|_| !waits));
        back
    }

    /// Sends one batch, and gives back what has been sent.
    #[inline]
    pub fn run(&mut self, port: &mut O::Port, cx: &mut TransmitContext<'_>) -> Result<Turn, RingError> {
        let mut chains = if O::LENDS { self.give_back(port) } else { 0 };
        let available = self.host.ring.refresh()?;
        let available = self.meter.admitted(available);
        self.batch.clear();
        match self.outlet.begin(port, available > 0 || self.is_cutting(), cx.counters) {
            TxState::Ready => {}
            TxState::Wait => return Ok(Turn { chains, notify: self.host.ring.publish() }),
            TxState::Refuse => return self.refuse(port, cx.counters),
        }
        if !O::LENDS && available == 0 {
            self.outlet.send_waiting(port, cx.counters);
            return Ok(Turn::default());
        }
        if O::LENDS {
            self.returns.now = None;
        }
        if !O::OFFLOADS {
            chains += self.go_on(port, cx.counters);
        }
        let mut broken = None;
        for _ in 0..usize::from(available).min(MAX_BATCH) {
            if self.meter.admitted(1) == 0 || !self.has_room(port) {
                break;
            }
            fetch_ahead(&self.host.ring, cx.memory, &mut self.hint, Self::AHEAD_BYTES);
            match self.chain(port, cx) {
                Ok(true) => chains += 1,
                Ok(false) => break,
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        self.host.ring.prefetch(MAX_BATCH as u16);
        let done = self.finish(broken.is_none(), port, cx.counters);
        if let Some(capture) = &mut self.capture {
            capture.queue.publish();
        }
        let chains = if O::LENDS { chains + done } else { done };
        let notify = self.host.ring.publish();
        match broken {
            // What was sent before the error is given back; the ring stops after it.
            Some(e) => Err(e),
            None => Ok(Turn { chains, notify }),
        }
    }

    /// Whether a frame that becomes many is not all queued.
    #[inline]
    fn is_cutting(&self) -> bool {
        !O::OFFLOADS && self.long.is_some()
    }

    /// Whether another chain may be taken.
    #[inline]
    fn has_room(&self, port: &mut O::Port) -> bool {
        self.outlet.has_room(port)
            && !self.is_cutting()
            && (!O::LENDS || self.returns.line.has_room(self.host.ring.size()))
    }

    /// Takes one chain and queues its frame. On an error the chain is not given back: its ring
    /// stops. Returns false where there is none, or it went back, and the batch ends before it.
    #[inline]
    fn chain(&mut self, port: &mut O::Port, cx: &mut TransmitContext<'_>) -> Result<bool, RingError> {
        let Some(head) = self.host.ring.take()? else { return Ok(false) };
        let len = parse(&self.host.ring, head, cx.memory, &mut self.hint, &mut self.segments)?;
        // A longer one is dropped, and is not to hold its guest up for long.
        let bytes = len.saturating_sub(self.header_len).min(MAX_FRAME_BYTES);
        match self.frame(head, len, port, cx) {
            Ok(Taken::Frame(Pushed::Full)) => {
                self.host.ring.untake(std::iter::once(head));
                if let Some(capture) = &mut self.capture {
                    capture.put_back_last();
                }
                return Ok(false);
            }
            Ok(Taken::Frame(pushed)) => self.queued(head, bytes, pushed),
            Ok(Taken::Begun) => {}
            Ok(Taken::Out) => self.skip(head, bytes, TxSkip::Detour, cx.counters),
            Err(reason) => self.skip(head, bytes, TxSkip::Dropped(reason), cx.counters),
        }
        self.meter.pass(bytes);
        Ok(true)
    }

    /// The frame of a chain goes out with the batch.
    #[inline]
    fn queued(&mut self, head: u16, bytes: usize, pushed: Pushed) {
        let tally = if let Pushed::Queued(tally) = pushed { Some(tally) } else { None };
        self.batch.push(TxSlot { head, len: bytes as u32, tally, skipped: None });
        if O::LENDS {
            match tally {
                Some(_) => self.returns.done(&mut self.host.ring, head),
                None => self.returns.lent(&self.host.ring, head),
            }
        }
    }

    /// Nothing of a chain goes out. In a batch it counts as soon as it is certain that the chain is
    /// not put back.
    #[inline]
    fn skip(&mut self, head: u16, bytes: usize, why: TxSkip, counters: &Counters) {
        if O::LENDS {
            why.count(counters);
            self.returns.done(&mut self.host.ring, head);
        } else {
            self.batch.push(TxSlot { head, len: bytes as u32, tally: None, skipped: Some(why) });
        }
    }

    /// Queues the frame in `self.segments`, or says why it is dropped.
    #[inline]
    fn frame(
        &mut self,
        head: u16,
        len: usize,
        port: &mut O::Port,
        cx: &mut TransmitContext<'_>,
    ) -> Result<Taken, DropReason> {
        let header_len = self.header_len;
        if len < header_len + ETH_HEADER_BYTES {
            return Err(DropReason::TooShort);
        }
        let frame_len = len - header_len;
        let longest = self.outlet.longest_frame(port);
        if O::OFFLOADS && frame_len > longest {
            return Err(DropReason::TooLong);
        }
        let frame = TxFrame {
            head,
            index: self.batch.len(),
            len,
            header_len,
            segments: &self.segments,
            inspected: cx.inspects(),
            may_lend: O::LENDS && !self.returns.line.is_broken(),
            summed: false,
        };
        let place = self.outlet.place(port, &frame);
        let segment_bytes = self.outlet.longest_segment();
        let start = self.outlet.bytes(&place);
        access::read(frame.segments, 0, start);
        if !O::OFFLOADS {
            if !Fields::of(start).is_plain() {
                return self.offloaded(head, len, place, port, cx);
            }
            if frame_len > longest {
                return Err(DropReason::TooLong);
            }
        }
        if let Err(e) = header::check(start, header_len, frame_len, self.acked) {
            return Err(self.errors.log(&e));
        }
        if segment_bytes != usize::MAX && Fields::of(start).gso_type != header::GSO_NONE {
            let (vnet, frame) = start.split_at(header_len);
            match vnet.first_chunk().map(|vnet| longest_segment(vnet, frame)) {
                Some(Ok(n)) if n <= segment_bytes => {}
                Some(Err(e)) => return Err(self.errors.log(&e)),
                _ => return Err(DropReason::TooLong),
            }
        }
        if let Some(capture) = &mut self.capture {
            capture.sent(&frame, start, O::LEAVES);
        }
        if frame.inspected && cx.inspect(&frame, start)? {
            return Ok(Taken::Out);
        }
        if self.outlet.sends_at_once() {
            self.host.ring.hand_on(std::iter::once(head));
        }
        self.outlet.push(port, &frame, place).map(Taken::Frame)
    }

    /// Sends the batch. For a port that does not lend, counts, and gives every chain back. Chains
    /// for which the port was full are put back instead, if they may be taken again. Returns how
    /// many chains came back.
    #[inline]
    fn finish(&mut self, again: bool, port: &mut O::Port, counters: &Counters) -> usize {
        let sent = self.batch.iter().filter(|s| O::LENDS || s.tally.is_some());
        self.host.ring.hand_on(sent.map(|s| s.head));
        let full = self.outlet.flush(port, &mut self.batch, counters);
        if O::LENDS {
            return self.give_back(port);
        }
        if full > 0 {
            self.put_back(full, again, counters);
        }
        let (mut frames, mut whole, mut scattered) = (0u64, 0u64, 0u64);
        let mut copied: (Option<CopyReason>, u64) = (None, 0);
        for s in &self.batch {
            self.host.ring.push_used(s.head, 0);
            if let Some(why) = s.skipped {
                why.count(counters);
            }
            let Some(tally) = s.tally else { continue };
            frames += 1;
            whole += u64::from(tally.scattered > 0);
            scattered += u64::from(tally.scattered);
            // Runs of the same reason are the rule: one addition for each run.
            if copied.0 != Some(tally.reason) {
                if let (Some(r), n) = copied {
                    counters.copied(r, n);
                }
                copied = (Some(tally.reason), 0);
            }
            copied.1 += u64::from(tally.copied);
        }
        if let (Some(r), n) = copied {
            counters.copied(r, n);
        }
        counters.frames.add(frames);
        counters.zero_copied_frames.add(whole);
        counters.zero_copied_bytes.add(scattered);
        self.batch.len()
    }

    /// Puts the last `full` chains of the batch back into the ring: the port had no room for their
    /// frames, or they were skipped behind such a frame. A detour gets its frames twice then, as
    /// from a wire. All this only if they may be taken `again`: no broken chain was taken after
    /// them.
    #[cold]
    fn put_back(&mut self, full: usize, again: bool, counters: &Counters) {
        let kept = self.batch.len() - full;
        if !again {
            let frames = self.batch[kept..].iter().filter(|s| s.skipped.is_none()).count();
            counters.dropped_many(DropReason::PortRefused, frames as u64);
            return;
        }
        self.batch[kept..].iter().for_each(|s| self.meter.take_back(s.len as usize));
        self.host.ring.untake(self.batch[kept..].iter().map(|s| s.head));
        self.batch.truncate(kept);
        if let Some(capture) = &mut self.capture {
            capture.queue.rewind(kept);
        }
    }
}
