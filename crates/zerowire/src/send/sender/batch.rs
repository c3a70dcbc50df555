//! Several payloads at once.

use super::super::Payload;
use super::super::auto::Decision;
use super::super::backend::Accepted;
use super::super::limits::cpu_ns;
use super::super::socket::errno::{from_errno, is_of_an_earlier};
use super::super::{SendError, SendWay};
use super::{Blocked, MAX_LENT_SEGMENTS, Sender};
use crate::ledger::{CopyReason, DropReason};
use std::io;
use std::time::Instant;

/// Payloads in one call.
const BATCH: usize = 64;

/// What is left in the caller's vector of a payload that was sent, until the vector is drained.
fn empty() -> Payload {
    Payload::from(&[][..])
}

/// Turns that were requested for payloads that are not sent yet. Each payload gets one turn and
/// goes by it, also if only a part of those before it was taken, or none for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ahead {
    turn: Decision,
    /// How many payloads from the first on have this turn; at least 1.
    same: usize,
    /// The turn of the one behind them, if it has one yet.
    next: Option<Decision>,
}

impl Ahead {
    const fn of(turn: Decision) -> Self {
        Self { turn, same: 1, next: None }
    }

    /// What is left when the first `sent` were taken, which are not more than `same`.
    fn behind(self, sent: usize) -> Option<Self> {
        if sent < self.same {
            return Some(Self { same: self.same - sent, ..self });
        }
        self.next.map(Self::of)
    }
}

impl Sender {
    /// As `send_many`; counts in `done` what was sent.
    pub(super) fn send_batches(
        &mut self,
        payloads: &mut [Payload],
        done: &mut usize,
    ) -> Result<(), SendError> {
        let mut ahead = None;
        let mut blocked_since = None;
        // The next datagram was called too long. If it goes through, an earlier one was.
        let mut is_doubtful = false;
        while let Some(first) = payloads.get(*done) {
            let mut asked = ahead.take().unwrap_or_else(|| Ahead::of(self.loans.turn(first.len())));
            let n = self.run_of(&payloads[*done..], &mut asked);
            let turn = asked.turn;
            let before = is_doubtful;
            let sent = match n {
                0 | 1 => 0,
                _ => self.send_run(&mut payloads[*done..*done + n], turn, &mut is_doubtful),
            };
            if sent > 0 {
                if before {
                    self.count_earlier();
                }
                *done += sent;
                ahead = asked.behind(sent);
                blocked_since = None;
                continue;
            }
            // One alone, or the first of a run was refused: this says why.
            let first = &mut payloads[*done];
            match self.attempt(std::mem::replace(first, empty()), turn) {
                Ok(_) => {
                    if std::mem::take(&mut is_doubtful) {
                        self.count_earlier();
                    }
                    *done += 1;
                    ahead = asked.behind(1);
                    blocked_since = None;
                }
                Err(refused) => {
                    *first = refused.payload;
                    if !refused.error.is_would_block() {
                        return Err(refused.error);
                    }
                    let since = *blocked_since.get_or_insert_with(Instant::now);
                    self.loans.pause(since, self.options.timeout, self.blocked == Blocked::Room)?;
                    self.progress()?;
                    // It comes again here, and no other payload may take its turn.
                    self.loans.lending.forget_turn();
                    ahead = Some(asked);
                }
            }
        }
        Ok(())
    }

    /// How many payloads from the first on can go together, by the turn of the first.
    fn run_of(&mut self, payloads: &[Payload], ahead: &mut Ahead) -> usize {
        if self.socket.stream || self.pending.is_some() || self.loans.late.is_some() {
            return 1;
        }
        let lend = ahead.turn.way == SendWay::Lend;
        if lend && !self.loans.back.lends_freely() {
            return 1;
        }
        let (mut payloads_room, mut bytes_room) = (usize::MAX, usize::MAX);
        if lend {
            payloads_room = self.options.max_lent.saturating_sub(self.loans.window.outstanding());
            bytes_room = self.options.max_lent_bytes.saturating_sub(self.loans.window.outstanding_bytes());
        }
        let mut n = 0;
        for p in payloads.iter().take(BATCH.min(payloads_room)) {
            if lend && (p.is_empty() || p.segments().len() > MAX_LENT_SEGMENTS || p.len() > bytes_room) {
                break;
            }
            if n == ahead.same {
                let next = *ahead.next.get_or_insert_with(|| self.loans.turn(p.len()));
                if next != ahead.turn {
                    break;
                }
                ahead.same += 1;
                ahead.next = None;
            }
            bytes_room -= p.len().min(bytes_room);
            n += 1;
        }
        n
    }

    /// Sends payloads of the same turn; returns how many were taken. None: the caller finds out why
    /// by sending one alone. `is_doubtful`: the one behind those was called too long, which an
    /// earlier one may have been. (One in pieces may go through when they are gathered.)
    fn send_run(&mut self, payloads: &mut [Payload], turn: Decision, is_doubtful: &mut bool) -> usize {
        let start = if turn.measure { cpu_ns() } else { 0 };
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        let result = self.loans.back.submit_many(payloads, turn.way, &mut sent);
        let n = sent.len();
        let is_too_long = result.as_ref().is_err_and(|e| self.may_be_of_an_earlier(e));
        let is_whole = payloads.get(n).is_some_and(|p| p.segments().len() == 1);
        *is_doubtful = is_too_long && is_whole || *is_doubtful && n == 0;
        self.loans.count_calls();
        if turn.measure
            && n > 0
            && let Some(auto) = &mut self.loans.lending.auto
        {
            let each = cpu_ns().saturating_sub(start) / n as u64;
            for p in payloads.iter().take(n) {
                auto.measured(p.len(), turn.way, each);
            }
        }
        let lost = self.book_run(payloads, &sent, turn);
        self.sent = sent;
        self.loans.counters.frames.add((n - lost) as u64);
        if let Some(errno) = result.as_ref().err().and_then(io::Error::raw_os_error)
            && is_of_an_earlier(errno)
        {
            // The kernel has forgotten it by now: sending the next one again would tell nobody.
            self.loans.late.get_or_insert_with(|| from_errno(errno));
        }
        let all = result.is_ok() && n == payloads.len();
        let lent = turn.way == SendWay::Lend && (!all || self.loans.unread >= super::READ_EVERY);
        if lent || self.loans.lending.awaits_answer() {
            self.loans.read_soon();
        }
        n
    }

    /// Enters what was taken into the window; returns how many were lost. First all that are lent:
    /// what is copied is done at once, and a program's `on_done` or a payload's drop code may
    /// panic.
    fn book_run(&mut self, payloads: &mut [Payload], sent: &[Accepted], turn: Decision) -> usize {
        let first = self.loans.window.next_ticket();
        for (p, s) in payloads.iter_mut().zip(sent) {
            match s.id.filter(|_| !s.is_lost()) {
                Some(id) => {
                    self.loans.unread += 1;
                    // An id out of order can't happen with one handle of the socket; the memory
                    // then stays.
                    let _ = self.loans.window.lend(std::mem::replace(p, empty()), id, false);
                }
                None => {
                    self.loans.window.take_ticket();
                }
            }
        }
        let mut lost = 0;
        for ((i, p), s) in (0..).zip(payloads.iter_mut()).zip(sent) {
            if let Some(errno) = s.refused {
                let len = if s.is_lost() { p.len() } else { s.bytes };
                self.note_refusal(errno, len, s.is_lost());
            }
            if !s.is_lost() && s.id.is_some() {
                continue;
            }
            let p = std::mem::replace(p, empty());
            if s.is_lost() {
                lost += 1;
            } else {
                let reason = match turn.way {
                    SendWay::Copy => turn.reason,
                    SendWay::Lend if s.refused == Some(libc::EAGAIN) => CopyReason::Held,
                    // Sent again behind a limit of locked memory.
                    SendWay::Lend if self.loans.back.lends().is_ok() => CopyReason::Memlock,
                    SendWay::Lend => self.loans.loan_was_copied(),
                };
                self.loans.counters.copied(reason, p.len() as u64);
            }
            self.loans.window.copied_as(first.plus(i), p);
        }
        lost
    }

    /// A datagram in the middle of a batch was refused, and then sent again or lost. One error
    /// stands for several: the next call returns the first.
    #[cold]
    fn note_refusal(&mut self, errno: i32, len: usize, is_lost: bool) {
        if is_lost {
            self.loans.counters.dropped(match errno {
                libc::EMSGSIZE => DropReason::TooLong,
                libc::EAGAIN | libc::ENOBUFS | libc::ENETDOWN => DropReason::PortRefused,
                _ => DropReason::SendFailed,
            });
        } else if errno == libc::EMSGSIZE {
            self.count_earlier();
        }
        if (is_lost || is_of_an_earlier(errno)) && self.loans.late.is_none() {
            self.loans.late = Some(match errno {
                libc::EMSGSIZE => self.error(&io::Error::from_raw_os_error(errno), len),
                _ => from_errno(errno),
            });
        }
    }
}

#[cfg(test)]
mod tests;
