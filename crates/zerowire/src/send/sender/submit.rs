//! Submitting one payload.

use super::super::auto::{Auto, Decision};
use super::super::backend::{Accepted, Submit};
use super::super::kind::SocketFamily;
use super::super::limits::{cpu_ns, locked};
use super::super::segment;
use super::super::socket::errno::{from_errno, tells_of_full_queues};
use super::super::{Payload, Refused, SendError, SendWay, Ticket};
use super::{Blocked, MAX_LENT_SEGMENTS, PartSent, READ_EVERY, Sender, is_limit};
use crate::ledger::CopyReason;
use std::io;

/// Payloads between the oldest that is out and the newest: bounds the window's memory if one stays
/// out while those behind it come back.
const MAX_SPAN: usize = 1 << 16;

impl Sender {
    #[inline]
    pub(super) fn attempt(&mut self, payload: Payload, turn: Decision) -> Result<Ticket, Refused> {
        if (self.pending.is_some() || self.late.is_some())
            && let Err(error) = self.clear_the_way()
        {
            return Err(Refused { payload, error });
        }
        let len = payload.len();
        let start = if turn.measure { cpu_ns() } else { 0 };
        let result = match turn.way {
            SendWay::Copy => self.copy(payload, turn.reason),
            SendWay::Lend => self.lend(payload),
        };
        if turn.measure
            && let (Ok((_, way)), Some(auto)) = (&result, &mut self.lending.auto)
        {
            auto.measured(len, *way, cpu_ns().saturating_sub(start));
        }
        let (ticket, _) = match result {
            Ok(taken) => taken,
            Err(refused) => {
                if self.lending.auto.is_some() && refused.error.is_would_block() {
                    self.lending.again = Some((len, turn));
                }
                return Err(refused);
            }
        };
        if self.unread >= READ_EVERY || self.awaits_answer() {
            self.read_soon();
        }
        Ok(ticket)
    }

    /// Whether the choice waits for notifications that are out.
    #[inline]
    pub(super) fn awaits_answer(&mut self) -> bool {
        self.lending.auto.as_mut().is_some_and(Auto::awaits_answer)
    }

    #[inline]
    pub(super) fn copy(
        &mut self,
        payload: Payload,
        reason: CopyReason,
    ) -> Result<(Ticket, SendWay), Refused> {
        let len = payload.len();
        if len == 0 && self.socket.stream {
            return Ok((self.window.copied(payload), SendWay::Copy));
        }
        match self.back.submit(&payload, 0, SendWay::Copy) {
            // A ring that failed: the kernel may not have read the bytes yet.
            Ok(sent) if sent.id.is_some() => Ok(self.lent(payload, sent, false)),
            Ok(sent) if sent.bytes >= len => {
                self.counters.frames.add(1);
                self.counters.system_calls.add(self.back.take_calls());
                self.counters.copied(reason, len as u64);
                Ok((self.window.copied(payload), SendWay::Copy))
            }
            Ok(sent) => Ok((self.keep_rest(payload, sent, SendWay::Copy, reason), SendWay::Copy)),
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && payload.segments().len() > 1 => {
                match payload.gather(0) {
                    Ok(bytes) => self
                        .copy(bytes.into(), CopyReason::Scattered)
                        .map_err(|refused| Refused { payload, error: refused.error }),
                    Err(cause) => Err(Refused { payload, error: SendError::System { call: "pread", cause } }),
                }
            }
            Err(e) => Err(self.refuse(payload, &e)),
        }
    }

    #[inline]
    pub(super) fn lend(&mut self, payload: Payload) -> Result<(Ticket, SendWay), Refused> {
        if payload.is_empty() {
            // There is no memory to lend, and not every socket gives an empty call a number.
            return self.copy(payload, CopyReason::Small);
        }
        if !self.has_window(payload.len()) {
            if let Err(error) = self.reap() {
                return Err(Refused { payload, error });
            }
            if !self.has_window(payload.len()) {
                if self.lending.auto.is_some() {
                    // What a slow peer holds is bounded; past the bound the socket's buffer takes a
                    // copy, if it has room.
                    return self.copy(payload, CopyReason::Held);
                }
                self.blocked = Blocked::Limit;
                let error = self.would_block();
                return Err(Refused { payload, error });
            }
        }
        if !self.socket.stream && payload.segments().len() > MAX_LENT_SEGMENTS {
            return self.lend_gathered(payload);
        }
        match self.submit_lent(&payload) {
            Ok(sent) => Ok(self.lent(payload, sent, false)),
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && payload.segments().len() > 1 => {
                self.lend_gathered(payload)
            }
            Err(e) if is_limit(&e) => self.limited(payload),
            Err(e) => Err(self.refuse(payload, &e)),
        }
    }

    /// Copies the segments of a datagram into one buffer, and lends that.
    pub(super) fn lend_gathered(&mut self, payload: Payload) -> Result<(Ticket, SendWay), Refused> {
        let gathered = match payload.gather(0) {
            Ok(bytes) => Payload::from(bytes),
            Err(cause) => {
                return Err(Refused { payload, error: SendError::System { call: "pread", cause } });
            }
        };
        match self.submit_lent(&gathered) {
            Ok(sent) => {
                self.counters.copied(CopyReason::Scattered, gathered.len() as u64);
                Ok(self.lent(gathered, sent, true))
            }
            // The gathered bytes are there already; a plain send of the segments reads the same.
            Err(e) if is_limit(&e) => self.limited(payload),
            Err(e) => Err(self.refuse(payload, &e)),
        }
    }

    /// Submits; after an error the queue is read, as the back ends ask for. If that takes something
    /// back from which a limit is counted, there is another attempt.
    #[inline]
    pub(super) fn submit_lent(&mut self, payload: &Payload) -> io::Result<Accepted> {
        if !self.back.lends_freely() {
            self.reap_or_note();
        }
        match self.back.submit(payload, 0, SendWay::Lend) {
            Ok(sent) => Ok(sent),
            Err(e) => self.submit_again(payload, e),
        }
    }

    fn submit_again(&mut self, payload: &Payload, mut e: io::Error) -> io::Result<Accepted> {
        loop {
            let before = self.window.ids_out();
            self.reap_or_note();
            if !is_limit(&e) || self.window.ids_out() >= before {
                return Err(e);
            }
            match self.back.submit(payload, 0, SendWay::Lend) {
                Ok(sent) => return Ok(sent),
                Err(again) => e = again,
            }
        }
    }

    #[inline]
    pub(super) fn lent(&mut self, payload: Payload, sent: Accepted, gathered: bool) -> (Ticket, SendWay) {
        let len = payload.len();
        match sent.id {
            Some(id) if sent.bytes >= len => {
                self.counters.frames.add(1);
                self.counters.system_calls.add(self.back.take_calls());
                self.unread += 1;
                let next = self.window.next_ticket();
                (self.window.lend(payload, id, gathered).unwrap_or(next), SendWay::Lend)
            }
            None if sent.bytes >= len => {
                self.counters.frames.add(1);
                self.counters.system_calls.add(self.back.take_calls());
                if !gathered {
                    let reason = self.loan_was_copied();
                    self.counters.copied(reason, len as u64);
                }
                (self.window.copied(payload), SendWay::Copy)
            }
            _ => (self.keep_rest(payload, sent, SendWay::Lend, CopyReason::Unsupported), SendWay::Lend),
        }
    }

    /// What was to be lent was copied: why. Perhaps nothing can be lent any more.
    #[cold]
    pub(super) fn loan_was_copied(&mut self) -> CopyReason {
        self.ask_whether_it_lends();
        self.back.copied_because()
    }

    /// The kernel refuses to take lent memory.
    pub(super) fn limited(&mut self, payload: Payload) -> Result<(Ticket, SendWay), Refused> {
        let len = payload.len();
        let out = self.window.ids_out();
        // A queue that is full refuses a copy as well. Only one that goes through tells of a limit.
        let may_be_queue = self.socket.kind == SocketFamily::Udp && tells_of_full_queues(self.back.socket());
        if self.lending.auto.is_some() || may_be_queue {
            let copied = self.copy(payload, CopyReason::Memlock)?;
            if let Some(auto) = self.lending.auto.as_mut().filter(|_| out == 0) {
                auto.refused(len);
            }
            return Ok(copied);
        }
        if out == 0 {
            let error = locked(len);
            return Err(Refused { payload, error });
        }
        self.blocked = Blocked::Limit;
        let error = self.would_block();
        Err(Refused { payload, error })
    }

    pub(super) fn refuse(&mut self, payload: Payload, e: &io::Error) -> Refused {
        self.counters.system_calls.add(self.back.take_calls());
        let error = self.error(e, payload.len());
        Refused { payload, error }
    }

    pub(super) fn error(&mut self, e: &io::Error, len: usize) -> SendError {
        let segments = e.raw_os_error().zip(self.options.segment_bytes);
        if let Some(e) =
            segments.and_then(|(errno, bytes)| segment::refusal(self.back.socket(), bytes, len, errno))
        {
            return e;
        }
        match e.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.blocked = Blocked::Room;
                self.would_block()
            }
            Some(libc::EMSGSIZE) => SendError::TooLong { len },
            Some(libc::ENOBUFS) if self.socket.kind == SocketFamily::Udp => SendError::QueueFull { len },
            // The back end's word for a ring that was closed.
            Some(libc::EBADFD) => SendError::Uring(self.back.describe()),
            Some(errno) => from_errno(errno),
            None => SendError::System { call: "send", cause: e.kind().into() },
        }
    }

    pub(super) fn would_block(&self) -> SendError {
        SendError::WouldBlock {
            outstanding: self.window.outstanding(),
            outstanding_bytes: self.window.outstanding_bytes(),
        }
    }

    pub(super) fn has_window(&self, len: usize) -> bool {
        let (n, bytes) = (self.window.outstanding(), self.window.outstanding_bytes());
        n == 0
            || (n < self.options.max_lent
                && self.window.span() < MAX_SPAN
                && bytes.saturating_add(len) <= self.options.max_lent_bytes)
    }

    /// A stream took a part.
    pub(super) fn keep_rest(
        &mut self,
        payload: Payload,
        sent: Accepted,
        way: SendWay,
        reason: CopyReason,
    ) -> Ticket {
        let ticket = self.window.open(payload);
        self.pending = Some(PartSent { sent: 0, way, reason });
        self.part_sent(sent);
        self.counters.system_calls.add(self.back.take_calls());
        ticket
    }
}
