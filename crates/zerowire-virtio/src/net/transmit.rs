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
//! the port's matter (`outlet`).
//!
//! **Ownership.** A chain is taken from the ring, sent, and given back before [`Transmit::run`]
//! returns: nothing is lent to the kernel across calls.

mod batch;
mod detour;
mod outlet;
mod parse;

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::offload::longest_segment;
use super::policy::MAX_IOV;
use super::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, header};
use crate::host::HostRing;
use crate::io::MAX_BATCH;
use crate::memory::{GuestMemory, MAX_REGIONS, Segment, access};
use crate::ring::{RingError, SplitRing};
pub(in crate::net) use batch::SendBatch;
pub use batch::{FRAME_SLOT_BYTES, FRAME_SLOTS, head_len, small_slot_bytes};
pub use detour::Detour;
pub(in crate::net) use detour::take_out;
pub(crate) use outlet::Outlet;
pub(in crate::net) use outlet::{Pushed, TxFrame, TxPlace, TxSlot, TxTally};
pub(in crate::net) use parse::parse;

/// How much of a frame is read into the private slot at least, if there is so much: Ethernet with
/// two tags, IPv6 or IPv4 with options, TCP with options, behind the virtio-net header.
const INSPECT_BYTES: usize = 12 + 22 + 60 + 60;

/// What the transmit side needs besides its ring and its port.
pub struct TransmitContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
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

/// What became of a chain.
enum Taken {
    Frame(Pushed),
    /// Nothing of it goes to the port.
    Out,
}

/// The transmit side of a queue pair, toward one kind of port.
pub struct Transmit<O> {
    host: HostRing,
    outlet: O,
    acked: u64,
    header_len: usize,
    hint: usize,
    segments: Vec<Segment>,
    /// The chains of this turn.
    batch: Vec<TxSlot>,
    /// Offload errors seen, so that the log tells of the first only.
    offload_errors: u64,
}

impl<O> std::fmt::Debug for Transmit<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmit").field("host", &self.host).finish_non_exhaustive()
    }
}

impl<O: Outlet> Transmit<O> {
    /// The transmit side on `ring`, for a guest that acknowledged the features `acked`.
    pub fn new(ring: impl Into<HostRing>, outlet: O, acked: u64, header_len: usize) -> Self {
        let host = ring.into();
        // A chain may be as long as the ring (virtio 1.3 §2.7.5.2), and a descriptor may cross
        // regions.
        let most = usize::from(host.ring.size()).max(MAX_IOV) + MAX_REGIONS;
        Self {
            host,
            outlet,
            acked,
            header_len,
            hint: 0,
            segments: Vec::with_capacity(most),
            batch: Vec::with_capacity(MAX_BATCH),
            offload_errors: 0,
        }
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

    /// The ring is new, or in other memory: what was known of that is forgotten.
    ///
    /// # Errors
    /// A text that says why the port can't send.
    pub fn begin(&mut self, port: &mut O::Port) -> Result<(), String> {
        self.hint = 0;
        self.offload_errors = 0;
        self.outlet.start(port, self.header_len)
    }

    /// Lets go of the private memory that bursts have touched.
    pub fn trim(&mut self) {
        self.outlet.trim();
    }

    /// Ends all that is under way, before the ring stops.
    pub fn release(&mut self, port: &mut O::Port, counters: &Counters) {
        self.outlet.send_waiting(port, counters);
    }

    /// Gives back everything that the driver has made available without sending it: what a disabled
    /// transmit ring does (vhost-user, "Ring states").
    pub fn discard(&mut self, port: &mut O::Port, counters: &Counters) -> Result<Turn, RingError> {
        self.outlet.send_waiting(port, counters);
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
    pub fn run(&mut self, port: &mut O::Port, cx: &mut TransmitContext<'_>) -> Result<Turn, RingError> {
        let available = self.host.ring.refresh()?;
        self.batch.clear();
        self.outlet.begin(port, available > 0);
        if available == 0 {
            self.outlet.send_waiting(port, cx.counters);
            return Ok(Turn::default());
        }
        let mut broken = None;
        for _ in 0..usize::from(available).min(MAX_BATCH) {
            if !self.outlet.has_room(port) {
                break;
            }
            match self.chain(port, cx) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        self.host.ring.prefetch(MAX_BATCH as u16);
        self.finish(broken.is_none(), port, cx.counters);
        let turn = Turn { chains: self.batch.len(), notify: self.host.ring.publish() };
        match broken {
            // What was sent before the error is given back; the ring stops after it.
            Some(e) => Err(e),
            None => Ok(turn),
        }
    }

    /// Takes one chain and queues its frame. On an error the chain is not given back: its ring
    /// stops. Returns false where there is none, or it went back, and the batch ends before it.
    #[inline]
    fn chain(&mut self, port: &mut O::Port, cx: &mut TransmitContext<'_>) -> Result<bool, RingError> {
        let Some(head) = self.host.ring.take()? else { return Ok(false) };
        let len = parse(&self.host.ring, head, cx.memory, &mut self.hint, &mut self.segments)?;
        let tally = match self.frame(len, port, cx) {
            Ok(Taken::Frame(Pushed::Queued(tally))) => Some(tally),
            Ok(Taken::Frame(Pushed::Full)) => {
                self.host.ring.untake(std::iter::once(head));
                return Ok(false);
            }
            Ok(Taken::Out) => None,
            Err(reason) => {
                cx.counters.dropped(reason);
                None
            }
        };
        self.batch.push(TxSlot { head, tally });
        Ok(true)
    }

    /// Queues the frame in `self.segments`, or says why it is dropped.
    #[inline]
    fn frame(
        &mut self,
        len: usize,
        port: &mut O::Port,
        cx: &mut TransmitContext<'_>,
    ) -> Result<Taken, DropReason> {
        let header_len = self.header_len;
        if len < header_len + ETH_HEADER_BYTES {
            return Err(DropReason::TooShort);
        }
        if len > header_len + MAX_FRAME_BYTES {
            return Err(DropReason::TooLong);
        }
        let frame = TxFrame { index: self.batch.len(), len, header_len, segments: &self.segments };
        let place = self.outlet.place(port, &frame);
        let longest = self.outlet.longest_segment();
        let start = self.outlet.bytes(&place);
        access::read(frame.segments, 0, start);
        if let Err(e) = header::check(start, header_len, len - header_len, self.acked) {
            return Err(self.bad_offload(&e));
        }
        if longest != usize::MAX && start[1] != header::GSO_NONE {
            let (vnet, frame) = start.split_at(header_len);
            match vnet.first_chunk().map(|vnet| longest_segment(vnet, frame)) {
                Some(Ok(n)) if n <= longest => {}
                Some(Err(e)) => return Err(self.bad_offload(&e)),
                _ => return Err(DropReason::TooLong),
            }
        }
        if let Some(detour) = cx.detour.as_deref_mut() {
            let inspected = &start[header_len..];
            if detour.wants(&inspected[..inspected.len().min(INSPECT_BYTES)]) {
                take_out(frame.segments, header_len, len, start, detour);
                cx.counters.copied(CopyReason::Metadata, len as u64);
                return Ok(Taken::Out);
            }
        }
        self.outlet.push(port, &frame, place).map(Taken::Frame)
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

    /// Sends the batch, counts, and gives every chain back, or puts it back if the port was full
    /// and it may be taken again.
    #[inline]
    fn finish(&mut self, again: bool, port: &mut O::Port, counters: &Counters) {
        let sent = self.batch.iter().filter(|s| s.tally.is_some());
        self.host.ring.hand_on(sent.map(|s| s.head));
        let full = self.outlet.flush(port, &mut self.batch, counters);
        if full > 0 {
            self.put_back(full, again, counters);
        }
        let (mut frames, mut whole, mut scattered) = (0u64, 0u64, 0u64);
        let mut copied: (Option<CopyReason>, u64) = (None, 0);
        for s in &self.batch {
            self.host.ring.push_used(s.head, 0);
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
    }

    /// The last `full` chains of the batch, for which the port had no room, go back to the ring, if
    /// they may be taken `again`: no broken chain was taken after them.
    #[cold]
    fn put_back(&mut self, full: usize, again: bool, counters: &Counters) {
        if !again {
            counters.dropped_many(DropReason::PortRefused, full as u64);
            return;
        }
        let kept = self.batch.len() - full;
        self.host.ring.untake(self.batch[kept..].iter().map(|s| s.head));
        self.batch.truncate(kept);
    }
}
