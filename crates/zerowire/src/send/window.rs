//! The book of what is lent. Plain code without a socket.
//!
//! Each payload has a [`Ticket`]. A payload that is lent has one id of the kernel for each call
//! that took a part of it. A stream may take it in parts. Ids are consecutive 32-bit numbers that
//! wrap around. Notifications name inclusive ranges of them, coalesced and in any order. Payloads
//! that were copied leave no trace here but their completion.
//!
//! The window owns the lent payloads. It keeps a few bytes for each payload from the oldest that is
//! out on ([`Window::span`]). So a limit on this span bounds its memory, too. A window that is
//! dropped with ids out leaks their payloads: the kernel may still read them.

use super::{Completion, Payload, Ticket};
use std::collections::VecDeque;
use thiserror::Error;

/// Up to this many ranges of completions are kept until the program takes them; then the oldest are
/// forgotten. A program that wants them takes them at least once in this many payloads.
const MAX_RANGES: usize = 1 << 16;
/// The largest gap between two ids that follow each other: calls that failed after they had taken
/// an id.
const MAX_GAP: u32 = 1 << 16;

/// A range with ids that were never given, or that came back before. The others of the range were
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a notification for {unknown} ids that are not out, in {lo} to {hi}")]
pub struct UnknownIds {
    /// First id of the range.
    pub lo: u32,
    /// Last id of the range.
    pub hi: u32,
    /// How many of them are not out.
    pub unknown: u64,
}

/// Sums over completed payloads since the last [`Window::take_report`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LoanTotals {
    /// Payloads that are back.
    pub payloads: usize,
    /// Of those, lent and not copied by anybody.
    pub zero_copied: usize,
    /// Their bytes.
    pub zero_copied_bytes: u64,
    /// Bytes of payloads that were lent and that the kernel copied.
    pub kernel_copied_bytes: u64,
}

#[derive(Debug)]
struct LoanEntry {
    ticket: Ticket,
    payload: Option<Payload>,
    bytes: usize,
    /// Bytes of it that calls took by copying and that were counted when that happened.
    counted: usize,
    /// Ids that are out, and one more while parts of the payload have yet to be sent.
    left: u32,
    /// The kernel said of a part that it copied it, or nobody knows.
    kernel_copied: bool,
}

#[derive(Clone, Copy, Debug)]
struct Id {
    /// Which payload: a running number, of which `first_seq` is the front's.
    seq: u32,
    back: bool,
}

/// What [`Window::on_done`] registers.
pub type OnDone = Box<dyn FnMut(Ticket, Payload, bool) + Send>;

/// The book of what is lent.
#[derive(Default)]
pub struct Window {
    lent: VecDeque<LoanEntry>,
    first_seq: u32,
    ids: VecDeque<Id>,
    first_id: u32,
    next_ticket: u32,
    outstanding: usize,
    outstanding_bytes: usize,
    ids_out: usize,
    open: bool,
    done: VecDeque<Completion>,
    report: LoanTotals,
    finished: Vec<(usize, bool)>,
    note_sizes: bool,
    on_done: Option<OnDone>,
}

impl Window {
    /// A window whose first ticket and first id are these.
    pub fn starting_at(ticket: Ticket, id: u32) -> Self {
        let mut window = Self::default();
        (window.first_id, window.next_ticket) = (id, ticket.number());
        window
    }

    /// Notes the lengths of what comes back, for [`take_sizes`](Self::take_sizes).
    pub(crate) fn note_sizes(&mut self, on: bool) {
        self.note_sizes = on;
        self.finished.clear();
    }

    /// Calls `f` with each payload that is done, in place of dropping it. True: its bytes were
    /// copied.
    pub fn on_done(&mut self, f: OnDone) {
        self.on_done = Some(f);
    }

    /// The ticket that the next payload gets.
    pub fn next_ticket(&self) -> Ticket {
        Ticket::new(self.next_ticket)
    }

    /// Payloads that are not back.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Bytes of the payloads that are not back.
    #[inline]
    pub fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes
    }

    /// Ids that the kernel has not given back. Fewer than the payloads: one waits to be sent; more:
    /// a stream took some in parts.
    #[inline]
    pub fn ids_out(&self) -> usize {
        self.ids_out
    }

    /// Payloads or ids, whichever are more, from the oldest that is out to the newest, those that
    /// are back included.
    pub fn span(&self) -> usize {
        self.lent.len().max(self.ids.len())
    }

    /// Whether `ticket` is done; `None` when it was not given out.
    pub fn is_done(&self, ticket: Ticket) -> Option<bool> {
        if self.next_ticket().since(ticket) <= 0 {
            return None;
        }
        let at = self.lent.partition_point(|l| l.ticket.since(ticket) < 0);
        Some(!self.lent.get(at).is_some_and(|l| l.ticket == ticket && l.left > 0))
    }

    /// A payload that was copied: done at once.
    #[inline]
    pub fn copied(&mut self, payload: Payload) -> Ticket {
        let ticket = self.take_ticket();
        self.copied_as(ticket, payload);
        ticket
    }

    /// As [`copied`](Self::copied), with a ticket that was left out before.
    pub(crate) fn copied_as(&mut self, ticket: Ticket, payload: Payload) {
        self.complete(ticket, true);
        match &mut self.on_done {
            None => drop(payload),
            Some(f) => f(ticket, payload, true),
        }
    }

    /// A payload that is lent in one call, with the kernel's id for it. `copied`: its bytes were
    /// copied into it before (and counted), so that it does not count as zero-copied.
    ///
    /// # Errors
    /// Those of [`add_id`](Self::add_id). The payload is taken all the same.
    #[inline]
    pub fn lend(&mut self, payload: Payload, id: u32, copied: bool) -> Result<Ticket, UnknownIds> {
        if self.open || id != self.first_id.wrapping_add(self.ids.len() as u32) {
            return self.lend_in_steps(payload, id, copied);
        }
        // What the steps come to for the id that follows the last one.
        let seq = self.first_seq.wrapping_add(self.lent.len() as u32);
        let counted = if copied { payload.len() } else { 0 };
        let ticket = self.enter(payload, counted);
        self.ids_out += 1;
        self.ids.push_back(Id { seq, back: false });
        Ok(ticket)
    }

    fn lend_in_steps(&mut self, payload: Payload, id: u32, copied: bool) -> Result<Ticket, UnknownIds> {
        let ticket = self.open(payload);
        if let Some(l) = self.lent.back_mut().filter(|_| copied) {
            l.counted = l.bytes;
        }
        let added = self.add_id(id);
        self.close_open();
        added.map(|()| ticket)
    }

    /// Opens a payload that goes in parts: it is not done before [`close_open`](Self::close_open).
    /// One at a time.
    pub fn open(&mut self, payload: Payload) -> Ticket {
        self.close_open();
        self.open = true;
        self.enter(payload, 0)
    }

    /// A payload whose memory is lent, and of which `counted` bytes are copies.
    fn enter(&mut self, payload: Payload, counted: usize) -> Ticket {
        let ticket = self.take_ticket();
        let bytes = payload.len();
        self.outstanding += 1;
        self.outstanding_bytes += bytes;
        self.lent.push_back(LoanEntry {
            ticket,
            payload: Some(payload),
            bytes,
            counted,
            left: 1,
            kernel_copied: false,
        });
        ticket
    }

    /// The payload that is open.
    pub fn open_payload(&self) -> Option<&Payload> {
        self.lent.back().filter(|_| self.open)?.payload.as_ref()
    }

    /// A part of the open payload is lent under this id. Ids follow each other; ids that are left
    /// out are taken for ones that nothing hangs on.
    ///
    /// # Errors
    /// The id lies behind or far ahead, or no payload is open. The id is not taken, and the memory
    /// stays until [`all_back`](Self::all_back).
    pub fn add_id(&mut self, id: u32) -> Result<(), UnknownIds> {
        let next = self.first_id.wrapping_add(self.ids.len() as u32);
        let gap = id.wrapping_sub(next);
        let seq = self.first_seq.wrapping_add((self.lent.len() as u32).wrapping_sub(1));
        let Some(l) = self.lent.back_mut().filter(|_| self.open) else {
            return Err(UnknownIds { lo: id, hi: id, unknown: 1 });
        };
        l.left += 1;
        if gap > MAX_GAP {
            return Err(UnknownIds { lo: id, hi: id, unknown: 1 });
        }
        if self.ids.is_empty() {
            self.first_id = id;
        } else {
            self.ids.extend(std::iter::repeat_n(Id { seq, back: true }, gap as usize));
        }
        self.ids.push_back(Id { seq, back: false });
        self.ids_out += 1;
        Ok(())
    }

    /// `bytes` of the open payload were copied, and are counted elsewhere.
    pub fn add_copied(&mut self, bytes: usize) {
        if let Some(l) = self.lent.back_mut().filter(|_| self.open) {
            l.counted += bytes;
        }
    }

    /// No more parts of the open payload follow.
    pub fn close_open(&mut self) {
        if std::mem::take(&mut self.open) {
            let seq = self.first_seq.wrapping_add((self.lent.len() as u32).wrapping_sub(1));
            self.one_back(seq);
            self.trim();
        }
    }

    /// The rest of the open payload will never be sent: only its first `sent` bytes count.
    pub fn cut_open(&mut self, sent: usize) {
        if let Some(l) = self.lent.back_mut().filter(|_| self.open) {
            self.outstanding_bytes -= l.bytes.saturating_sub(sent);
            l.bytes = l.bytes.min(sent);
        }
        self.close_open();
    }

    /// The kernel gave the ids `lo` to `hi` back; `copied`: it says that it copied them. Returns
    /// how many payloads are done by that.
    ///
    /// # Errors
    /// Some of the ids are not out. The others of them are back.
    pub fn notified(&mut self, lo: u32, hi: u32, copied: bool) -> Result<usize, UnknownIds> {
        let span = hi.wrapping_sub(lo);
        if span > i32::MAX as u32 {
            return Err(UnknownIds { lo, hi, unknown: u64::from(span) + 1 });
        }
        let from = i64::from(lo.wrapping_sub(self.first_id) as i32);
        let to = from + i64::from(span);
        let mut unknown = i64::from(span) + 1;
        let before = self.report.payloads;
        for at in from.max(0)..(to + 1).min(self.ids.len() as i64) {
            let Some(id) = self.ids.get_mut(at as usize).filter(|id| !id.back) else { continue };
            id.back = true;
            self.ids_out -= 1;
            let seq = id.seq;
            unknown -= 1;
            if let Some(l) = self.lent.get_mut(seq.wrapping_sub(self.first_seq) as usize) {
                l.kernel_copied |= copied;
            }
            self.one_back(seq);
        }
        self.trim();
        if unknown > 0 {
            return Err(UnknownIds { lo, hi, unknown: unknown as u64 });
        }
        Ok(self.report.payloads - before)
    }

    /// Everything that was lent is back, although notifications are missing. Nobody knows whether
    /// it was copied; it counts as copied. An open payload stays open.
    pub fn all_back(&mut self) -> usize {
        self.all_back_as(true)
    }

    /// Everything that was lent is back; `copied`: the kernel says that it copied some of it. An
    /// open payload stays open.
    pub fn all_back_as(&mut self, copied: bool) -> usize {
        let before = self.report.payloads;
        for at in 0..self.lent.len() {
            let seq = self.first_seq.wrapping_add(at as u32);
            let open = u32::from(self.open && at + 1 == self.lent.len());
            while let Some(l) = self.lent.get_mut(at).filter(|l| l.left > open) {
                l.kernel_copied |= copied;
                self.one_back(seq);
            }
        }
        self.first_id = self.first_id.wrapping_add(self.ids.len() as u32);
        self.ids.clear();
        self.ids_out = 0;
        self.trim();
        self.report.payloads - before
    }

    /// The next range of tickets that are done since the last call, in the order in which they
    /// became so.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// What was completed since the last call.
    pub(crate) fn take_report(&mut self) -> LoanTotals {
        std::mem::take(&mut self.report)
    }

    /// Length and copied-by-the-kernel of the payloads completed since the last call, if
    /// `note_sizes` is set.
    pub(crate) fn take_sizes(&mut self, mut f: impl FnMut(usize, bool)) {
        for (len, copied) in self.finished.drain(..) {
            f(len, copied);
        }
    }

    /// The payload behind a ticket, while it is lent.
    #[cfg(feature = "testing")]
    pub(crate) fn payload_mut(&mut self, ticket: Ticket) -> Option<&mut Payload> {
        self.lent.iter_mut().find(|l| l.ticket == ticket)?.payload.as_mut()
    }

    /// The ticket of a payload, which may come later, by [`copied_as`](Self::copied_as).
    pub(crate) fn take_ticket(&mut self) -> Ticket {
        let ticket = Ticket::new(self.next_ticket);
        self.next_ticket = self.next_ticket.wrapping_add(1);
        ticket
    }

    #[inline]
    fn one_back(&mut self, seq: u32) {
        let Some(l) = self.lent.get_mut(seq.wrapping_sub(self.first_seq) as usize) else { return };
        l.left = l.left.saturating_sub(1);
        if l.left > 0 {
            return;
        }
        let (ticket, bytes, counted, by_kernel) = (l.ticket, l.bytes, l.counted, l.kernel_copied);
        let lent = bytes.saturating_sub(counted) as u64;
        let copied = by_kernel || counted > 0;
        let payload = l.payload.take();
        self.outstanding -= 1;
        self.outstanding_bytes -= bytes;
        self.report.payloads += 1;
        if by_kernel {
            self.report.kernel_copied_bytes += lent;
        } else {
            self.report.zero_copied_bytes += lent;
            self.report.zero_copied += usize::from(counted == 0);
        }
        if self.note_sizes && counted == 0 {
            self.finished.push((bytes, copied));
        }
        self.complete(ticket, copied);
        match (&mut self.on_done, payload) {
            (Some(f), Some(p)) => f(ticket, p, copied),
            (_, p) => drop(p),
        }
    }

    #[inline]
    fn complete(&mut self, ticket: Ticket, copied: bool) {
        if let Some(c) = self.done.back_mut()
            && c.copied == copied
            && c.last.plus(1) == ticket
            && c.last.plus(1) != c.first
        {
            c.last = ticket;
            return;
        }
        if self.done.len() >= MAX_RANGES {
            self.done.pop_front();
        }
        self.done.push_back(Completion { first: ticket, last: ticket, copied });
    }

    #[inline]
    fn trim(&mut self) {
        while self.ids.front().is_some_and(|id| id.back) {
            self.ids.pop_front();
            self.first_id = self.first_id.wrapping_add(1);
        }
        while self.lent.front().is_some_and(|l| l.left == 0) {
            self.lent.pop_front();
            self.first_seq = self.first_seq.wrapping_add(1);
        }
    }
}

impl Drop for Window {
    /// A sender that ends hands its window on while ids are out, so this happens only when a panic
    /// has got in between.
    fn drop(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some(last) = self.lent.back_mut()
        {
            last.left -= 1;
        }
        for l in self.lent.iter_mut().filter(|l| l.left > 0) {
            std::mem::forget(l.payload.take());
        }
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("next_ticket", &self.next_ticket)
            .field("outstanding", &self.outstanding)
            .field("outstanding_bytes", &self.outstanding_bytes)
            .field("ids", &self.ids.len())
            .field("first_id", &self.first_id)
            .finish_non_exhaustive()
    }
}
