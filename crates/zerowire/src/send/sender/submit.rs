//! Submits one payload, and the rest of one that a stream took in part. Waits for what is out.

use super::super::auto::Decision;
use super::super::backend::Accepted;
use super::super::kind::SocketFamily;
use super::super::limits::{cpu_ns, locked};
use super::super::segment;
use super::super::socket::connection::ended_early;
use super::super::socket::errno::{from_errno, tells_of_full_queues};
use super::super::{Payload, Refused, SendError, SendWay, Ticket, Window};
use super::{Blocked, MAX_LENT_SEGMENTS, PartSent, READ_EVERY, Sender};
use crate::ledger::{CopyReason, DropReason};
use std::io;
use std::time::{Duration, Instant};

/// Payloads between the oldest that is out and the newest: bounds the window's memory if one stays
/// out while those behind it come back.
const MAX_SPAN: usize = 1 << 16;

impl Sender {
    #[inline]
    pub(super) fn attempt(&mut self, payload: Payload, turn: Decision) -> Result<Ticket, Refused> {
        if (self.pending.is_some() || self.loans.late.is_some())
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
            && let (Ok((_, way)), Some(auto)) = (&result, &mut self.loans.lending.auto)
        {
            auto.measured(len, *way, cpu_ns().saturating_sub(start));
        }
        let (ticket, _) = match result {
            Ok(taken) => taken,
            Err(refused) => {
                if refused.error.is_would_block() {
                    self.loans.lending.keep_turn(len, turn);
                }
                return Err(refused);
            }
        };
        if self.loans.unread >= READ_EVERY || self.loans.lending.awaits_answer() {
            self.loans.read_soon();
        }
        Ok(ticket)
    }

    #[inline]
    pub(super) fn copy(
        &mut self,
        payload: Payload,
        reason: CopyReason,
    ) -> Result<(Ticket, SendWay), Refused> {
        let len = payload.len();
        if len == 0 && self.socket.stream {
            return Ok((self.loans.window.copied(payload), SendWay::Copy));
        }
        match self.submit_copy(&payload) {
            // A ring that failed: the kernel may not have read the bytes yet.
            Ok(sent) if sent.id.is_some() => Ok(self.lent(payload, sent, false)),
            Ok(sent) if sent.bytes >= len => {
                self.loans.count_frame();
                self.loans.counters.copied(reason, len as u64);
                Ok((self.loans.window.copied(payload), SendWay::Copy))
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
    fn submit_copy(&mut self, payload: &Payload) -> io::Result<Accepted> {
        match self.loans.back.submit(payload, 0, SendWay::Copy) {
            Err(e) if self.may_be_of_an_earlier(&e) => {
                let sent = self.loans.back.submit(payload, 0, SendWay::Copy)?;
                self.count_earlier();
                Ok(sent)
            }
            Err(e) => {
                self.loans.read_behind_refusal(SendWay::Copy);
                Err(e)
            }
            sent => sent,
        }
    }

    /// Whether an error says that a datagram is too long, which may be an earlier one: the path's
    /// MTU fell, and an ICMP answer came. If the same datagram goes through now, it was.
    pub(super) fn may_be_of_an_earlier(&self, e: &io::Error) -> bool {
        e.raw_os_error() == Some(libc::EMSGSIZE) && self.socket.kind == SocketFamily::Udp
    }

    /// Counts an earlier datagram that the path did not take.
    #[cold]
    pub(super) fn count_earlier(&self) {
        self.loans.counters.dropped(DropReason::TooLong);
    }

    #[inline]
    pub(super) fn lend(&mut self, payload: Payload) -> Result<(Ticket, SendWay), Refused> {
        if payload.is_empty() {
            // An empty payload has no memory to lend, and not every socket gives an empty call a
            // number.
            return self.copy(payload, CopyReason::Small);
        }
        if !self.has_window(payload.len()) {
            if let Err(error) = self.loans.reap() {
                return Err(Refused { payload, error });
            }
            if !self.has_window(payload.len()) {
                if self.loans.lending.auto.is_some() {
                    // What a slow peer holds is bounded; past the bound the socket's buffer takes a
                    // copy, if it has room.
                    return self.copy(payload, CopyReason::Held);
                }
                self.blocked = Blocked::Limit;
                let error = self.loans.would_block();
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
                self.loans.counters.copied(CopyReason::Scattered, gathered.len() as u64);
                Ok(self.lent(gathered, sent, true))
            }
            // The gathered bytes are there already; a plain send of the segments reads the same.
            Err(e) if is_limit(&e) => self.limited(payload),
            Err(e) => Err(self.refuse(payload, &e)),
        }
    }

    /// Submits; after an error the queue is read, as the back ends ask for. If that takes something
    /// back from which a limit is counted, there is another attempt. So there is after an error
    /// that may be about an earlier datagram.
    #[inline]
    pub(super) fn submit_lent(&mut self, payload: &Payload) -> io::Result<Accepted> {
        if !self.loans.back.lends_freely() {
            self.loans.reap_or_note();
        }
        match self.loans.back.submit(payload, 0, SendWay::Lend) {
            Ok(sent) => Ok(sent),
            Err(e) => self.submit_again(payload, e),
        }
    }

    fn submit_again(&mut self, payload: &Payload, mut e: io::Error) -> io::Result<Accepted> {
        let is_doubtful = self.may_be_of_an_earlier(&e);
        let mut is_first = true;
        loop {
            let before = self.loans.window.ids_out();
            self.loans.reap_or_note();
            let is_relieved = is_limit(&e) && self.loans.window.ids_out() < before;
            let may_help = is_relieved || is_doubtful && is_first;
            if !may_help {
                return Err(e);
            }
            is_first = false;
            match self.loans.back.submit(payload, 0, SendWay::Lend) {
                Ok(sent) => {
                    if is_doubtful {
                        self.count_earlier();
                    }
                    return Ok(sent);
                }
                Err(again) => e = again,
            }
        }
    }

    #[inline]
    pub(super) fn lent(&mut self, payload: Payload, sent: Accepted, gathered: bool) -> (Ticket, SendWay) {
        let len = payload.len();
        match sent.id {
            Some(id) if sent.bytes >= len => {
                self.loans.count_frame();
                self.loans.unread += 1;
                let next = self.loans.window.next_ticket();
                (self.loans.window.lend(payload, id, gathered).unwrap_or(next), SendWay::Lend)
            }
            None if sent.bytes >= len => {
                self.loans.count_frame();
                if !gathered {
                    let reason = self.loans.loan_was_copied();
                    self.loans.counters.copied(reason, len as u64);
                }
                (self.loans.window.copied(payload), SendWay::Copy)
            }
            _ => (self.keep_rest(payload, sent, SendWay::Lend, CopyReason::Unsupported), SendWay::Lend),
        }
    }

    /// The kernel refuses to take lent memory.
    pub(super) fn limited(&mut self, payload: Payload) -> Result<(Ticket, SendWay), Refused> {
        let len = payload.len();
        let out = self.loans.window.ids_out();
        // A queue that is full refuses a copy as well. Only one that goes through tells of a limit.
        let may_be_queue =
            self.socket.kind == SocketFamily::Udp && tells_of_full_queues(self.loans.back.socket());
        if self.loans.lending.auto.is_some() || may_be_queue {
            let copied = self.copy(payload, CopyReason::Memlock)?;
            if let Some(auto) = self.loans.lending.auto.as_mut().filter(|_| out == 0) {
                auto.refused(len);
            }
            return Ok(copied);
        }
        if out == 0 {
            let error = locked(len);
            return Err(Refused { payload, error });
        }
        self.blocked = Blocked::Limit;
        let error = self.loans.would_block();
        Err(Refused { payload, error })
    }

    pub(super) fn refuse(&mut self, payload: Payload, e: &io::Error) -> Refused {
        self.loans.count_calls();
        let error = self.error(e, payload.len());
        Refused { payload, error }
    }

    pub(super) fn error(&mut self, e: &io::Error, len: usize) -> SendError {
        let segments = e.raw_os_error().zip(self.options.segment_bytes);
        if let Some(e) =
            segments.and_then(|(errno, bytes)| segment::refusal(self.loans.back.socket(), bytes, len, errno))
        {
            return e;
        }
        match e.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.blocked = Blocked::Room;
                self.loans.would_block()
            }
            Some(libc::EMSGSIZE) => SendError::TooLong { len },
            Some(libc::ENOBUFS) if self.socket.kind == SocketFamily::Udp => SendError::QueueFull { len },
            // The back end's word for a ring that was closed.
            Some(libc::EBADFD) => SendError::Uring(self.loans.back.describe()),
            Some(errno) => {
                let error = from_errno(errno);
                self.told_of_end |= matches!(error, SendError::Disconnected(_));
                error
            }
            None => SendError::System { call: "send", cause: e.kind().into() },
        }
    }

    pub(super) fn has_window(&self, len: usize) -> bool {
        let (n, bytes) = (self.loans.window.outstanding(), self.loans.window.outstanding_bytes());
        n == 0
            || (n < self.options.max_lent
                && self.loans.window.span() < MAX_SPAN
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
        let ticket = self.loans.window.open(payload);
        self.pending = Some(PartSent { sent: 0, way, reason });
        self.blocked = Blocked::Room;
        self.part_sent(sent);
        self.loans.count_calls();
        ticket
    }

    /// Books a part of the open payload.
    fn part_sent(&mut self, sent: Accepted) {
        let Some(p) = &mut self.pending else { return };
        p.sent += sent.bytes;
        match sent.id {
            Some(id) => {
                self.loans.unread += 1;
                // An id out of order can't happen with one handle of the socket; the memory is then
                // kept until all is.
                let _ = self.loans.window.add_id(id);
            }
            None => {
                let reason = if p.way == SendWay::Lend { self.loans.back.copied_because() } else { p.reason };
                self.loans.window.add_copied(sent.bytes);
                self.loans.counters.copied(reason, sent.bytes as u64);
            }
        }
    }

    /// Sends the rest of a payload that was begun. `Ok(false)`: the socket has no room yet.
    pub(super) fn flush(&mut self) -> Result<bool, SendError> {
        while let Some(p) = self.pending {
            if p.way == SendWay::Lend && !self.loans.back.lends_freely() {
                self.loans.reap_or_note();
            }
            let Some(payload) = self.loans.window.open_payload() else {
                self.pending = None;
                break;
            };
            let len = payload.len();
            if p.sent >= len {
                self.pending = None;
                self.loans.counters.frames.add(1);
                self.loans.window.close_open();
                self.loans.book();
                break;
            }
            let result = self.loans.back.submit(payload, p.sent, p.way);
            self.loans.count_calls();
            match result {
                Ok(sent) => self.part_sent(sent),
                Err(e) if p.way == SendWay::Lend && is_limit(&e) => {
                    let before = self.loans.window.ids_out();
                    self.loans.reap_or_note();
                    if self.loans.window.ids_out() < before {
                        continue;
                    }
                    if before > 0 {
                        self.blocked = Blocked::Limit;
                        return Ok(false);
                    }
                    // A stream can't stop in the middle of a payload: the rest is copied, whatever
                    // the mode.
                    self.pending = Some(PartSent { way: SendWay::Copy, reason: CopyReason::Memlock, ..p });
                }
                Err(e) => {
                    self.loans.read_behind_refusal(p.way);
                    if e.raw_os_error() == Some(libc::EAGAIN) {
                        self.blocked = Blocked::Room;
                        return Ok(false);
                    }
                    self.pending = None;
                    self.loans.window.cut_open(p.sent);
                    self.loans.book();
                    return Err(self.error(&e, len));
                }
            }
        }
        Ok(true)
    }

    /// Before a new payload: returns errors about earlier ones, and sends the rest of one that was
    /// begun.
    fn clear_the_way(&mut self) -> Result<(), SendError> {
        if let Some(e) = self.loans.late.take() {
            return Err(e);
        }
        if self.flush()? { Ok(()) } else { Err(self.loans.would_block()) }
    }

    #[cold]
    pub(super) fn send_waiting(&mut self, mut payload: Payload, turn: Decision) -> Result<Ticket, SendError> {
        let start = Instant::now();
        loop {
            self.loans.pause(start, self.options.timeout, self.blocked == Blocked::Room)?;
            self.progress()?;
            match self.attempt(payload, turn) {
                Ok(ticket) => {
                    self.loans.lending.forget_turn();
                    return Ok(ticket);
                }
                Err(Refused { payload: p, error: SendError::WouldBlock { .. } }) => payload = p,
                Err(refused) => return Err(refused.error),
            }
        }
    }

    /// Waits for the payload that was sent just now, as `Notifications::EachOne` asks for.
    pub(super) fn wait_for(&mut self, ticket: Ticket) {
        match self.wait_until(self.options.timeout, |w| w.is_done(ticket) != Some(false)) {
            // It was sent, and comes back later.
            Ok(()) | Err(SendError::TimedOut { .. }) => {}
            // This payload was taken all the same: the next call tells.
            Err(e) => {
                self.loans.late.get_or_insert(e);
            }
        }
    }

    /// Waits until `done` says so of the window.
    pub(super) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Window) -> bool,
    ) -> Result<(), SendError> {
        // Mostly there is nothing to wait for, and the clock is not asked.
        let mut start = None;
        while !done(&self.loans.window) {
            self.progress()?;
            if done(&self.loans.window) {
                break;
            }
            let start = *start.get_or_insert_with(Instant::now);
            let room = self.pending.is_some() && self.blocked == Blocked::Room;
            self.loans.pause(start, timeout, room)?;
        }
        Ok(())
    }

    /// Sends what waits, and reads the notifications that are there.
    pub(super) fn progress(&mut self) -> Result<(), SendError> {
        if self.pending.is_some() {
            self.flush()?;
        }
        self.loans.update()
    }

    /// Fails, once, if the connection ended before the peer had acknowledged everything: then
    /// memory is back whose bytes may not have arrived.
    pub(super) fn check_acknowledged(&mut self) -> Result<(), SendError> {
        let is_lost = !self.told_of_end
            && ended_early(self.loans.back.socket(), self.socket)
                .map_err(SendError::system("getsockopt(TCP_INFO)"))?;
        if is_lost {
            return Err(self.error(&io::Error::from_raw_os_error(libc::EPIPE), 0));
        }
        Ok(())
    }

    /// Returns an error that the socket has and that no call has returned.
    pub(super) fn look_for_error(&mut self) -> Result<(), SendError> {
        let Some(e) = self.loans.socket_error(self.socket)? else { return Ok(()) };
        if self.may_be_of_an_earlier(&e) {
            self.count_earlier();
            return Ok(());
        }
        let is_end = e.raw_os_error() == Some(libc::EPIPE);
        if is_end && self.told_of_end { Ok(()) } else { Err(self.error(&e, 0)) }
    }

    /// Waits for everything, also behind errors; tells the first of them.
    pub(super) fn drain(&mut self, timeout: Duration) -> Result<(), SendError> {
        let start = Instant::now();
        let mut first = None;
        loop {
            match self.wait_all(timeout.saturating_sub(start.elapsed())) {
                Ok(()) | Err(SendError::TimedOut { .. }) => break,
                Err(e) => {
                    first.get_or_insert(e);
                    // One that comes again and again must not keep a processor busy.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        first.or(self.loans.late.take()).map_or(Ok(()), Err)
    }

    /// As `drain`; what was lent by senders before on the socket is waited for, too. `Ok`: the
    /// kernel holds nothing.
    pub(super) fn drain_all(&mut self, timeout: Duration) -> Result<(), SendError> {
        let start = Instant::now();
        self.drain(timeout)?;
        while self.loans.window.outstanding() > 0 || self.loans.is_lent() {
            self.loans.pause(start, Some(timeout), false)?;
            self.progress()?;
        }
        self.check_acknowledged()
    }
}

/// ENOBUFS: RLIMIT_MEMLOCK or optmem_max. ENOMEM: io_uring's word for the same.
fn is_limit(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
