//! Frames on their way out: queued for a socket, taken by the kernel, and back.
//!
//! **Who owns what.** A chain that is lent is the kernel's until its number comes back, or the
//! socket has gone ([`Outgoing::end`]). From then on it waits in `finished`.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerowire_sys::xdp::{Descriptor, Socket, address};

use crate::port::xdp::account::Account;
use crate::port::xdp::loans::Loans;
use crate::port::xdp::{HOLD, RING_ENTRIES};

/// Sleeps while frames are under way: from the shortest, twice as long each time that nothing has
/// come back, to the longest.
pub(super) const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));

/// Calls in a row that do nothing before the rest is left to the next turn.
const IDLE_CALLS: u32 = 3;

/// When the kernel lets go of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetsGo {
    /// At any time until it says so.
    Later,
    /// It has copied a frame by the time that it has taken it from the ring. Chains come back when
    /// they were sent all the same.
    AtOnce,
    /// The same, and chains come back then.
    AtOnceAndChainsCome,
}

impl LetsGo {
    /// Another socket was bound; `at_once`: the kernel copies at once what it takes from it.
    fn bound(self, at_once: bool) -> Self {
        match self {
            _ if !at_once => Self::Later,
            Self::AtOnceAndChainsCome => self,
            Self::Later | Self::AtOnce => Self::AtOnce,
        }
    }

    /// Whether chains should come back when their frames were copied, where that is at once.
    #[inline]
    fn with_chains(self, come: bool) -> Self {
        match self {
            Self::Later => Self::Later,
            Self::AtOnce | Self::AtOnceAndChainsCome if come => Self::AtOnceAndChainsCome,
            Self::AtOnce | Self::AtOnceAndChainsCome => Self::AtOnce,
        }
    }
}

/// What is under way.
pub struct Outgoing {
    /// Frames to send, and what became of them.
    pub(in crate::port::xdp) account: Account,
    /// Loans of the socket.
    pub(in crate::port::xdp) loans: Loans,
    /// Chains that came back and go to the guest next.
    pub(in crate::port::xdp) finished: Vec<u16>,
    /// When a chain that waits for others goes to the guest without them.
    pub(in crate::port::xdp) give_at: Option<Instant>,
    lets_go: LetsGo,
    /// The interface is down: frames are dropped rather than held.
    pub(in crate::port::xdp) down: bool,
    /// Pieces were queued that the kernel has not taken.
    pub(in crate::port::xdp) unsent: bool,
    /// Since when nothing has come back, while something is under way.
    idle_since: Option<Instant>,
    nap: Duration,
}

impl Outgoing {
    /// Nothing.
    pub(super) fn new() -> Self {
        Self {
            account: Account::new(),
            loans: Loans::new(),
            finished: Vec::with_capacity(RING_ENTRIES as usize),
            give_at: None,
            lets_go: LetsGo::Later,
            down: false,
            unsent: false,
            idle_since: None,
            nap: NAPS.0,
        }
    }

    /// Another socket was bound; `at_once`: the kernel copies at once what it takes from it.
    pub(super) fn begin(&mut self, at_once: bool) {
        self.lets_go = self.lets_go.bound(at_once);
        self.down = false;
    }

    /// The socket has gone, and all loans end.
    pub(super) fn end(&mut self) {
        self.loans.end(|head| self.finished.push(head));
        self.account.lost();
        self.unsent = false;
        self.idle_since = None;
    }

    /// Whether frames are under way of which none has come back for [`HOLD`].
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since.is_some_and(|since| since.elapsed() > HOLD)
    }

    /// Whether chains should come back when the kernel has copied their frames. It matters only
    /// where the kernel copies all of them. It takes them from the ring in the order in which they
    /// were lent.
    #[inline]
    pub(in crate::port::xdp) fn end_loans_with_copy(&mut self, wanted: bool) {
        self.lets_go = self.lets_go.with_chains(wanted);
    }

    #[inline]
    fn ends_with_copy(&self) -> bool {
        self.lets_go == LetsGo::AtOnceAndChainsCome
    }

    /// Whether chains are back as soon as the kernel takes anything, so that what waits for them
    /// waits for nothing else.
    #[inline]
    pub(in crate::port::xdp) fn keeps_order(&self) -> bool {
        self.ends_with_copy() && !self.down
    }

    /// Whether lending has to stop for now: `most` chains are lent, or none has come back for
    /// [`HOLD`].
    #[inline]
    pub(in crate::port::xdp) fn holds_enough(&self, most: usize) -> bool {
        if self.loans.chains >= most {
            return true;
        }
        // Without chains that are lent, what has not come back is the kernel's own copy.
        let copied = self.ends_with_copy() && self.loans.chains == 0;
        !copied && self.is_idle()
    }

    /// How long the worker may sleep; None while nothing is under way.
    pub(super) fn nap(&mut self) -> Option<Duration> {
        if self.loans.is_empty() && !self.unsent {
            return None;
        }
        let nap = self.nap;
        self.nap = (nap * 2).min(NAPS.1);
        let give = self.give_at.map(|at| at.saturating_duration_since(Instant::now()));
        Some(give.map_or(nap, |give| give.min(nap)))
    }

    /// Queues a piece; its address carries the number of its loan.
    #[inline]
    pub(super) fn push(&mut self, socket: &mut Socket, piece: Descriptor) {
        let pushed = socket.transmit().is_some_and(|ring| ring.push(piece));
        debug_assert!(pushed, "room was asked for");
        self.unsent |= pushed;
    }

    /// Takes completions: chains go to `finished`.
    #[inline]
    pub(super) fn reap(&mut self, socket: &mut Socket) {
        let ring = socket.completion();
        while let Some(encoded) = ring.pop() {
            let (_, number) = address::decode(encoded);
            if let Some(head) = self.loans.back(number) {
                self.finished.push(head);
            }
        }
        if ring.release() > 0 {
            self.idle_since = None;
            self.nap = NAPS.0;
        }
    }

    /// Has the kernel send what was queued.
    ///
    /// # Errors
    /// The interface is gone, and the socket with it.
    pub(super) fn kick(&mut self, socket: &mut Socket) -> Result<(), Errno> {
        let ends = self.ends_with_copy();
        let zero_copy = socket.zero_copy();
        let Some(ring) = socket.transmit() else { return Ok(()) };
        ring.publish();
        let mut waiting = ring.waiting();
        let mut taken = |account: &mut Account, waiting, refused| {
            account.taken(waiting, refused, |number| {
                if ends {
                    self.finished.extend(self.loans.copied(number));
                }
            });
        };
        taken(&mut self.account, waiting, false);
        let mut idle = 0;
        while waiting > 0 && idle < IDLE_CALLS && ring_asks(socket) {
            let answer = socket.wake_transmit();
            self.account.call();
            let mut refused = false;
            match answer.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
                Ok(()) => self.down = false,
                // In copy mode one call sends a budget of frames; or the kernel has no memory for
                // now.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {}
                Err(Errno::BUSY) if zero_copy => {}
                // The interface dropped a frame, which is completed all the same.
                Err(Errno::BUSY) => refused = true,
                Err(Errno::NETDOWN) => {
                    self.down = true;
                    break;
                }
                Err(e) => return Err(e),
            }
            let now = socket.transmit().map_or(0, |ring| ring.waiting());
            idle = if now < waiting { 0 } else { idle + 1 };
            waiting = now;
            taken(&mut self.account, waiting, refused);
        }
        self.unsent = waiting > 0;
        // An interface that is down takes nothing, so frames that were taken show that it is up.
        // That holds even if no call for it succeeded: it has no carrier yet, and refuses each
        // frame. It holds, too, if no call was made here: poll sends in copy mode (net/xdp/xsk.c,
        // `xsk_poll`).
        self.down &= self.unsent;
        if !self.loans.is_empty() {
            self.idle_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }
}

fn ring_asks(socket: &mut Socket) -> bool {
    socket.transmit().is_some_and(|ring| ring.needs_wakeup())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::xdp::loans::Lent;

    /// With chains lent, each in one piece.
    fn lending(heads: std::ops::Range<u16>) -> Outgoing {
        let mut outgoing = Outgoing::new();
        for head in heads {
            assert!(outgoing.loans.next().is_some());
            outgoing.loans.lend(Lent::Chain(head), 1);
        }
        outgoing
    }

    #[test]
    fn lending_stops_when_enough_is_lent() {
        let outgoing = lending(0..4);
        assert!(outgoing.holds_enough(4) && !outgoing.holds_enough(5));
        assert!(!Outgoing::new().holds_enough(1));
    }

    #[test]
    fn the_end_of_a_socket_gives_every_chain_back() {
        let mut outgoing = lending(3..6);
        outgoing.end();
        assert_eq!(outgoing.finished, [3, 4, 5]);
        assert!(outgoing.loans.is_empty() && !outgoing.unsent && outgoing.nap().is_none());
    }

    #[test]
    fn naps_get_longer_while_nothing_comes_back() {
        assert_eq!(Outgoing::new().nap(), None);
        let mut outgoing = lending(0..1);
        let naps: Vec<_> = (0..10).filter_map(|_| outgoing.nap()).collect();
        assert_eq!(naps[..3], [1, 2, 4].map(|n| n * NAPS.0));
        assert_eq!(naps[9], NAPS.1, "and no longer than that");
        outgoing.give_at = Some(Instant::now());
        assert_eq!(outgoing.nap(), Some(Duration::ZERO), "a chain goes to the guest without the others");
    }

    #[test]
    fn chains_come_with_the_copy_only_where_it_is_made_at_once() {
        let asked = LetsGo::Later.bound(true).with_chains(true);
        assert_eq!(asked, LetsGo::AtOnceAndChainsCome);
        assert_eq!(asked.with_chains(false), LetsGo::AtOnce);
        assert_eq!(asked.bound(true), asked, "a socket in the place of another goes on as that did");
        assert_eq!(asked.bound(false).with_chains(true), LetsGo::Later);
    }
}
