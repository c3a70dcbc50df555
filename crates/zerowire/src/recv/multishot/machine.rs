//! The state machine: what a completion means. Plain code without I/O, so tests can play any
//! sequence of completions.
//!
//! Connections whose request must start wait in the order of their ends. So one that empties the
//! buffers comes after those that found none.

use super::posted::Posted;
use crate::recv::core::{Placed, RecvState};
use crate::recv::lease::Filled;
use crate::recv::listen::{ACCEPT, ListenStep};
use crate::recv::requests::Requests;
use std::os::fd::{FromRawFd, OwnedFd};
use zerowire_sys::uring::ring::Cqe;

/// `IORING_CQE_F_BUFFER`: a provided buffer was used; its number is in the upper half of the flags.
const F_BUFFER: u32 = 1;
/// `IORING_CQE_F_MORE`: the request goes on.
const F_MORE: u32 = 1 << 1;
/// User data of the request on the pool's bell.
pub(super) const BELL: u64 = u64::MAX;
/// User data of the cancellation of everything.
pub(super) const CANCEL_ALL: u64 = u64::MAX - 1;
/// This bit in the user data: the cancellation of a connection's request or, with [`ACCEPT`], of an
/// accept.
pub(super) const CANCEL: u64 = 1 << 62;
/// The serial number of a request lies between these bits and its place.
const SERIALS: u32 = (1 << 30) - 1;
/// Buffers that a busy connection takes at a time, about.
pub(super) const BUSY_BUFFERS: usize = 4;
/// Turns between two checks whether fewer buffers would do.
const TURNS: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct ReceiveMachine {
    /// The note: its serial number.
    pub(super) requests: Requests<u32>,
    /// Connections whose request must be cancelled since they are paused.
    pub(super) to_cancel: Vec<u32>,
    pub(super) posted: Posted,
    /// Buffers to post, for now.
    pub(super) depth: usize,
    /// The fewest and the most.
    least_depth: usize,
    pub(super) max_depth: usize,
    pub(super) bell_armed: bool,
    /// Bytes that came since this was last set.
    pub(super) came: usize,
    /// Requests that found no buffer since requests were last started. Each is of another
    /// connection.
    pub(super) starved: usize,
    /// Connections that received or starved in this turn, and the one that did so last. Only
    /// changes from one to another count, so one connection may count more than once.
    served: usize,
    last: Option<u32>,
    /// The most of these in a turn since the last check whether fewer buffers would do, and the
    /// turns since then.
    peak: usize,
    turns: u32,
}

impl ReceiveMachine {
    /// For `slots` buffers, of which `depth` are posted at first and `max_depth` at most.
    pub(super) fn new(slots: usize, depth: usize, max_depth: usize) -> Self {
        let max_depth = max_depth.clamp(1, slots.max(1));
        let depth = depth.clamp(1, max_depth);
        Self {
            requests: Requests::default(),
            to_cancel: Vec::new(),
            posted: Posted::new(slots, max_depth.next_power_of_two()),
            depth,
            least_depth: depth,
            max_depth,
            bell_armed: false,
            came: 0,
            starved: 0,
            served: 0,
            last: None,
            peak: 0,
            turns: 0,
        }
    }

    /// A turn begins. Buffers are used in the order of their posting, so if there are more than
    /// needed, each is cold when its turn comes. From time to time their number is halved, if half
    /// of it is still a few for each connection. Those that are posted stay; fewer are posted from
    /// then on.
    pub(super) fn turn(&mut self) {
        self.peak = self.peak.max(self.served);
        (self.served, self.last) = (0, None);
        self.turns += 1;
        if self.turns < TURNS {
            return;
        }
        if self.peak.saturating_mul(BUSY_BUFFERS) <= self.depth / 2 {
            self.depth = (self.depth / 2).max(self.least_depth);
        }
        (self.peak, self.turns) = (0, 0);
    }

    /// A request that found no buffer starts again at the price of an entry, and loses nothing. So
    /// a single connection gets no more buffers. Several share what is posted, and each needs some.
    fn starve(&mut self) {
        self.starved += 1;
        if self.starved > 1 {
            let wanted = self.starved.saturating_mul(BUSY_BUFFERS).next_power_of_two();
            self.depth = self.depth.max(wanted).min(self.max_depth);
        }
    }

    /// The user data for a request of `place` that is being started.
    pub(super) fn arm(&mut self, place: u32) -> Option<u64> {
        let serial = self.requests.all.get(place as usize)?.note.wrapping_add(1) & SERIALS;
        self.requests.arm(place, serial);
        self.user_data(place)
    }

    /// The user data of the request of `place`.
    pub(super) fn user_data(&self, place: u32) -> Option<u64> {
        let serial = self.requests.all.get(place as usize)?.note;
        Some(u64::from(serial) << 32 | u64::from(place))
    }

    /// Takes one completion in. `len_at`: the length of the ring's entry at a position.
    pub(super) fn complete(&mut self, core: &mut RecvState, cqe: Cqe, len_at: impl Fn(u16) -> u32) {
        if self.is_no_receive(core, cqe) {
            return;
        }
        let place = cqe.user_data as u32;
        let is_ours = self.user_data(place) == Some(cqe.user_data);
        let more = cqe.flags & F_MORE != 0;
        if is_ours && self.last != Some(place) {
            self.last = Some(place);
            self.served += 1;
        }
        if cqe.flags & F_BUFFER != 0 {
            let (first, bytes) = ((cqe.flags >> 16) as u16, cqe.result.max(0) as usize);
            self.deliver(core, is_ours.then_some(place), (first, bytes), len_at);
        }
        if !is_ours {
            return;
        }
        if !more {
            self.requests.end(place);
        }
        let goes_on = match cqe.result {
            1.. => true,
            0 => core.nothing(place),
            r if r == -libc::ENOBUFS => {
                core.events.out_of_buffers += 1;
                self.starve();
                true
            }
            r if [-libc::ECANCELED, -libc::EINTR, -libc::EAGAIN, -libc::ENOMEM].contains(&r) => true,
            errno => core.failed(place, -errno),
        };
        if !goes_on {
            return;
        }
        let wanted = core.may_receive(place);
        if !more && wanted {
            self.requests.queue(place);
        } else if more && !wanted {
            self.to_cancel.push(place);
        }
    }

    /// Takes a completion in that is of no receive: of the bell, a cancellation, an accept.
    #[inline]
    fn is_no_receive(&mut self, core: &mut RecvState, cqe: Cqe) -> bool {
        match cqe.user_data {
            BELL => {
                self.bell_armed = false;
                core.pool.hush();
            }
            CANCEL_ALL => {}
            cancel if cancel & CANCEL != 0 => self.cancelled(core, cancel, cqe.result),
            accept if accept & ACCEPT != 0 => {
                // SAFETY: user data with this bit belongs to accepts, and the listeners know which
                // of them accept. The kernel has just made this descriptor for us.
                let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
                core.listeners.completed(accept as u32, cqe.result, cqe.flags & F_MORE != 0, own);
            }
            _ => return false,
        }
        true
    }

    /// The buffers that a completion used, from entry `first` on: delivered to `place`, or posted
    /// again without one.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        core: &mut RecvState,
        place: Option<u32>,
        (first, bytes): (u16, usize),
        len_at: impl Fn(u16) -> u32,
    ) {
        let buffer_bytes = core.buffer_bytes;
        self.came = self.came.saturating_add(bytes);
        self.posted.used(first, bytes, buffer_bytes, len_at, |slot, len| match place {
            Some(place) if len > 0 => {
                // SAFETY: the completion says that the kernel has used the buffer and let go of it.
                // The book refuses a slot that the kernel did not have.
                let filled = unsafe { Filled::buffer(slot, len, buffer_bytes) };
                core.deliver(place, filled, Placed::ByKernel);
            }
            _ => core.holdings.untake(slot),
        });
    }

    /// The answer to a cancellation. The kernel doesn't find a request that is just at work, and
    /// may put it back. If it is still there and unwanted, this cancels it again.
    fn cancelled(&mut self, core: &mut RecvState, user_data: u64, result: i32) {
        if result >= 0 {
            return;
        }
        let place = user_data as u32;
        if user_data & ACCEPT != 0 {
            core.listeners.undo(ListenStep::Cancel(place));
        } else if let Some(request) = self.requests.armed(place) {
            request.cancelled = false;
            if !core.may_receive(place) {
                self.to_cancel.push(place);
            }
        }
    }
}

#[cfg(test)]
mod tests;
