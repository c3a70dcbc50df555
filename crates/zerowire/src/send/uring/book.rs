//! Who waits for what on a ring. Plain state without I/O.
//!
//! Every entry has a *token*, its user data. A send has one completion with its result, and, when
//! it lent memory, a second one when the memory is back. The first has `IORING_CQE_F_MORE`, the
//! second `IORING_CQE_F_NOTIF` (include/uapi/linux/io_uring.h); an entry that fails may have both,
//! too. Results are awaited in batches. Notifications come in any order, at any time, and go into
//! the list of their *channel*, which belongs to their sender. A loan gets its id when its result
//! is taken, so ids of a channel have no gaps. Nothing is allocated once there are as many tokens
//! as are ever out at a time.

use crate::send::backend::Accepted;
use std::collections::VecDeque;
use std::io;
use zerowire_sys::uring::ring::Cqe;
use zerowire_sys::uring::sqe;

/// How far a token's entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TokenStage {
    /// There is none: the token may be given out.
    #[default]
    Free,
    /// Its result is still to be taken.
    InBatch,
    /// Its result was taken, its notification is to come. The sender knows it under this id, or not
    /// at all if it failed.
    Lent(Option<u32>),
}

/// What became of the ring that an entry was handed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RingFate {
    #[default]
    Open,
    /// It was closed before the notification.
    Closed,
    /// It was closed before the result: the kernel may have taken the entry.
    InDoubt,
}

#[derive(Clone, Copy, Debug, Default)]
struct Token {
    channel: u32,
    stage: TokenStage,
    ring: RingFate,
    result: Option<i32>,
    /// A notification is to come.
    more: bool,
    /// It came, with its copied flag, before the result was taken.
    notified: Option<bool>,
    /// It stands in for another one, which failed with this error number.
    refused: Option<i32>,
}

#[derive(Debug, Default)]
struct Channel {
    next_id: u32,
    /// Ids that are back, with the copied flag.
    notices: VecDeque<(u32, bool)>,
    /// Tokens whose notification is to come.
    pending: u32,
    is_attached: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Book {
    tokens: Vec<Token>,
    free_tokens: Vec<u32>,
    channels: Vec<Channel>,
    free_channels: Vec<u32>,
    batch: Vec<u32>,
    /// The batch's entries are linked: one that fails cancels those behind it.
    pub(super) is_chain: bool,
    /// Entries whose result has not come.
    pub(super) unsettled: usize,
    /// Notices of all senders that were not taken.
    pub(super) waiting: usize,
    /// Loans of all senders that are not back.
    pub(super) outstanding: usize,
}

impl Book {
    /// A place for a sender.
    pub(super) fn attach(&mut self) -> u32 {
        let number = self.free_channels.pop().unwrap_or_else(|| {
            self.channels.push(Channel::default());
            self.channels.len() as u32 - 1
        });
        let channel = &mut self.channels[number as usize];
        self.waiting -= channel.notices.len();
        channel.notices.clear();
        channel.next_id = 0;
        channel.is_attached = true;
        number
    }

    /// The sender is gone. Its place is used again when nothing is on its way to it.
    pub(super) fn detach(&mut self, channel: u32) {
        let place = &mut self.channels[channel as usize];
        place.is_attached = false;
        self.waiting -= place.notices.len();
        place.notices.clear();
        if place.pending == 0 {
            self.free_channels.push(channel);
        }
    }

    /// The token of the next entry; it is part of the batch when [`Book::pushed`] is called.
    pub(super) fn token(&mut self) -> u32 {
        self.free_tokens.last().copied().unwrap_or_else(|| {
            self.tokens.push(Token::default());
            self.free_tokens.push(self.tokens.len() as u32 - 1);
            self.tokens.len() as u32 - 1
        })
    }

    /// The entry of the token that was given last is on its way.
    pub(super) fn pushed(&mut self, channel: u32) {
        if let Some(token) = self.free_tokens.pop() {
            self.tokens[token as usize] = Token { channel, stage: TokenStage::InBatch, ..Token::default() };
            self.batch.push(token);
            self.unsettled += 1;
        }
    }

    /// Entries of the batch, and whether one of them has failed and cancels the rest.
    pub(super) fn batch(&self) -> (usize, bool) {
        let is_broken = self.is_chain
            && self.batch.iter().any(|at| self.tokens[*at as usize].result.is_some_and(|result| result < 0));
        (self.batch.len(), is_broken)
    }

    /// The first entry at or behind `from` that failed although one behind it was taken, and its
    /// error number.
    pub(super) fn hole(&self, from: usize) -> Option<(usize, i32)> {
        let failed = |at: &u32| self.tokens[*at as usize].result.filter(|result| *result < 0);
        let end = self.taken();
        let mut behind = self.batch.iter().enumerate().take(end).skip(from);
        behind.find_map(|(at, token)| Some((at, -failed(token)?)))
    }

    /// The entry that was pushed last stands in for the one at `at`, which failed.
    pub(super) fn stand_in(&mut self, at: usize) {
        if let Some(new) = self.batch.pop().filter(|_| at < self.batch.len()) {
            let old = std::mem::replace(&mut self.batch[at], new);
            let first = self.tokens[old as usize].refused;
            let (result, _) = self.take(old);
            self.tokens[new as usize].refused = first.or(Some(result.saturating_neg()));
        }
    }

    /// Entries up to the last one that was taken, or of a chain up to the first one that was not.
    fn taken(&self) -> usize {
        let was_taken = |at: &u32| {
            let token = &self.tokens[*at as usize];
            token.ring == RingFate::InDoubt || token.result.is_some_and(|result| result >= 0)
        };
        match self.is_chain {
            true => self.batch.iter().position(|at| !was_taken(at)).unwrap_or(self.batch.len()),
            false => self.batch.iter().rposition(was_taken).map_or(0, |last| last + 1),
        }
    }

    /// The ring was closed. The first `handed_over` entries of the batch were the kernel's: those
    /// without a result count as lent, since nobody knows, until [`Book::retired_are_back`]. The
    /// rest was never taken. What was lent before will have no notification.
    pub(super) fn give_up(&mut self, handed_over: usize) {
        for at in 0..handed_over.min(self.batch.len()) {
            let token = &mut self.tokens[self.batch[at] as usize];
            match token.result {
                // Those behind it were cancelled.
                Some(..0) if self.is_chain => break,
                Some(_) => {}
                None => token.ring = RingFate::InDoubt,
            }
        }
        self.unsettled = 0;
        for token in &mut self.tokens {
            if token.stage != TokenStage::Free && token.ring == RingFate::Open {
                token.ring = RingFate::Closed;
            }
        }
    }

    /// Takes a completion. One that belongs to nothing is ignored.
    pub(super) fn complete(&mut self, cqe: Cqe) {
        let index = cqe.user_data as u32;
        let token = self.tokens.get_mut(index as usize).filter(|t| t.stage != TokenStage::Free);
        let Some(token) = token else { return };
        if cqe.flags & sqe::CQE_F_NOTIF == 0 {
            if token.result.is_none() {
                token.result = Some(cqe.result);
                token.more = cqe.flags & sqe::CQE_F_MORE != 0;
                self.unsettled = self.unsettled.saturating_sub(1);
            }
            return;
        }
        let copied = cqe.result as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0;
        if token.stage == TokenStage::InBatch {
            token.notified = Some(copied);
        } else {
            self.give_back(index, copied);
        }
    }

    /// The results of the batch: appends what was taken to `sent`, up to the first error. Without
    /// links it goes on to the last entry that was taken: those before it that failed are
    /// [lost](Accepted::lost). An entry in doubt ([`Book::give_up`]) counts as taken, with more
    /// bytes than any has.
    pub(super) fn take_batch(&mut self, sent: &mut Vec<Accepted>) -> io::Result<()> {
        let mut error = None;
        let taken = self.taken();
        for at in 0..self.batch.len() {
            let refused = self.tokens[self.batch[at] as usize].refused;
            let (result, id) = self.take(self.batch[at]);
            match result {
                0.. if at < taken => sent.push(Accepted { bytes: result as usize, id, refused }),
                ..0 if at < taken => sent.push(Accepted::lost(result.saturating_neg())),
                _ => {
                    error.get_or_insert_with(|| io::Error::from_raw_os_error(result.saturating_neg()));
                }
            }
        }
        self.batch.clear();
        error.map_or(Ok(()), Err)
    }

    /// A failed entry's memory goes back to the caller although its notification may still come
    /// (`IORING_CQE_F_MORE`). The notification says when the packets are gone that were queued
    /// before the call failed, and those hold copies. Only datagrams that are cut into fragments
    /// are several packets, and these the kernel copies. (UDP_SEGMENT makes one, which the
    /// interface or its queue cuts.)
    fn take(&mut self, index: u32) -> (i32, Option<u32>) {
        let token = &mut self.tokens[index as usize];
        if token.ring == RingFate::InDoubt {
            (token.result, token.more) = (Some(i32::MAX), true);
        }
        let result = token.result.unwrap_or(-libc::ECANCELED);
        let channel = &mut self.channels[token.channel as usize];
        let mut id = None;
        if token.more && result >= 0 {
            id = Some(channel.next_id);
            channel.next_id = channel.next_id.wrapping_add(1);
        }
        if token.more {
            token.stage = TokenStage::Lent(id);
            channel.pending += 1;
            self.outstanding += 1;
            if let Some(copied) = token.notified {
                self.give_back(index, copied);
            }
        } else {
            token.stage = TokenStage::Free;
            self.free_tokens.push(index);
        }
        (result, id)
    }

    /// The memory of a token is back.
    fn give_back(&mut self, index: u32, copied: bool) {
        let token = &mut self.tokens[index as usize];
        let stage = std::mem::take(&mut token.stage);
        self.free_tokens.push(index);
        let channel = &mut self.channels[token.channel as usize];
        channel.pending -= 1;
        self.outstanding -= 1;
        if !channel.is_attached {
            if channel.pending == 0 {
                self.free_channels.push(token.channel);
            }
        } else if let TokenStage::Lent(Some(id)) = stage {
            channel.notices.push_back((id, copied));
            self.waiting += 1;
        }
    }

    /// Moves the notices of a channel behind those in `to`.
    pub(super) fn take_notices(&mut self, channel: u32, to: &mut VecDeque<(u32, bool)>) {
        let notices = &mut self.channels[channel as usize].notices;
        self.waiting -= notices.len();
        to.append(notices);
    }

    /// What was lent when [`Book::give_up`] was called is back. Whether it was copied is not known;
    /// it counts as copied.
    pub(super) fn retired_are_back(&mut self) {
        for index in 0..self.tokens.len() as u32 {
            let token = &self.tokens[index as usize];
            if token.stage != TokenStage::Free && token.ring != RingFate::Open {
                self.give_back(index, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;
