//! What a sender has lent: the back end, the window, and the notifications that end loans.

use super::super::auto::{Auto, Decision};
use super::super::backend::AnyBackend;
use super::super::close::Closed;
use super::super::kind::SocketKind;
use super::super::limits::cpu_ns;
use super::super::orphans::{Orphan, adopt, orphans};
use super::super::socket::connection::{troubles, untold};
use super::super::window::LoanTotals;
use super::super::{SendError, SendOptions, SendWay, Ticket, Window};
use super::lending::Lending;
use crate::ledger::{CopyReason, Counters};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep between two looks whether notifications were lost.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long it is slept at a time where nothing tells of a change.
const OTHERS_PAUSE: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct SendLoans {
    pub(super) back: AnyBackend,
    pub(super) window: Window,
    pub(super) counters: Arc<Counters>,
    pub(super) lending: Lending,
    /// Lent payloads since the notifications were read.
    pub(super) unread: u32,
    /// Payloads that came back since `poll` last said how many.
    pub(super) came_back: usize,
    /// An error about earlier payloads that no call has returned yet.
    pub(super) late: Option<SendError>,
    /// When it was last looked whether notifications were lost.
    looked: Instant,
}

impl SendLoans {
    pub(super) fn new(back: AnyBackend, socket: SocketKind, options: &SendOptions) -> Self {
        let lending = Lending::new(&back, socket, options);
        let mut window = Window::starting_at(Ticket::new(0), back.next_id());
        window.note_sizes(lending.auto.is_some());
        Self {
            back,
            window,
            counters: Arc::default(),
            lending,
            unread: 0,
            came_back: 0,
            late: None,
            looked: Instant::now(),
        }
    }

    /// How a payload of `len` bytes goes out.
    #[inline]
    pub(super) fn turn(&mut self, len: usize) -> Decision {
        self.lending.turn(len, &self.back)
    }

    /// Counts a payload that was sent, and the calls that it took.
    #[inline]
    pub(super) fn count_frame(&mut self) {
        self.counters.frames.add(1);
        self.count_calls();
    }

    /// Counts the system calls since the last call of this.
    #[inline]
    pub(super) fn count_calls(&mut self) {
        self.counters.system_calls.add(self.back.take_calls());
    }

    /// Why something was copied that should be lent. Perhaps nothing can be lent any more.
    #[cold]
    pub(super) fn loan_was_copied(&mut self) -> CopyReason {
        self.lending.ask(&self.back);
        self.back.copied_because()
    }

    pub(super) fn would_block(&self) -> SendError {
        SendError::WouldBlock {
            outstanding: self.window.outstanding(),
            outstanding_bytes: self.window.outstanding_bytes(),
        }
    }

    /// Reads notifications in the middle of sending. A later call returns the error, since this
    /// payload was sent.
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

    /// Reads notifications behind a submission that failed, as the back ends ask for after lending.
    /// A copy that is refused has signalled an engine's watch by its result, which this clears: a
    /// program that tries again after each signal would never sleep.
    pub(super) fn read_behind_refusal(&mut self, way: SendWay) {
        if way == SendWay::Lend || self.back.is_watched() {
            self.reap_or_note();
        }
    }

    #[inline]
    pub(super) fn reap(&mut self) -> Result<(), SendError> {
        self.unread = 0;
        let result = self.back.reap(&mut self.window);
        self.book();
        if result.is_err() {
            self.lending.ask(&self.back);
        }
        result
    }

    /// Reads the notifications if anything is lent, and tells an error about earlier payloads.
    pub(super) fn update(&mut self) -> Result<(), SendError> {
        if self.is_lent() {
            self.reap()?;
            if self.is_lent() {
                self.look()?;
            }
        }
        self.late.take().map_or(Ok(()), Err)
    }

    /// Reads for a program that waits for an engine, while this sender has nothing lent: what the
    /// kernel signals late, and what senders left that ended.
    pub(super) fn read_for_watch(&mut self) -> Result<(), SendError> {
        if self.back.is_watched() && !self.is_lent() { self.reap() } else { Ok(()) }
    }

    /// The error of the socket that no call has returned, behind what came by the error queue.
    pub(super) fn socket_error(&mut self, kind: SocketKind) -> Result<Option<io::Error>, SendError> {
        let troubles = troubles(self.back.socket()).map_err(SendError::system("poll"))?;
        if troubles.is_empty() {
            return Ok(None);
        }
        self.reap()?;
        let errno = untold(self.back.socket(), kind, troubles, self.is_lent())
            .map_err(SendError::system("getsockopt"))?;
        Ok(errno.map(io::Error::from))
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
    pub(super) fn is_lent(&self) -> bool {
        self.window.ids_out() > 0 || self.back.elders_hold().0 > 0
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

    /// Ends all loans, or leaves them to the list of orphans. `sent`: bytes of the payload that
    /// waits in part.
    pub(super) fn end(&mut self, sent: Option<usize>) -> Closed {
        let (aborted, aborted_bytes) = (self.window.outstanding(), self.window.outstanding_bytes());
        let back = std::mem::replace(&mut self.back, AnyBackend::Gone);
        let mut kept = 0;
        let mut last = Last(Some(Orphan { back, window: std::mem::take(&mut self.window) }));
        if let Some(Orphan { back, window }) = last.0.as_mut().filter(|_| aborted > 0) {
            if let Some(sent) = sent {
                window.cut_open(sent);
            }
            back.abort();
            // Errors say that the connection is gone, which is the aim.
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

/// A short sleep, for what others have. An error when the time is over.
#[cold]
pub(super) fn pause_for_others(start: Instant, timeout: Option<Duration>) -> Result<(), SendError> {
    let waited = start.elapsed();
    if timeout.is_some_and(|limit| waited >= limit) {
        return Err(SendError::NoFreeBuffer { waited });
    }
    std::thread::sleep(OTHERS_PAUSE);
    Ok(())
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
