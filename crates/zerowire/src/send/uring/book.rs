//! Who waits for what on a ring. Plain state without I/O.
//!
//! Every entry has a *token*, its user data. A send has one completion with its result, and, when it lent memory, a
//! second one when the memory is back (include/uapi/linux/io_uring.h: `IORING_CQE_F_MORE` on the first,
//! `IORING_CQE_F_NOTIF` on the second; an entry that fails may have both, too). Results are awaited in batches;
//! notifications come in any order, at any time, and are put into the list of their *channel*, that is of their sender.
//! A loan gets its id when its result is taken, so ids of a channel have no gaps. Nothing is allocated once there are as
//! many tokens as are ever out at a time.

use crate::send::backend::Sent;
use crate::uring::ring::Cqe;
use crate::uring::sqe;
use std::collections::VecDeque;
use std::io;

#[derive(Clone, Copy, Debug, Default)]
struct Token {
    channel: u32,
    id: u32,
    result: Option<i32>,
    /// A notification is to come.
    more: bool,
    /// It came, with its copied flag, before the result was taken.
    notified: Option<bool>,
    /// The sender knows it under `id`.
    is_known: bool,
    /// Its result is still to be taken.
    in_batch: bool,
    is_over: bool,
    /// Of a ring that was closed before the notification.
    is_retired: bool,
    /// Of a ring that was closed before the result: the kernel may have taken it.
    is_in_doubt: bool,
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
    unsettled: usize,
    /// Notices that were not taken.
    waiting: usize,
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

    /// Loans that are not back.
    pub(super) fn outstanding(&self) -> usize {
        self.channels.iter().map(|c| c.pending as usize).sum()
    }

    /// Entries whose result has not come.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The token of the next entry; it is part of the batch when [`Book::pushed`] is called.
    pub(super) fn token(&mut self) -> u32 {
        self.free_tokens.last().copied().unwrap_or_else(|| {
            self.tokens.push(Token { is_over: true, ..Token::default() });
            self.free_tokens.push(self.tokens.len() as u32 - 1);
            self.tokens.len() as u32 - 1
        })
    }

    /// The entry of the token that was given last is on its way.
    pub(super) fn pushed(&mut self, channel: u32) {
        if let Some(token) = self.free_tokens.pop() {
            self.tokens[token as usize] = Token { channel, in_batch: true, ..Token::default() };
            self.batch.push(token);
            self.unsettled += 1;
        }
    }

    /// Entries of the batch, and whether one of them has failed.
    pub(super) fn batch(&self) -> (usize, bool) {
        let has_failed =
            self.batch.iter().any(|at| self.tokens[*at as usize].result.is_some_and(|result| result < 0));
        (self.batch.len(), has_failed)
    }

    /// The ring was closed. The first `handed_over` entries of the batch were the kernel's: those without a result count
    /// as lent, since nobody knows, until [`Book::retired_are_back`]. The rest was never taken. What was lent before
    /// will have no notification.
    pub(super) fn give_up(&mut self, handed_over: usize) {
        for at in 0..handed_over.min(self.batch.len()) {
            let token = &mut self.tokens[self.batch[at] as usize];
            match token.result {
                // Those behind it were cancelled.
                Some(..0) => break,
                Some(_) => {}
                None => token.is_in_doubt = true,
            }
        }
        self.unsettled = 0;
        self.retire();
    }

    /// Takes a completion. One that belongs to nothing is ignored.
    pub(super) fn complete(&mut self, cqe: Cqe) {
        let index = cqe.user_data as u32;
        let Some(token) = self.tokens.get_mut(index as usize).filter(|t| !t.is_over) else { return };
        if cqe.flags & sqe::CQE_F_NOTIF == 0 {
            if token.result.is_none() {
                token.result = Some(cqe.result);
                token.more = cqe.flags & sqe::CQE_F_MORE != 0;
                self.unsettled = self.unsettled.saturating_sub(1);
            }
            return;
        }
        let copied = cqe.result as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0;
        if token.in_batch {
            token.notified = Some(copied);
        } else {
            self.give_back(index, copied);
        }
    }

    /// The results of the batch: appends what was taken to `sent`, up to the first error. An entry in doubt
    /// ([`Book::give_up`]) counts as taken, with more bytes than any has.
    pub(super) fn take_batch(&mut self, sent: &mut Vec<Sent>) -> io::Result<()> {
        let mut error = None;
        for at in 0..self.batch.len() {
            let (result, id) = self.take(self.batch[at]);
            match result {
                _ if error.is_some() => {}
                0.. => sent.push(Sent { bytes: result as usize, id }),
                _ => error = Some(io::Error::from_raw_os_error(-result)),
            }
        }
        self.batch.clear();
        error.map_or(Ok(()), Err)
    }

    fn take(&mut self, index: u32) -> (i32, Option<u32>) {
        let token = &mut self.tokens[index as usize];
        token.in_batch = false;
        if token.is_in_doubt {
            (token.result, token.more) = (Some(i32::MAX), true);
        }
        let result = token.result.unwrap_or(-libc::ECANCELED);
        let channel = &mut self.channels[token.channel as usize];
        let mut id = None;
        if token.more && result >= 0 {
            token.id = channel.next_id;
            token.is_known = true;
            channel.next_id = channel.next_id.wrapping_add(1);
            id = Some(token.id);
        }
        if token.more {
            channel.pending += 1;
            if let Some(copied) = token.notified {
                self.give_back(index, copied);
            }
        } else {
            token.is_over = true;
            self.free_tokens.push(index);
        }
        (result, id)
    }

    /// The memory of a token is back.
    fn give_back(&mut self, index: u32, copied: bool) {
        let token = &mut self.tokens[index as usize];
        token.is_over = true;
        self.free_tokens.push(index);
        let channel = &mut self.channels[token.channel as usize];
        channel.pending -= 1;
        if !channel.is_attached {
            if channel.pending == 0 {
                self.free_channels.push(token.channel);
            }
        } else if token.is_known {
            channel.notices.push_back((token.id, copied));
            self.waiting += 1;
        }
    }

    /// The next notice of a channel: an id that is back, and whether the kernel copied.
    #[cfg(test)]
    pub(super) fn next_notice(&mut self, channel: u32) -> Option<(u32, bool)> {
        let notice = self.channels[channel as usize].notices.pop_front();
        self.waiting -= usize::from(notice.is_some());
        notice
    }

    /// Moves the notices of a channel behind those in `to`.
    pub(super) fn take_notices(&mut self, channel: u32, to: &mut VecDeque<(u32, bool)>) {
        let notices = &mut self.channels[channel as usize].notices;
        self.waiting -= notices.len();
        to.append(notices);
    }

    /// Notices of all senders that were not taken.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The ring was closed; notifications of what is lent will not come.
    fn retire(&mut self) {
        for token in self.tokens.iter_mut().filter(|t| !t.is_over) {
            token.is_retired = true;
        }
    }

    /// What was lent when [`Book::retire`] was called is back. Whether it was copied is not known; it counts as copied.
    pub(super) fn retired_are_back(&mut self) {
        for index in 0..self.tokens.len() as u32 {
            let token = &self.tokens[index as usize];
            if token.is_retired && !token.is_over {
                self.give_back(index, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn result(token: u32, result: i32, more: bool) -> Cqe {
        Cqe { user_data: token.into(), result, flags: if more { sqe::CQE_F_MORE } else { 0 } }
    }

    fn notification(token: u32, copied: bool) -> Cqe {
        let result = if copied { sqe::NOTIF_USAGE_ZC_COPIED as i32 } else { 0 };
        Cqe { user_data: token.into(), result, flags: sqe::CQE_F_NOTIF }
    }

    proptest! {
        /// Batches with results of all kinds, notifications in any order, before or after the results are taken: every
        /// id that was given comes back once, with its flag, to its own channel, and nothing else does.
        #[test]
        fn every_loan_comes_back_once(
            batches in prop::collection::vec(
                (0u32..3, prop::collection::vec((-3i32..4, any::<bool>(), any::<bool>(), any::<bool>()), 1..8)),
                1..30,
            ),
            seed in any::<u64>(),
        ) {
            let mut book = Book::default();
            let channels: Vec<u32> = (0..3).map(|_| book.attach()).collect();
            let mut wanted: [BTreeMap<u32, bool>; 3] = Default::default();
            let mut ids = [0u32; 3];
            let mut late = Vec::new();
            let mut got: [BTreeMap<u32, bool>; 3] = Default::default();
            let mut random = seed | 1;
            for (channel, entries) in batches {
                let tokens: Vec<u32> = entries
                    .iter()
                    .map(|_| {
                        let token = book.token();
                        book.pushed(channels[channel as usize]);
                        token
                    })
                    .collect();
                for (&token, &(r, more, copied, early)) in tokens.iter().zip(&entries) {
                    book.complete(result(token, r, more));
                    if more && early {
                        book.complete(notification(token, copied));
                    } else if more {
                        late.push((token, copied));
                    }
                }
                prop_assert_eq!(book.unsettled(), 0);
                let mut sent = Vec::new();
                let first_error = entries.iter().position(|e| e.0 < 0);
                prop_assert_eq!(book.take_batch(&mut sent).is_err(), first_error.is_some());
                prop_assert_eq!(sent.len(), first_error.unwrap_or(entries.len()));
                for &(r, more, copied, _) in &entries {
                    if r >= 0 && more {
                        wanted[channel as usize].insert(ids[channel as usize], copied);
                        ids[channel as usize] += 1;
                    }
                }
                // Some of the late ones come now, out of order.
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                for _ in 0..(random >> 60) {
                    if !late.is_empty() {
                        let at = (random >> 33) as usize % late.len();
                        let (token, copied) = late.swap_remove(at);
                        book.complete(notification(token, copied));
                    }
                }
            }
            prop_assert_eq!(book.outstanding(), late.len());
            for (token, copied) in late {
                book.complete(notification(token, copied));
                // A second one, and one of a token that was never given.
                book.complete(notification(token, !copied));
                book.complete(notification(1 << 20, copied));
            }
            for (at, &channel) in channels.iter().enumerate() {
                while let Some((id, copied)) = book.next_notice(channel) {
                    prop_assert!(got[at].insert(id, copied).is_none(), "id {} twice", id);
                }
            }
            prop_assert_eq!(got, wanted);
            prop_assert_eq!(book.outstanding(), 0);
            prop_assert_eq!(book.free_tokens.len(), book.tokens.len(), "tokens leaked");
        }
    }

    #[test]
    fn the_place_of_a_sender_that_went_waits_for_its_loans() {
        let mut book = Book::default();
        let gone = book.attach();
        let token = book.token();
        book.pushed(gone);
        book.complete(result(token, 10, true));
        book.take_batch(&mut Vec::new()).unwrap();
        book.detach(gone);
        let next = book.attach();
        assert_ne!(next, gone, "a notification for the old one is on its way");
        book.complete(notification(token, false));
        assert_eq!(book.attach(), gone);
        assert_eq!((book.next_notice(gone), book.next_notice(next)), (None, None));
    }

    #[test]
    fn an_entry_without_a_result_is_kept_until_the_ring_is_gone() {
        let mut book = Book::default();
        let channel = book.attach();
        let tokens: Vec<u32> = (0..4)
            .map(|_| {
                let token = book.token();
                book.pushed(channel);
                token
            })
            .collect();
        book.complete(result(tokens[0], 10, false));
        // Two more were handed over; the last was not.
        book.give_up(3);
        let mut sent = Vec::new();
        assert!(book.take_batch(&mut sent).is_err());
        let ids: Vec<_> = sent.iter().map(|s| s.id).collect();
        assert_eq!(ids, [None, Some(0), Some(1)]);
        let mut notices = VecDeque::new();
        book.take_notices(channel, &mut notices);
        assert_eq!((notices.len(), book.outstanding(), book.unsettled()), (0, 2, 0));
        book.retired_are_back();
        book.take_notices(channel, &mut notices);
        assert_eq!(notices, [(0, true), (1, true)]);
        assert_eq!((book.outstanding(), book.free_tokens.len()), (0, book.tokens.len()));
    }

    #[test]
    fn loans_of_a_closed_ring_come_back_together() {
        let mut book = Book::default();
        let channel = book.attach();
        for _ in 0..2 {
            let token = book.token();
            book.pushed(channel);
            book.complete(result(token, 10, true));
            book.take_batch(&mut Vec::new()).unwrap();
            book.give_up(0);
        }
        let token = book.token();
        book.pushed(channel);
        book.complete(result(token, 10, true));
        book.take_batch(&mut Vec::new()).unwrap();
        book.retired_are_back();
        assert_eq!(book.next_notice(channel), Some((0, true)));
        assert_eq!(book.next_notice(channel), Some((1, true)));
        assert_eq!(
            (book.next_notice(channel), book.outstanding()),
            (None, 1),
            "the third is of the new ring"
        );
    }
}
