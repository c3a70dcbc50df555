//! What goes on between submissions: the rest of a payload, notifications, waiting, the end.

use super::super::auto::{Auto, Decision};
use super::super::backend::{Accepted, AnyBackend, Submit};
use super::super::close::Closed;
use super::super::limits::cpu_ns;
use super::super::orphans::{Orphan, adopt, orphans};
use super::super::window::LoanTotals;
use super::super::{Payload, Refused, SendError, SendWay, Ticket, Window};
use super::{Blocked, LOOK_EVERY, PartSent, Sender, is_limit};
use crate::ledger::CopyReason;
use std::time::{Duration, Instant};

/// How long it is slept at a time where nothing tells of a change.
const OTHERS_PAUSE: Duration = Duration::from_millis(1);

impl Sender {
    /// Books a part of the open payload.
    pub(super) fn part_sent(&mut self, sent: Accepted) {
        let Some(p) = &mut self.pending else { return };
        p.sent += sent.bytes;
        match sent.id {
            Some(id) => {
                self.unread += 1;
                // An id out of order can't happen with one handle of the socket; the memory is then
                // kept until all is.
                let _ = self.window.add_id(id);
            }
            None => {
                let reason = if p.way == SendWay::Lend { self.back.copied_because() } else { p.reason };
                self.window.add_copied(sent.bytes);
                self.counters.copied(reason, sent.bytes as u64);
            }
        }
    }

    /// Sends the rest of a payload that was begun. `Ok(false)`: there is no room yet.
    pub(super) fn flush(&mut self) -> Result<bool, SendError> {
        while let Some(p) = self.pending {
            if p.way == SendWay::Lend && !self.back.lends_freely() {
                self.reap_or_note();
            }
            let Some(payload) = self.window.open_payload() else {
                self.pending = None;
                break;
            };
            let len = payload.len();
            if p.sent >= len {
                self.pending = None;
                self.counters.frames.add(1);
                self.window.close_open();
                self.book();
                break;
            }
            let result = self.back.submit(payload, p.sent, p.way);
            self.counters.system_calls.add(self.back.take_calls());
            match result {
                Ok(sent) => self.part_sent(sent),
                Err(e) if p.way == SendWay::Lend && is_limit(&e) => {
                    let before = self.window.ids_out();
                    self.reap_or_note();
                    if self.window.ids_out() < before {
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
                    if p.way == SendWay::Lend {
                        self.reap_or_note();
                    }
                    if e.raw_os_error() == Some(libc::EAGAIN) {
                        self.blocked = Blocked::Room;
                        return Ok(false);
                    }
                    self.pending = None;
                    self.window.cut_open(p.sent);
                    self.book();
                    return Err(self.error(&e, len));
                }
            }
        }
        Ok(true)
    }

    /// Before a new payload: errors about earlier ones are told, and the rest of one that was begun
    /// goes first.
    pub(super) fn clear_the_way(&mut self) -> Result<(), SendError> {
        if let Some(e) = self.late.take() {
            return Err(e);
        }
        if self.flush()? { Ok(()) } else { Err(self.would_block()) }
    }

    /// Reads notifications in the middle of sending: an error is told later, since this payload was
    /// sent.
    pub(super) fn read_soon(&mut self) {
        let measure = self.lending.auto.as_ref().is_some_and(Auto::wants_notification_cost);
        let start = if measure { cpu_ns() } else { 0 };
        let before = self.came_back;
        self.reap_or_note();
        if measure && let Some(auto) = &mut self.lending.auto {
            auto.notifications_cost(self.came_back - before, cpu_ns().saturating_sub(start));
        }
    }

    pub(super) fn reap_or_note(&mut self) {
        if let Err(e) = self.reap() {
            self.late.get_or_insert(e);
        }
    }

    #[inline]
    pub(super) fn reap(&mut self) -> Result<(), SendError> {
        self.unread = 0;
        let result = self.back.reap(&mut self.window);
        self.book();
        if result.is_err() {
            self.ask_whether_it_lends();
        }
        result
    }

    pub(super) fn ask_whether_it_lends(&mut self) {
        self.lending.cannot_lend = self.back.lends().err();
        if self.lending.cannot_lend.is_some() {
            self.lending.auto = None;
        }
    }

    /// Enters what came back into the ledger, and tells the policy.
    #[inline]
    pub(super) fn book(&mut self) {
        let report = self.window.take_report();
        if report.payloads == 0 {
            return;
        }
        self.count(&report);
        if let Some(auto) = &mut self.lending.auto {
            self.window.take_sizes(|len, copied| auto.notified(len, copied));
        }
    }

    fn count(&mut self, report: &LoanTotals) {
        self.came_back += report.payloads;
        self.counters.zero_copied_frames.add(report.zero_copied as u64);
        self.counters.zero_copied_bytes.add(report.zero_copied_bytes);
        if report.kernel_copied_bytes > 0 {
            self.counters.copied(CopyReason::Kernel, report.kernel_copied_bytes);
        }
    }

    /// Looks from time to time whether notifications were lost.
    fn look(&mut self) -> Result<(), SendError> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.reap()?;
            self.back.recover(&mut self.window).map_err(SendError::system("getsockopt(SO_MEMINFO)"))?;
            self.book();
        }
        Ok(())
    }

    /// Whether the kernel holds memory of this sender, or of one before it on the socket.
    fn is_lent(&self) -> bool {
        self.window.ids_out() > 0 || self.back.elders_hold().0 > 0
    }

    pub(super) fn progress(&mut self) -> Result<(), SendError> {
        if self.pending.is_some() {
            self.flush()?;
        }
        if self.is_lent() {
            self.reap()?;
            if self.is_lent() {
                self.look()?;
            }
        }
        self.late.take().map_or(Ok(()), Err)
    }

    pub(super) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Window) -> bool,
    ) -> Result<(), SendError> {
        // Mostly there is nothing to wait for, and the clock is not asked.
        let mut start = None;
        while !done(&self.window) {
            self.progress()?;
            if done(&self.window) {
                break;
            }
            let start = *start.get_or_insert_with(Instant::now);
            let room = self.pending.is_some() && self.blocked == Blocked::Room;
            self.pause(start, timeout, room)?;
        }
        Ok(())
    }

    /// Waits for a change. An error when the time is over.
    pub(super) fn pause(
        &mut self,
        start: Instant,
        timeout: Option<Duration>,
        room: bool,
    ) -> Result<(), SendError> {
        let waited = start.elapsed();
        let left = timeout.map_or(LOOK_EVERY, |t| t.saturating_sub(waited));
        if left.is_zero() {
            return Err(SendError::TimedOut {
                waited,
                outstanding: self.window.outstanding(),
                outstanding_bytes: self.window.outstanding_bytes(),
            });
        }
        self.back.wait(room, left.min(LOOK_EVERY)).map_err(SendError::system("poll"))?;
        self.look()
    }

    #[cold]
    pub(super) fn send_waiting(&mut self, mut payload: Payload, turn: Decision) -> Result<Ticket, SendError> {
        let start = Instant::now();
        loop {
            self.pause(start, self.options.timeout, self.blocked == Blocked::Room)?;
            self.progress()?;
            match self.attempt(payload, turn) {
                Ok(ticket) => {
                    self.lending.again = None;
                    return Ok(ticket);
                }
                Err(Refused { payload: p, error: SendError::WouldBlock { .. } }) => payload = p,
                Err(refused) => return Err(refused.error),
            }
        }
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
        first.or(self.late.take()).map_or(Ok(()), Err)
    }

    /// As `drain`; what was lent by senders before on the socket is waited for, too. `Ok`: the
    /// kernel holds nothing.
    pub(super) fn drain_all(&mut self, timeout: Duration) -> Result<(), SendError> {
        let start = Instant::now();
        self.drain(timeout)?;
        while self.window.outstanding() > 0 || self.is_lent() {
            self.pause(start, Some(timeout), false)?;
            self.progress()?;
        }
        Ok(())
    }

    /// A short sleep, for what others have. An error when the time is over.
    #[cold]
    pub(super) fn pause_for_others(
        &mut self,
        start: Instant,
        timeout: Option<Duration>,
    ) -> Result<(), SendError> {
        let waited = start.elapsed();
        if timeout.is_some_and(|limit| waited >= limit) {
            return Err(SendError::TimedOut { waited, outstanding: 0, outstanding_bytes: 0 });
        }
        std::thread::sleep(OTHERS_PAUSE);
        Ok(())
    }

    pub(super) fn end(&mut self) -> Closed {
        let (aborted, aborted_bytes) = (self.window.outstanding(), self.window.outstanding_bytes());
        let back = std::mem::replace(&mut self.back, AnyBackend::Gone);
        let mut kept = 0;
        let mut last = Last(Some(Orphan { back, window: std::mem::take(&mut self.window) }));
        if let Some(Orphan { back, window }) = last.0.as_mut().filter(|_| aborted > 0) {
            if let Some(p) = self.pending.take() {
                window.cut_open(p.sent);
            }
            back.abort();
            // Errors say that the connection is gone, which is what was asked for.
            let _ = back.reap(window);
            let _ = back.recover(window);
            kept = window.outstanding();
            let report = window.take_report();
            self.count(&report);
        }
        drop(last);
        orphans();
        Closed { aborted, aborted_bytes, kept }
    }
}

/// What is left at the end. It goes on the list of orphans unless the kernel holds nothing, also if
/// a program's `on_done` panics in between.
struct Last(Option<Orphan>);

impl Drop for Last {
    fn drop(&mut self) {
        match self.0.take() {
            Some(orphan) if orphan.holds().0 > 0 => adopt(orphan),
            Some(orphan) => drop(orphan.back.into_socket()),
            None => {}
        }
    }
}
