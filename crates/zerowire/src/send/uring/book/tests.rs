use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

impl Book {
    /// The next notice of a channel: an id that is back, and whether the kernel copied.
    fn next_notice(&mut self, channel: u32) -> Option<(u32, bool)> {
        let notice = self.channels[channel as usize].notices.pop_front();
        self.waiting -= usize::from(notice.is_some());
        notice
    }
}

fn result(token: u32, result: i32, more: bool) -> Cqe {
    Cqe { user_data: token.into(), result, flags: if more { sqe::CQE_F_MORE } else { 0 } }
}

fn notification(token: u32, copied: bool) -> Cqe {
    let result = if copied { sqe::NOTIF_USAGE_ZC_COPIED as i32 } else { 0 };
    Cqe { user_data: token.into(), result, flags: sqe::CQE_F_NOTIF }
}

proptest! {
    /// Batches with results of all kinds, notifications in any order, before or after the results
    /// are taken. Every id that was given comes back once, with its flag, to its own channel, and
    /// nothing else does.
    #[test]
    fn every_loan_comes_back_once(
        batches in prop::collection::vec(
            (0u32..3, any::<bool>(), prop::collection::vec((-3i32..4, any::<bool>(), any::<bool>(), any::<bool>()), 1..8)),
            1..30,
        ),
        seed in any::<u64>(),
    ) {
            let mut book = Book { is_chain: true, ..Book::default() };
        let channels: Vec<u32> = (0..3).map(|_| book.attach()).collect();
        let mut wanted: [BTreeMap<u32, bool>; 3] = Default::default();
        let mut ids = [0u32; 3];
        let mut late = Vec::new();
        let mut got: [BTreeMap<u32, bool>; 3] = Default::default();
        let mut random = seed | 1;
        for (channel, is_chain, entries) in batches {
            book.is_chain = is_chain;
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
            prop_assert_eq!(book.unsettled, 0);
            let mut sent = Vec::new();
            let failed = |e: &(i32, bool, bool, bool)| e.0 < 0;
            let taken = match is_chain {
                true => entries.iter().position(failed).unwrap_or(entries.len()),
                false => entries.iter().rposition(|e| !failed(e)).map_or(0, |last| last + 1),
            };
            prop_assert_eq!(book.take_batch(&mut sent).is_err(), taken < entries.len());
            prop_assert_eq!(sent.len(), taken);
            for (s, e) in sent.iter().zip(&entries) {
                prop_assert_eq!(s.is_lost(), failed(e));
                prop_assert_eq!(s.refused, failed(e).then_some(-e.0));
            }
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
        prop_assert_eq!(book.outstanding, late.len());
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
        prop_assert_eq!(book.outstanding, 0);
        prop_assert_eq!(book.free_tokens.len(), book.tokens.len(), "tokens leaked");
    }
}

#[test]
fn the_place_of_a_sender_that_went_waits_for_its_loans() {
    let mut book = Book { is_chain: true, ..Book::default() };
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
    let mut book = Book { is_chain: true, ..Book::default() };
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
    assert_eq!((notices.len(), book.outstanding, book.unsettled), (0, 2, 0));
    book.retired_are_back();
    book.take_notices(channel, &mut notices);
    assert_eq!(notices, [(0, true), (1, true)]);
    assert_eq!((book.outstanding, book.free_tokens.len()), (0, book.tokens.len()));
}

#[test]
fn loans_of_a_closed_ring_come_back_together() {
    let mut book = Book { is_chain: true, ..Book::default() };
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
    assert_eq!((book.next_notice(channel), book.outstanding), (None, 1), "the third is of the new ring");
}

#[test]
fn an_entry_that_failed_in_the_middle_can_be_sent_again_in_its_place() {
    let mut book = Book::default();
    let channel = book.attach();
    book.is_chain = false;
    let push = |book: &mut Book| {
        let token = book.token();
        book.pushed(channel);
        token
    };
    let tokens: Vec<u32> = (0..6).map(|_| push(&mut book)).collect();
    for (token, r) in tokens.iter().zip([10, -libc::ECONNREFUSED, 10, -libc::EPERM, 10, -libc::EAGAIN]) {
        book.complete(result(*token, r, true));
    }
    assert_eq!(book.hole(0), Some((1, libc::ECONNREFUSED)));
    let again = push(&mut book);
    book.complete(result(again, 10, true));
    book.stand_in(1);
    // The last one doesn't count as a hole: nothing behind it was taken.
    assert_eq!((book.hole(0), book.hole(4)), (Some((3, libc::EPERM)), None));
    let mut sent = Vec::new();
    let behind = book.take_batch(&mut sent).unwrap_err();
    assert_eq!(behind.raw_os_error(), Some(libc::EAGAIN));
    let took = |id| Accepted { bytes: 10, id: Some(id), refused: None };
    let late = Accepted { refused: Some(libc::ECONNREFUSED), ..took(1) };
    assert_eq!(sent, [took(0), late, took(2), Accepted::lost(libc::EPERM), took(3)], "ids follow each other");
    // The failed entries' notifications come, too, and are nobody's.
    for token in tokens.iter().chain([&again]) {
        book.complete(notification(*token, false));
    }
    let mut notices = VecDeque::new();
    book.take_notices(channel, &mut notices);
    let mut ids: Vec<u32> = notices.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    assert_eq!((ids, book.outstanding), (vec![0, 1, 2, 3], 0));
    assert_eq!(book.free_tokens.len(), book.tokens.len(), "tokens leaked");
}

/// A sender's numbers begin at 0; here near their end.
#[test]
fn numbers_wrap_around_and_each_loan_comes_back_once() {
    use crate::send::{Ticket, Window};
    let first = u32::MAX - 2;
    let mut book = Book::default();
    let channel = book.attach();
    book.channels[channel as usize].next_id = first;
    let mut window = Window::starting_at(Ticket::new(u32::MAX), first);
    let lend = |book: &mut Book, window: &mut Window, count: u32| {
        book.is_chain = false;
        let tokens: Vec<u32> = (0..count)
            .map(|_| {
                let token = book.token();
                book.pushed(channel);
                token
            })
            .collect();
        tokens.iter().for_each(|token| book.complete(result(*token, 1, true)));
        let mut sent = Vec::new();
        book.take_batch(&mut sent).unwrap();
        for s in &sent {
            window.lend(vec![0].into(), s.id.unwrap(), false).unwrap();
        }
        (tokens, sent.into_iter().map(|s| s.id.unwrap()).collect::<Vec<_>>())
    };
    let (tokens, ids) = lend(&mut book, &mut window, 6);
    assert_eq!(ids, [u32::MAX - 2, u32::MAX - 1, u32::MAX, 0, 1, 2]);
    // Out of order, across the wrap.
    for at in [3, 2, 5] {
        book.complete(notification(tokens[at], at == 2));
    }
    let mut told = Vec::new();
    while let Some((id, copied)) = book.next_notice(channel) {
        told.push((id, copied));
        assert_eq!(window.notified(id, id, copied), Ok(1));
    }
    assert_eq!(told, [(0, false), (u32::MAX, true), (2, false)]);
    assert_eq!((window.outstanding(), book.outstanding), (3, 3));
    let (_, ids) = lend(&mut book, &mut window, 1);
    assert_eq!(ids, [3]);
    // The ring is closed with the rest out: each comes back, once.
    book.give_up(0);
    book.retired_are_back();
    while let Some((id, copied)) = book.next_notice(channel) {
        assert!(copied, "nobody knows");
        assert_eq!(window.notified(id, id, copied), Ok(1));
    }
    assert_eq!((window.outstanding(), window.ids_out(), book.outstanding), (0, 0, 0));
}
