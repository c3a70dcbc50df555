//! Places in both kinds of queue, and rings of this machine.

use std::os::fd::AsRawFd;

use super::*;
use rustix::event::{EventfdFlags, eventfd};

fn packed(result: i32, flags: u32) -> u64 {
    let both = (u64::from(flags) << 32) | u64::from(result as u32);
    if cfg!(target_endian = "big") { both.rotate_left(32) } else { both }
}

fn all(kind: Completions, head: u32, tail: u32, words: &[u64]) -> Vec<(u64, i32, u64)> {
    let mask = (words.len() / place_words(kind)) as u32 - 1;
    let (mut head, mut out) = (head, Vec::new());
    loop {
        let (cqe, next) = read_at(kind, head, tail, mask, |i| words[i]);
        head = next;
        match cqe {
            Some(c) => out.push((c.user_data, c.result, c.extra)),
            None => return out,
        }
    }
}

#[test]
fn wide_completions_are_read_over_the_end() {
    let words = [3, packed(30, 0), 33, 0, 4, packed(-40, 2), 44, 0];
    assert_eq!(all(Completions::Wide, 1, 3, &words), [(4, -40, 44), (3, 30, 33)]);
    assert_eq!(all(Completions::Wide, u32::MAX, 1, &words), [(4, -40, 44), (3, 30, 33)]);
    assert_eq!(all(Completions::Wide, 2, 2, &words), []);
}

#[test]
fn mixed_completions_have_their_own_lengths_and_fillers() {
    let words = [1, packed(10, 0), 2, packed(20, CQE_F_32), 22, 0, 0, packed(0, CQE_F_SKIP)];
    assert_eq!(all(Completions::Mixed, 0, 4, &words), [(1, 10, 0), (2, 20, 22)]);
    // A wide one at the last place is not read past the end.
    let words = [1, packed(1, 0), 2, packed(2, CQE_F_32)];
    assert_eq!(all(Completions::Mixed, 1, 3, &words), [(2, 2, 0)]);
}

#[test]
fn entries_go_through_both_kinds_of_ring() {
    for kind in [Completions::Wide, Completions::Mixed] {
        let mut ring = WideRing::new(2, 4, kind).expect("Linux 6.18 is needed for this test");
        let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        // More than either queue holds: nothing is lost, and nothing comes twice.
        for round in 0..9 {
            assert!(ring.push(Entry::readable(bell.as_raw_fd(), 2 * round)));
            assert!(ring.push(Entry::cancel(77, 2 * round + 1)));
            assert!(!ring.push(Entry::cancel(77, 99)), "the batch is full");
            ring.enter(2, None).unwrap();
            let mut got = [ring.pop().unwrap(), ring.pop().unwrap()];
            got.sort_by_key(|c| c.user_data);
            assert_eq!((got[0].user_data, got[0].result), (2 * round, i32::from(libc::POLLIN)));
            assert_eq!((got[1].user_data, got[1].result), (2 * round + 1, -libc::ENOENT));
            assert_eq!(ring.pop(), None);
        }
        ring.enter(1, Some(Duration::from_millis(1))).expect("a timeout is no error");
    }
}

#[test]
fn a_full_queue_overflows_and_recovers() {
    let mut ring = WideRing::new(2, 2, Completions::Wide).unwrap();
    for i in 0..6 {
        while !ring.push(Entry::cancel(77, i)) {
            ring.enter(0, Some(Duration::ZERO)).unwrap();
        }
    }
    ring.enter(0, Some(Duration::ZERO)).unwrap();
    assert!(ring.has_overflowed());
    let mut seen = Vec::new();
    while seen.len() < 6 {
        while let Some(c) = ring.pop() {
            seen.push(c.user_data);
        }
        ring.enter(0, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert!(!ring.has_overflowed());
}
