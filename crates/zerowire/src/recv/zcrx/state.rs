//! The state machine: what a completion means. Plain code without I/O, so tests can play any
//! sequence of completions.
//!
//! A connection has at most one multishot RECV_ZC in the kernel. Each of its completions with
//! `F_MORE` names a piece of an area; the last one has none and says why it ended:
//!
//! | result | meaning | what follows |
//! | --- | --- | --- |
//! | 0 | the bytes asked for have come, or the stream has ended | the bytes that came tell which |
//! | ENOMEM | no free buffer in the area | again when buffers are back |
//! | ENOSPC | no room in the completion queue | again |
//! | ECANCELED | it was to end | again, if it may |
//! | another | the connection failed | |
//!
//! In none of these cases is a byte taken from the socket that no completion names
//! (io_uring/zcrx.c, `io_zcrx_recv_skb`).

use super::areas::{AreaCut, Areas};
use crate::recv::core::{Placed, RecvState};
use crate::recv::lease::{Filled, Pool};
use crate::recv::listen::ACCEPT;
use crate::recv::requests::Requests;
use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use zerowire_sys::uring::wide::{CQE_F_MORE, WideCqe};
use zerowire_sys::uring::zcrx::{AREA_SHIFT, Event, Rqe};

const TAG_RECV: u64 = 1 << 32;
const TAG_CANCEL: u64 = 2 << 32;
/// User data of the request on the pool's bell.
pub(super) const BELL: u64 = 3 << 32;
/// User data of the kernel's events.
pub(super) const EVENT: u64 = 4 << 32;
/// User data of the cancellation of everything.
pub(super) const CANCEL_ALL: u64 = 5 << 32;

/// User data of the receive of the connection at `place`.
pub(super) fn recv_data(place: u32) -> u64 {
    TAG_RECV | u64::from(place)
}

/// User data of the cancellation of this receive.
pub(super) fn cancel_data(place: u32) -> u64 {
    TAG_CANCEL | u64::from(place)
}

/// How far a connection's receive is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvSpan {
    /// Bytes that it receives at most; 0: no end.
    bound: u32,
    /// Bytes of it that came.
    got: u64,
}

/// A piece of an area that is lent.
#[derive(Clone, Copy, Debug, Default)]
struct AreaPiece {
    /// As the kernel named it, with the area's number.
    offset: u64,
    len: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ZcrxState {
    pub(super) requests: Requests<RecvSpan>,
    pub(super) to_cancel: VecDeque<u32>,
    /// Connections that found no buffer.
    starved: VecDeque<u32>,
    /// What is lent, by slot.
    pieces: Vec<AreaPiece>,
    /// Entries to write to the refill ring.
    pub(super) waiting: VecDeque<Rqe>,
    /// Completions that found no slot, in order.
    pending: VecDeque<WideCqe>,
    /// The bell's request is in the kernel.
    pub(super) bell_armed: bool,
    /// The bell was rung and must be hushed.
    pub(super) rung: bool,
    /// Events that have come and must be requested again.
    pub(super) fired: [bool; 2],
    /// Bytes that the kernel said it copied, less those that were lent as copied, by all who use
    /// the area. `None`: all are copied.
    owed: Option<Arc<AtomicI64>>,
    areas: Arc<Areas>,
    /// How the areas are cut that this receiver knows, in the pool's order.
    cuts: Vec<AreaCut>,
}

impl ZcrxState {
    /// For `slots` leases at a time. The first of the areas is in `pool`, which takes the others,
    /// too. With `owed` a NIC places what the kernel doesn't say it copied.
    pub(super) fn new(slots: usize, pool: &Pool, areas: Arc<Areas>, owed: Option<Arc<AtomicI64>>) -> Self {
        let mut state = Self {
            requests: Requests::default(),
            to_cancel: VecDeque::new(),
            starved: VecDeque::new(),
            pieces: vec![AreaPiece::default(); slots],
            waiting: VecDeque::with_capacity(slots),
            pending: VecDeque::new(),
            bell_armed: false,
            rung: false,
            fired: [false; 2],
            owed,
            cuts: areas.after(0).first().map(|(_, cut)| *cut).into_iter().collect(),
            areas,
        };
        state.learn(pool);
        state
    }

    /// Takes note of areas that were added, by this receiver or another one.
    pub(super) fn learn(&mut self, pool: &Pool) {
        for (area, cut) in self.areas.after(self.cuts.len()) {
            if !pool.add(area) {
                return;
            }
            self.cuts.push(cut);
        }
    }

    /// From now on for `slots` leases more, and `share` for one connection.
    pub(super) fn make_room(&mut self, core: &mut RecvState, slots: usize, share: usize) {
        let all = core.add_slots(slots, share);
        self.pieces.resize(all, AreaPiece::default());
        self.waiting.reserve(all.saturating_sub(self.waiting.len()));
    }

    /// The area that a word of the kernel is about.
    #[inline]
    fn find(&self, word: u64) -> Option<usize> {
        let token = word & AreaCut::TOKEN;
        // The kernel counts from 0 on.
        let likely = (word >> AREA_SHIFT) as usize;
        match self.cuts.get(likely) {
            Some(cut) if cut.token == token => Some(likely),
            _ => self.cuts.iter().position(|cut| cut.token == token),
        }
    }

    /// Ends receiving on `place`. False: nothing is in the kernel.
    pub(super) fn unwant(&mut self, place: u32) -> bool {
        let Some(request) = self.requests.all.get_mut(place as usize) else { return false };
        if std::mem::take(&mut request.queued) {
            self.requests.waiting.retain(|p| *p != place);
            self.starved.retain(|p| *p != place);
        }
        if request.armed && !request.cancelled {
            request.cancelled = true;
            self.to_cancel.push_back(place);
        }
        request.armed
    }

    /// Whether a request of `place` is in the kernel.
    pub(super) fn is_armed(&self, place: u32) -> bool {
        self.requests.all.get(place as usize).is_some_and(|r| r.armed)
    }

    /// Whether connections wait for buffers.
    pub(super) fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Whether completions wait for slots.
    pub(super) fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Buffers are back: connections that found none try again.
    pub(super) fn feed(&mut self) {
        self.requests.waiting.append(&mut self.starved);
    }

    /// The next connection to receive on, and how many bytes at most (0: any number). The limit and
    /// the share of the connection set the number, so one connection can't fill the area before it
    /// is paused.
    pub(super) fn next_arm(&mut self, core: &RecvState) -> Option<(u32, u32)> {
        let place = self.requests.next(core)?;
        let room = u64::from(core.holdings.room(place).max(1)) * u64::from(self.areas.buffer_bytes());
        let limit = core.connections.get(place as usize).and_then(|c| c.limit).unwrap_or(u64::MAX);
        let bound = u32::try_from(room.min(limit)).unwrap_or(u32::MAX);
        self.requests.arm(place, RecvSpan { bound, got: 0 });
        Some((place, bound))
    }

    /// A lease of `slot` has come back.
    pub(super) fn returned(&mut self, slot: u32) {
        let Some(piece) = self.pieces.get_mut(slot as usize) else { return };
        let AreaPiece { offset, len } = std::mem::take(piece);
        if len > 0 {
            self.waiting.push_back(Rqe { off: offset, len, pad: 0 });
        }
    }

    /// The kernel says that it copied `bytes` more.
    pub(super) fn copied(&mut self, bytes: u64) {
        if let Some(owed) = &self.owed {
            owed.fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
    }

    /// Takes completions, those first that found no slot before; false when slots have run out
    /// again.
    pub(super) fn take_all(
        &mut self,
        core: &mut RecvState,
        mut next: impl FnMut() -> Option<WideCqe>,
    ) -> bool {
        while let Some(cqe) = self.pending.pop_front() {
            if !self.take(core, cqe) {
                self.pending.push_front(cqe);
                return false;
            }
        }
        while let Some(cqe) = next() {
            if !self.take(core, cqe) {
                self.pending.push_back(cqe);
                return false;
            }
        }
        true
    }

    /// What one completion means. False: no slot was free for it, and nothing was done.
    fn take(&mut self, core: &mut RecvState, cqe: WideCqe) -> bool {
        let place = cqe.user_data as u32;
        if cqe.user_data & ACCEPT != 0 {
            // SAFETY: user data with this bit belongs to accepts, and the listeners know which of
            // them accept. The kernel has just made this descriptor for us.
            let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
            core.listeners.completed(place, cqe.result, cqe.flags & CQE_F_MORE != 0, own);
            return true;
        }
        match cqe.user_data & !u64::from(u32::MAX) {
            TAG_RECV => {
                if cqe.result > 0 && !self.data(core, place, &cqe) {
                    return false;
                }
                if cqe.flags & CQE_F_MORE == 0 {
                    self.ended(core, place, cqe.result);
                }
            }
            // The kernel didn't find it, or it was just then at work. If it must still end, cancel
            // it again.
            TAG_CANCEL if cqe.result < 0 => {
                if let Some(request) = self.requests.armed(place) {
                    request.cancelled = false;
                    if !core.may_receive(place) {
                        self.unwant(place);
                    }
                }
            }
            BELL => (self.bell_armed, self.rung) = (false, true),
            EVENT => {
                core.events.notices += 1;
                if let Some(event) = Event::of(cqe.result) {
                    self.fired[event as usize] = true;
                    core.events.out_of_buffers += u64::from(event == Event::OutOfBuffers);
                }
            }
            _ => {}
        }
        true
    }

    /// A piece of an area came.
    fn data(&mut self, core: &mut RecvState, place: u32, cqe: &WideCqe) -> bool {
        let len = cqe.result.unsigned_abs();
        let offset = cqe.extra & !AreaCut::TOKEN;
        let area = self.find(cqe.extra).or_else(|| {
            self.learn(&core.pool);
            self.find(cqe.extra)
        });
        let area = area.filter(|a| offset + u64::from(len) <= self.cuts[*a].area_bytes as u64);
        let request = self.requests.armed(place);
        let (Some(request), Some(area)) = (request, area) else {
            // The kernel names no such thing; its memory stays out of use rather than in two hands.
            core.failed(place, libc::EIO);
            self.unwant(place);
            return true;
        };
        let Some(slot) = core.holdings.take() else { return false };
        let span = &mut request.note;
        span.got += u64::from(len);
        let is_bound = span.bound != 0 && span.got >= span.bound.into();
        if let Some(piece) = self.pieces.get_mut(slot as usize) {
            *piece = AreaPiece { offset: cqe.extra, len };
        }
        let placed = match &self.owed {
            Some(owed) if owed.load(Ordering::Relaxed) <= 0 => Placed::ByNic,
            Some(owed) => {
                owed.fetch_sub(len.into(), Ordering::Relaxed);
                Placed::ByKernel
            }
            None => Placed::ByKernel,
        };
        // SAFETY: the completion named these bytes, which the kernel counts as in use until an
        // entry of the refill ring gives them back. The entry is made of the slot's piece when the
        // slot comes back.
        let filled = unsafe { Filled::new(area, offset as usize, len as usize, slot) };
        core.deliver(place, filled, placed);
        // It ends by itself once its bytes have come.
        if !is_bound && !core.may_receive(place) {
            self.unwant(place);
        }
        true
    }

    /// A request has ended.
    fn ended(&mut self, core: &mut RecvState, place: u32, result: i32) {
        let Some(RecvSpan { bound, got }) = self.requests.end(place) else { return };
        match result.wrapping_neg() {
            0 if bound == 0 || got < bound.into() => {
                if !core.nothing(place) {
                    return;
                }
            }
            libc::ENOMEM => {
                core.events.out_of_buffers += 1;
                if core.may_receive(place) {
                    self.requests.all[place as usize].queued = true;
                    self.starved.push_back(place);
                }
                return;
            }
            libc::ENOSPC => core.events.overflows += 1,
            e if e <= 0 || matches!(e, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            e => {
                if !core.failed(place, e) {
                    return;
                }
            }
        }
        if core.may_receive(place) {
            self.requests.queue(place);
        }
    }

    /// While everything is cancelled: counts requests that end, and gives back what comes.
    pub(super) fn discard(&mut self, cqe: WideCqe) {
        let tag = cqe.user_data & !u64::from(u32::MAX);
        if tag == TAG_RECV {
            if cqe.flags & CQE_F_MORE == 0 {
                self.requests.end(cqe.user_data as u32);
            }
            if let Ok(len) = u32::try_from(cqe.result)
                && len > 0
            {
                self.waiting.push_back(Rqe { off: cqe.extra, len, pad: 0 });
            }
        }
        if cqe.user_data == BELL {
            self.bell_armed = false;
        }
    }

    /// All that the kernel counts as in use, in the form in which it is given back. The first list
    /// has what is lent, the second what nobody has seen or has any more. Nothing is left here.
    pub(super) fn leave(&mut self) -> (Vec<Rqe>, Vec<Rqe>) {
        while let Some(cqe) = self.pending.pop_front() {
            self.discard(cqe);
        }
        let pieces = self.pieces.iter_mut().map(std::mem::take).filter(|p| p.len > 0);
        let lent = pieces.map(|AreaPiece { offset, len }| Rqe { off: offset, len, pad: 0 }).collect();
        (lent, self.waiting.drain(..).collect())
    }
}

#[cfg(test)]
mod tests;
