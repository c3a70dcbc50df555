//! One connection of a VM, found once, with what it uses of the VM.

use std::io;

use zerowire::ledger::DropReason;
use zerowire_vhost::ring::RingError;

use super::timers::Timers;
use super::watch::{Event, Watch};
use super::{Io, Others};
use crate::connection::{End, VsockConnection};
use crate::credit::{CreditReview, Why};
use crate::lists::Lists;
use crate::packet::{Header, Op};
use crate::protocol::{Fate, Shut};
use crate::table::SlotKey;
use crate::vm::{Identity, ring_failed};
use crate::{VsockCounters, VsockLimits, socket};

/// A connection, borrowed with the parts of its VM that it uses. Its methods return a [`Fate`],
/// which the caller hands to [`super::fate::apply`] when the borrow has ended.
pub(crate) struct Current<'a> {
    pub place: SlotKey,
    pub c: &'a mut VsockConnection,
    pub lists: &'a mut Lists,
    pub id: &'a Identity,
    pub limits: &'a VsockLimits,
    pub counters: &'a VsockCounters,
}

impl Current<'_> {
    /// Puts it into the list of those that may have something for the guest.
    #[inline]
    pub fn mark_ready(&mut self) {
        self.lists.ready.push(self.place.slot);
    }

    /// Puts it into the list of those whose credit the thread reviews once nothing has happened for
    /// a while.
    #[inline]
    pub fn mark_quiet(&mut self) {
        self.lists.quiet.push(self.place.slot);
    }

    /// Both sides agreed.
    pub fn count_opened(&mut self) {
        if !std::mem::replace(&mut self.c.counted, true) {
            self.counters.opened.add(1);
        }
    }

    /// A packet of the guest is dropped.
    pub fn dropped(&self, reason: DropReason) {
        self.counters.transmit.dropped(reason);
    }

    /// A ring of its VM broke a rule.
    #[cold]
    pub fn ring_failed(&self, error: &RingError) {
        ring_failed(self.id, self.counters, error);
    }

    /// Brings what the guest may send up to what its sibling takes.
    pub fn follow_sibling(&mut self, others: &mut Others<'_>) {
        if let End::Sibling { vm, place } = self.c.end
            && let Some(sibling) = others.connection(vm, place)
        {
            self.c.protocol.from.follow(&sibling.protocol.to);
        }
    }

    /// The header of a packet for the guest, but for its length and flags; its credit fields count
    /// as told.
    pub fn header(&mut self, op: Op, others: &mut Others<'_>) -> Header {
        self.follow_sibling(others);
        self.header_now(op)
    }

    /// As [`Self::header`], of a connection that follows its sibling.
    pub fn header_now(&mut self, op: Op) -> Header {
        let news = self.c.protocol.from.untold() > 0;
        let (buf_alloc, fwd_cnt) = self.c.protocol.tell();
        // The guest may wait for the rest, which has yet to leave the socket or the windows.
        if news && self.c.uncredited() > 0 {
            self.mark_quiet();
        }
        let key = self.c.key;
        Header {
            src_cid: key.peer_cid,
            dst_cid: self.id.cid,
            src_port: key.peer_port,
            dst_port: key.port,
            kind: self.c.kind as u16,
            op: op as u16,
            buf_alloc,
            fwd_cnt,
            ..Header::default()
        }
    }

    /// Has the guest told that it may send again, once that is news.
    pub fn tell_credit(&mut self, watch: &Watch) -> Fate {
        self.review_credit(Why::Routine, watch)
    }

    /// As [`Self::tell_credit`], for this reason.
    pub fn review_credit(&mut self, why: Why, watch: &Watch) -> Fate {
        let review = self.c.review_credit(why);
        self.credit_reviewed(review);
        self.watch_room(watch)
    }

    /// Does what is due behind a review of the guest's credit.
    #[inline]
    pub fn credit_reviewed(&mut self, review: CreditReview) {
        if review.due {
            self.c.protocol.owe_update();
            self.mark_ready();
        }
        if review.quiet {
            self.mark_quiet();
        }
    }

    /// Asks for news of room in the socket, while something waits for it, bytes or credit. If it
    /// asked all the time, each read of the host program would wake this thread.
    fn watch_room(&mut self, watch: &Watch) -> Fate {
        let End::Host(host) = &mut self.c.end else { return Fate::Stays };
        let Some(interest) = host.out.new_interest() else { return Fate::Stays };
        let event = Event::Connection { vm: self.id.index, place: self.place };
        match watch.change(&host.inlet.socket, event, interest) {
            Ok(()) => Fate::Stays,
            Err(e) => {
                tracing::error!("{}: a host program's socket can't be watched: {e}", self.id.name);
                Fate::Broken
            }
        }
    }

    /// Sends what waits for the host program, as far as its socket or its windows take it.
    pub fn flush_held(&mut self, io: &mut Io) -> Fate {
        let VsockConnection { kind, end, .. } = &mut *self.c;
        let outcome = match end {
            End::Host(host) if host.out.held.is_some() => {
                host.flush(*kind, &mut io.scratch.iov, &self.counters.transmit)
            }
            End::Mapped(mapped) if mapped.held.is_some() => {
                return if mapped.flush(*kind) { self.settle(&io.timers) } else { Fate::Stays };
            }
            _ => return Fate::Stays,
        };
        let watched = self.watch_room(&io.watch);
        let fate = match outcome {
            Ok(()) => self.settle(&io.timers),
            Err(e) => self.host_refuses(&e, &io.timers),
        };
        fate.or(watched)
    }

    /// Does what is due once all that the guest sent has reached the host program.
    pub fn settle(&mut self, timers: &Timers) -> Fate {
        self.c.settle(|| timers.now())
    }

    /// The host program takes no more: it has closed, or ended its receiving. What waits for it is
    /// lost.
    #[cold]
    pub fn host_refuses(&mut self, e: &io::Error, timers: &Timers) -> Fate {
        if e.raw_os_error() == Some(libc::EMSGSIZE) {
            tracing::warn!(
                "{}: a message is longer than the host's socket takes (net.core.wmem_max): reset",
                self.id.name
            );
            return Fate::Broken;
        }
        self.c.drop_held_for_program();
        self.c.protocol.far_ends(Shut::RECEIVE);
        self.mark_ready();
        self.settle(timers)
    }

    /// Tells a host program that its connection is there.
    pub fn welcome(&mut self) -> io::Result<()> {
        let End::Host(host) = &self.c.end else { return Ok(()) };
        let line = format!("OK {}\n", self.c.key.peer_port);
        match socket::send_bytes(&host.inlet.socket, line.as_bytes()) {
            Ok(n) if n == line.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(e) => Err(e),
        }
    }
}
