use std::time::{Duration, Instant};

use zerowire_vhost::memory::{GuestMemory, Segment};
use zerowire_wire::doorbell::{ANY, only};
use zerowire_wire::mapped::PAGE;

use super::bell::TELL_AFTER;
use super::*;
use crate::held::Held;
use crate::mapped::DirectChain;

const HOLD: Duration = Duration::from_millis(100);

fn push(w: &mut Windows, bytes: &[u8], end: Option<u32>) -> usize {
    let mut held = Held::default();
    held.push_bytes(bytes);
    w.push_held(&held, bytes.len(), end)
}

fn chain(head: u16) -> DirectChain {
    DirectChain { head, descriptors: 1 }
}

fn windows(options: MapOptions, kind: Kind) -> Windows {
    Windows::new(options, kind).expect("memory").0
}

fn word(w: &Windows, window: u32, i: usize) -> u32 {
    w.memory.word(w.options.header_at(window) + 4 * i).load(Ordering::Relaxed)
}

fn release(w: &Windows, window: u32) {
    w.memory.word(w.options.header_at(window)).store(0, Ordering::Release);
}

/// The example of the layout's description.
#[test]
fn packets_of_56_4096_and_8200_bytes() {
    let mut w = windows(MapOptions::default().packed(false), Kind::Stream);
    for (n, len) in [(1u8, 56), (2, 4096), (3, 8200)] {
        assert_eq!(push(&mut w, &vec![n; len], None), len);
    }
    assert_eq!(word(&w, 0, 0), POLL_NOTHING);
    assert!(!w.settle());
    let head: Vec<u32> = (0..10).map(|i| word(&w, 0, i)).collect();
    assert_eq!(head, [POLL_DATA, 5, 56, 0, 4096, 0, 8200, 0, 0, 0].map(|n| n));
    let data = w.memory.data_for_tests();
    let page = |i: usize, at: usize| data[i * PAGE + at];
    assert_eq!((page(0, 55), page(0, 56), page(1, 4095)), (1, 0, 2));
    assert_eq!((page(2, 0), page(4, 7), page(4, 8)), (3, 3, 0));
}

#[test]
fn small_packets_of_a_stream_share_pages() {
    let mut w = windows(MapOptions::default(), Kind::Stream);
    for _ in 0..5000 {
        assert_eq!(push(&mut w, &[1], None), 1);
    }
    w.settle();
    assert_eq!([word(&w, 0, 1), word(&w, 0, 2), word(&w, 0, 4)], [2, 5000, 0]);
}

#[test]
fn messages_keep_their_bounds_in_parts() {
    let mut w = windows(MapOptions::default().data_pages(2), Kind::SeqPacket);
    push(&mut w, &[1; 10], None);
    push(&mut w, &[2; 20], Some(1));
    // A message that is longer than what is left of the window.
    assert_eq!(push(&mut w, &[3; 5000], Some(3)), 5000);
    w.settle();
    assert_eq!((2..8).map(|i| word(&w, 0, i)).collect::<Vec<_>>(), [30, 1, 4096, 0, 0, 0]);
    assert_eq!((2..6).map(|i| word(&w, 1, i)).collect::<Vec<_>>(), [904, 3, 0, 0]);
}

#[test]
fn an_end_that_comes_alone_is_told_once() {
    let mut w = windows(MapOptions::default(), Kind::SeqPacket);
    push(&mut w, &[1; 10], None);
    push(&mut w, &[], Some(1));
    w.settle();
    assert_eq!((word(&w, 0, 2), word(&w, 0, 3)), (10, 1));
    push(&mut w, &[], Some(1));
    assert!(!w.has_lost_end(), "an empty message is no end of the one before");
    push(&mut w, &[2; 10], None);
    w.settle();
    push(&mut w, &[], Some(1));
    assert!(w.has_lost_end(), "its part is the program's already");
}

#[test]
fn who_is_behind_gets_fuller_windows() {
    let mut w = windows(MapOptions::default().windows(2).data_pages(1), Kind::Stream);
    push(&mut w, &[1; 100], None);
    assert!(!w.settle());
    push(&mut w, &[2; 100], None);
    assert!(!w.settle(), "the program still has the other one");
    assert_eq!(word(&w, 1, 0), POLL_NOTHING);
    assert_eq!(push(&mut w, &[3; 5000], None), 3996, "no window is left");
    assert_eq!((word(&w, 1, 0), word(&w, 1, 2)), (POLL_DATA, 4096), "full");
    assert!(!w.wait_for_room());
    release(&w, 0);
    assert!(w.wait_for_room());
    push(&mut w, &[4; 10], None);
    assert!(!w.settle(), "the program still has the full one");
    assert_eq!(word(&w, 0, 0), POLL_NOTHING);
    release(&w, 1);
    w.settle();
    assert_eq!((word(&w, 0, 0), word(&w, 0, 2)), (POLL_DATA, 10));
}

fn sleeps(w: &Windows, yes: bool) {
    w.memory.word(PROGRAM_SLEEPS_AT).store(u32::from(yes), Ordering::Relaxed);
}

#[test]
fn who_sleeps_or_was_left_alone_gets_the_last_window() {
    for sleeping in [true, false] {
        let mut w = windows(MapOptions::default().windows(2), Kind::Stream);
        push(&mut w, &[1; 100], None);
        assert!(!w.settle() && !w.keeps_back());
        sleeps(&w, sleeping);
        push(&mut w, &[2; 100], None);
        assert!(!w.settle());
        assert_eq!(w.keeps_back(), !sleeping);
        w.publish_rest();
        assert_eq!((word(&w, 1, 0), word(&w, 1, 2)), (POLL_DATA, 100));
        assert!(!w.keeps_back());
        assert_eq!(push(&mut w, &[3; 100], None), 0, "it has both");
    }
    let mut w = windows(MapOptions::default().lowat(4096), Kind::Stream);
    sleeps(&w, true);
    push(&mut w, &[1; 100], None);
    w.settle();
    w.publish_rest();
    assert_eq!(word(&w, 0, 0), POLL_NOTHING, "below the low-water mark");
}

#[test]
fn the_end_comes_behind_the_last_byte_and_waits_for_a_window() {
    let mut w = windows(MapOptions::default().windows(2).lowat(4096), Kind::Stream);
    push(&mut w, &[1; 10], None);
    w.settle();
    assert_eq!(word(&w, 0, 0), POLL_NOTHING, "below the low-water mark");
    w.end();
    assert_eq!((word(&w, 0, 0), word(&w, 1, 0), w.ended), (POLL_DATA, POLL_END, Ended::Told));

    let mut w = windows(MapOptions::default().windows(2), Kind::Stream);
    for _ in 0..2 {
        push(&mut w, &[1; 512 << 10], None);
    }
    w.end();
    assert_eq!(w.ended, Ended::Due);
    release(&w, 0);
    w.settle();
    assert_eq!((word(&w, 0, 0), w.ended), (POLL_END, Ended::Told));
}

/// Guest memory of one region, windows that may be direct over it, and its first `n` pages as
/// packets.
fn direct_windows(options: MapOptions, n: usize) -> (GuestMemory, Windows, Vec<Segment>) {
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, 1 << 20).expect("its size");
    let (guest_addr, len) = (0, 1 << 20);
    let region = zerowire_vhost::memory::RegionConfig { guest_addr, len, user_addr: 0, offset: 0, file };
    let memory = GuestMemory::new(vec![region]).expect("memory");
    let mut w = windows(options.direct(true), Kind::Stream);
    w.direct = Some(Direct::new(&memory.read_only().expect("files"), options.windows, HOLD));
    let mut list = Vec::with_capacity(n);
    for i in 0..n {
        assert!(memory.translate(i as u64 * PAGE as u64, 100, &mut 0, &mut list));
    }
    (memory, w, list)
}

/// A window may come back and be filled again before anybody looked for its chains.
#[test]
fn chains_of_a_window_that_is_filled_again_are_not_taken_for_those_before() {
    let (memory, mut w, parts) = direct_windows(MapOptions::default().windows(2).lowat(4096), 4);
    let (mut heads, now) = (Vec::new(), Instant::now());
    for window in 0..2 {
        assert!(w.lend(&memory, &parts[window..=window], chain(window as u16), None, now));
        w.publish();
    }
    release(&w, 0);
    assert!(w.lend(&memory, &parts[2..3], chain(2), None, now), "the first window again");
    assert!(w.wait_for_chains(true), "one is back");
    w.take_back(&mut heads);
    assert_eq!(heads, [chain(0)], "the program has not even seen the new one");
    assert!(w.lends());
    w.publish();
    w.take_back(&mut heads);
    assert_eq!(heads, [chain(0)]);
    release(&w, 0);
    release(&w, 1);
    w.take_back(&mut heads);
    heads.sort_unstable_by_key(|c| c.head);
    assert_eq!(heads, [0, 1, 2].map(chain));
    assert!(!w.lends());
}

/// Out of order: chains that are back must not end the wait for another window.
#[test]
fn a_window_that_is_waited_for_stays_so_when_chains_come_back() {
    let (memory, mut w, parts) = direct_windows(MapOptions::default().windows(3), 1);
    push(&mut w, &[1; 100], None);
    w.publish();
    let now = Instant::now();
    assert!(w.lend(&memory, &parts, chain(0), None, now));
    w.publish();
    push(&mut w, &[2; 100], None);
    assert!(!w.settle(), "the program has the window behind this one");
    let announced = |w: &Windows| w.memory.word(DAEMON_WAITS_AT).load(Ordering::Relaxed) == only(0);
    assert!(announced(&w));
    release(&w, 1);
    assert!(w.wait_for_chains(false));
    assert!(announced(&w), "the release of window 0 must be told");
}

#[test]
fn the_program_is_asked_to_tell_of_the_release_that_matters() {
    let options = MapOptions::default().windows(8).data_pages(1);
    let mut w = windows(options, Kind::Stream);
    let asked = |w: &Windows| w.memory.word(DAEMON_WAITS_AT).load(Ordering::Relaxed);
    assert!(w.wait_for_bytes(1), "none is out");
    for _ in 0..6 {
        assert_eq!(push(&mut w, &[7; PAGE], None), PAGE);
        w.settle();
    }
    assert!(!w.wait_for_bytes(2 * PAGE as u32 + 1));
    assert_eq!(asked(&w), only(2), "three windows bring the bytes");
    assert!(!w.wait_for_bytes(1));
    assert_eq!(asked(&w), only(0), "one before it is told of first");
    // Out of order: the ones that are back are not waited for.
    release(&w, 0);
    release(&w, 2);
    w.told_of_release();
    assert_eq!(w.take_released(), PAGE as u32);
    assert!(!w.wait_for_bytes(2 * PAGE as u32));
    assert_eq!(asked(&w), only(1));
    // More than is out: the last one.
    w.told_of_release();
    assert!(!w.wait_for_bytes(u32::MAX));
    assert_eq!(asked(&w), only(5));
    (1..6).for_each(|i| release(&w, i));
    assert!(w.wait_for_bytes(1), "all are back");
    assert_eq!(w.take_released(), 5 * PAGE as u32);
}

#[test]
fn chains_are_told_of_when_all_are_back_or_one_by_one() {
    let (memory, mut w, parts) = direct_windows(MapOptions::default().windows(4), 1);
    let asked = |w: &Windows| w.memory.word(DAEMON_WAITS_AT).load(Ordering::Relaxed);
    assert!(!w.wait_for_chains(false));
    assert_eq!(asked(&w), 0, "nothing is lent");
    for head in 0..3 {
        assert!(w.lend(&memory, &parts, chain(head), None, Instant::now()));
        w.publish();
    }
    assert!(!w.wait_for_chains(false));
    assert_eq!(asked(&w), only(2));
    assert!(!w.wait_for_chains(true));
    assert_eq!(asked(&w), ANY);
    release(&w, 1);
    assert!(w.wait_for_chains(false), "one is back");
}

/// Windows that are published in one turn wake the program once.
#[test]
fn a_sleeping_program_is_woken_once_a_turn() {
    let options = MapOptions::default().windows(8).data_pages(1);
    let (mut w, files) = Windows::new(options, Kind::Stream).expect("memory");
    let sleeps = |w: &Windows| w.memory.word(PROGRAM_SLEEPS_AT).store(1, Ordering::Relaxed);
    let words = || {
        let mut bytes = [0; 8];
        rustix::io::read(&files.ready, &mut bytes).unwrap_or(0)
    };
    sleeps(&w);
    push(&mut w, &[1; 3 * PAGE + 1], None);
    assert_eq!(words(), 0, "the turn goes on");
    w.settle();
    w.tell();
    assert_eq!(words(), 1);
    w.tell();
    sleeps(&w);
    w.tell();
    assert_eq!(words(), 0, "nothing new");
    w.end();
    assert_eq!(words(), 1, "the end");
    // Not after a turn that publishes very much.
    let options = MapOptions::default().windows(8).data_pages(64);
    let (mut w, files) = Windows::new(options, Kind::Stream).expect("memory");
    w.memory.word(PROGRAM_SLEEPS_AT).store(1, Ordering::Relaxed);
    push(&mut w, &vec![1; TELL_AFTER + 1], None);
    assert_eq!(rustix::io::read(&files.ready, &mut [0; 8]), Ok(1));
}

#[test]
fn entries_may_fill_several_header_pages() {
    let options = MapOptions::default().header_pages(2).data_pages(2048).packed(false);
    let mut w = windows(options, Kind::Stream);
    for _ in 0..1022 {
        assert_eq!(push(&mut w, &[1], None), 1);
    }
    assert_eq!(word(&w, 0, 0), POLL_NOTHING);
    push(&mut w, &[1], None);
    assert_eq!((word(&w, 0, 0), word(&w, 0, 1)), (POLL_DATA, 1022));
}

/// The bound in time: counted from the first chain of a window on, published or not; it ends when
/// all chains are back.
#[test]
fn past_the_hold_time_nothing_is_lent_before_all_is_back() {
    let (memory, mut w, parts) = direct_windows(MapOptions::default().windows(3), 4);
    let (mut chains, start) = (Vec::new(), Instant::now());
    let just = Duration::from_nanos(1);
    assert!(w.lend(&memory, &parts[..1], chain(0), None, start));
    w.publish();
    let later = start + HOLD / 2;
    assert!(w.lend(&memory, &parts[1..2], chain(1), None, later));
    w.publish();
    assert!(w.lend(&memory, &parts[2..3], chain(2), None, start + HOLD), "not longer than the hold time");
    w.publish();
    release(&w, 2);
    w.take_back(&mut chains);
    assert_eq!(chains, [chain(2)], "out of order");
    assert!(!w.lend(&memory, &parts[3..], chain(3), None, start + HOLD + just), "window 0 is held");
    release(&w, 0);
    w.take_back(&mut chains);
    assert!(!w.lend(&memory, &parts[3..], chain(3), None, start + HOLD + just), "window 1 is still out");
    release(&w, 1);
    w.take_back(&mut chains);
    assert_eq!(chains, [2, 0, 1].map(chain));
    let again = start + 2 * HOLD;
    assert!(w.lend(&memory, &parts[3..], chain(3), None, again), "all is back");
    assert!(w.lend(&memory, &parts[3..], chain(0), None, again + HOLD));
    assert!(
        !w.lend(&memory, &parts[3..], chain(1), None, again + HOLD + just),
        "although the program has not got it"
    );
}

/// Copied payload goes behind lent one, in the same window; credit is counted for what was copied
/// alone.
#[test]
fn what_is_copied_past_the_hold_time_comes_behind_what_was_lent() {
    let (memory, mut w, parts) = direct_windows(MapOptions::default().windows(2).lowat(4096), 1);
    assert!(w.lend(&memory, &parts, chain(0), None, Instant::now()));
    assert_eq!(push(&mut w, &[7; 50], None), 50);
    w.publish();
    let head: Vec<u32> = (0..10).map(|i| word(&w, 0, i)).collect();
    assert_eq!(head[..2], [POLL_DATA, 1]);
    assert_eq!((head[2], head[3] & 7, head[6], head[7], head[8]), (100, 4, 50, 0, 0));
    release(&w, 0);
    assert_eq!(w.take_released(), 50);
}
