//! Several payloads at once.

use super::super::Payload;
use super::super::auto::Turn;
use super::super::backend::Submit;
use super::super::limits::cpu_ns;
use super::super::socket::{from_errno, is_of_an_earlier};
use super::super::{SendError, Way};
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

impl Sender {
    /// As `send_many`; counts in `done` what was sent.
    pub(super) fn send_batches(
        &mut self,
        payloads: &mut [Payload],
        done: &mut usize,
    ) -> Result<(), SendError> {
        let mut decided = None;
        let mut blocked_since = None;
        while let Some(first) = payloads.get(*done) {
            let turn = decided.take().unwrap_or_else(|| self.turn(first.len()));
            let n = self.run_of(&payloads[*done..], turn, &mut decided);
            let sent = if n > 1 { self.send_run(&mut payloads[*done..*done + n], turn) } else { 0 };
            if sent > 0 {
                *done += sent;
                blocked_since = None;
                continue;
            }
            // One alone, or the first of a run was refused: this says why.
            let first = &mut payloads[*done];
            match self.attempt(std::mem::replace(first, empty()), turn) {
                Ok(_) => {
                    *done += 1;
                    blocked_since = None;
                }
                Err(refused) => {
                    *first = refused.payload;
                    if !refused.error.is_would_block() {
                        return Err(refused.error);
                    }
                    let since = *blocked_since.get_or_insert_with(Instant::now);
                    self.pause(since, self.options.timeout, self.blocked == Blocked::Room)?;
                    self.progress()?;
                }
            }
        }
        Ok(())
    }

    /// How many payloads from the first on can go together. `decided`: the turn of the one behind them, if it was asked.
    fn run_of(&mut self, payloads: &[Payload], turn: Turn, decided: &mut Option<Turn>) -> usize {
        if self.socket.stream || self.pending.is_some() || self.late.is_some() {
            return 1;
        }
        let lend = turn.way == Way::Lend;
        let (mut payloads_room, mut bytes_room) = (usize::MAX, usize::MAX);
        if lend {
            payloads_room = self.options.max_lent.saturating_sub(self.window.outstanding());
            bytes_room = self.options.max_lent_bytes.saturating_sub(self.window.outstanding_bytes());
        }
        let mut n = 0;
        for p in payloads.iter().take(BATCH.min(payloads_room)) {
            if lend && (p.is_empty() || p.segments().len() > MAX_LENT_SEGMENTS || p.len() > bytes_room) {
                break;
            }
            if n > 0 {
                let next = self.turn(p.len());
                if next != turn {
                    *decided = Some(next);
                    break;
                }
            }
            bytes_room -= p.len().min(bytes_room);
            n += 1;
        }
        n
    }

    /// Sends payloads of the same turn; returns how many were taken. None: the caller finds out why by sending one alone.
    fn send_run(&mut self, payloads: &mut [Payload], turn: Turn) -> usize {
        let start = if turn.measure { cpu_ns() } else { 0 };
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        let result = self.back.submit_many(payloads, turn.way, &mut sent);
        let n = sent.len();
        let calls = self.back.take_calls();
        self.counters.system_calls.add(calls);
        if turn.measure
            && n > 0
            && let Some(auto) = &mut self.auto
        {
            let each = cpu_ns().saturating_sub(start) / n as u64;
            for p in payloads.iter().take(n) {
                auto.measured(p.len(), turn.way, each);
            }
        }
        let mut lost = 0;
        for (p, s) in payloads.iter_mut().zip(&sent) {
            let p = std::mem::replace(p, empty());
            if let Some(errno) = s.refused {
                self.note_refusal(errno, s.is_lost());
            }
            if s.is_lost() {
                lost += 1;
                self.window.copied(p);
                continue;
            }
            match s.id {
                Some(id) => {
                    self.unread += 1;
                    // An id out of order can't happen with one handle of the socket; the memory then stays.
                    let _ = self.window.lend(p, id, false);
                }
                None => {
                    let reason = match turn.way {
                        Way::Copy => self.copy_reason(p.len()),
                        Way::Lend if s.refused == Some(libc::EAGAIN) => CopyReason::Held,
                        // Sent again behind a limit of locked memory.
                        Way::Lend if self.back.lends().is_ok() => CopyReason::Memlock,
                        Way::Lend => CopyReason::Unsupported,
                    };
                    self.counters.copied(reason, p.len() as u64);
                    self.window.copied(p);
                }
            }
        }
        self.sent = sent;
        self.counters.frames.add((n - lost) as u64);
        if let Some(errno) = result.as_ref().err().and_then(io::Error::raw_os_error)
            && is_of_an_earlier(errno)
        {
            // The kernel has forgotten it by now: sending the next one again would tell nobody.
            self.late.get_or_insert_with(|| from_errno(errno));
        }
        let all = result.is_ok() && n == payloads.len();
        if turn.way == Way::Lend && (!all || self.unread >= super::READ_EVERY) {
            self.read_soon();
        }
        n
    }

    /// A datagram in the middle of a batch was refused, and then sent again or lost. One error stands for several: the
    /// first is told by the next call.
    #[cold]
    fn note_refusal(&mut self, errno: i32, is_lost: bool) {
        if is_lost {
            self.counters.dropped(match errno {
                libc::EMSGSIZE => DropReason::TooLong,
                libc::EAGAIN | libc::ENOBUFS | libc::ENETDOWN => DropReason::PortRefused,
                _ => DropReason::SendFailed,
            });
        }
        if is_lost || is_of_an_earlier(errno) {
            self.late.get_or_insert_with(|| from_errno(errno));
        }
    }
}
