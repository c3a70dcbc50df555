//! Rings in memory of the test's own: it plays the other side.

use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

/// The memory of a ring, and the other side's view of it.
struct Board {
    file: OwnedFd,
    view: SharedRing<u64>,
}

fn mapped(file: &OwnedFd) -> Mapping {
    Mapping::shared(file, 0, 4096).expect("a mapping")
}

impl Board {
    /// Both indices begin at `start`.
    fn new(size: u32, start: u32) -> Self {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, 4096).expect("its length");
        let view = SharedRing::new(mapped(&file), LAYOUT, size).expect("a ring");
        view.producer().store(start, Ordering::Relaxed);
        view.consumer().store(start, Ordering::Relaxed);
        Self { file, view }
    }

    fn shared(&self) -> SharedRing<u64> {
        SharedRing::new(mapped(&self.file), LAYOUT, self.view.entries.len()).expect("a ring")
    }

    fn entry(&self, index: u32) -> u64 {
        self.view.entries.read(index)
    }

    fn set_entry(&self, index: u32, value: u64) {
        self.view.entries.write(index, &value);
    }

    fn producer(&self) -> &AtomicU32 {
        self.view.producer()
    }

    fn consumer(&self) -> &AtomicU32 {
        self.view.consumer()
    }
}

#[test]
fn only_powers_of_two_and_parts_inside() {
    let ring = |layout, size| SharedRing::<u64>::new(Mapping::private(4096).expect("memory"), layout, size);
    for size in [0, 3, 6] {
        assert!(ring(LAYOUT, size).is_none(), "{size}");
    }
    assert!(ring(LAYOUT, 1).is_some());
    assert!(ring(Layout { entries: 4088, ..LAYOUT }, 1).is_some());
    for layout in [
        Layout { entries: 4096, ..LAYOUT },
        Layout { entries: 196, ..LAYOUT },
        Layout { entries: usize::MAX - 7, ..LAYOUT },
        Layout { producer: 4096, ..LAYOUT },
        Layout { consumer: 2, ..LAYOUT },
        Layout { flags: usize::MAX - 3, ..LAYOUT },
    ] {
        assert!(ring(layout, 1).is_none(), "{layout:?}");
    }
}

#[test]
fn a_full_ring_takes_no_more_until_the_other_side_took_some() {
    let board = Board::new(4, u32::MAX - 1);
    let mut ring = Producer::with(board.shared());
    assert_eq!(ring.room(1), 4);
    for n in 0..4 {
        assert!(ring.push(n));
    }
    assert!(!ring.push(9));
    assert_eq!(
        board.producer().load(Ordering::Relaxed),
        u32::MAX - 1,
        "nothing is seen before it is published"
    );
    assert_eq!(ring.publish(), 4);
    assert_eq!(ring.publish(), 0);
    assert_eq!(board.producer().load(Ordering::Relaxed), 2, "the index wraps");
    assert_eq!(ring.waiting(), 4);
    assert_eq!((0..4).map(|i| board.entry(i)).collect::<Vec<_>>(), [2, 3, 0, 1]);
    board.consumer().store(u32::MAX, Ordering::Relaxed);
    assert_eq!(ring.room(1), 1);
    assert!(ring.push(4));
    assert!(!ring.push(5));
    assert_eq!(board.entry(2), 4);
}

#[test]
fn an_empty_ring_gives_nothing() {
    let board = Board::new(2, u32::MAX);
    let mut ring = Consumer::with(board.shared());
    assert_eq!(ring.pop(), None);
    board.set_entry(u32::MAX, 7);
    board.set_entry(0, 8);
    board.producer().store(1, Ordering::Release);
    assert_eq!(ring.available(), 2);
    assert_eq!(ring.pop(), Some(7));
    assert_eq!(ring.pop(), Some(8));
    assert_eq!(ring.pop(), None);
    assert_eq!(board.consumer().load(Ordering::Relaxed), u32::MAX, "places are given back by release");
    assert_eq!(ring.release(), 2);
    assert_eq!(board.consumer().load(Ordering::Relaxed), 1);
}

#[test]
fn entries_that_nobody_took_come_back() {
    let board = Board::new(4, 0);
    let mut ring = Producer::with(board.shared());
    for n in [10, 11, 12] {
        ring.push(n);
    }
    ring.publish();
    ring.push(13);
    board.consumer().store(1, Ordering::Relaxed);
    let mut back = Vec::new();
    assert_eq!(ring.take_back(|n| back.push(n)), 3);
    assert_eq!(back, [11, 12, 13]);
    assert_eq!(board.producer().load(Ordering::Relaxed), 1);
    assert_eq!((ring.waiting(), ring.room(4)), (0, 4));
}

#[test]
fn wrong_indices_of_the_other_side_never_leave_the_ring() {
    let board = Board::new(4, 0);
    let mut ring = Producer::with(board.shared());
    // Claims to have taken what was never given.
    board.consumer().store(1000, Ordering::Relaxed);
    assert!(ring.room(5) <= 4);
    assert!(ring.waiting() <= 4);
    let board = Board::new(4, 0);
    let mut ring = Consumer::with(board.shared());
    board.producer().store(1000, Ordering::Relaxed);
    assert_eq!(ring.available(), 4);
    assert_eq!(ring.pop(), Some(0));
}

#[test]
fn the_kernel_asks_for_a_call_by_a_flag() {
    let board = Board::new(2, 0);
    let ring = Producer::with(board.shared());
    assert!(!ring.needs_wakeup());
    board.view.entries.memory().word(LAYOUT.flags).store(1, Ordering::Relaxed);
    assert!(ring.needs_wakeup());
}

#[test]
fn two_threads_pass_every_entry_once_and_in_order() {
    let board = Board::new(8, u32::MAX - 100);
    let mut producer = Producer::with(board.shared());
    let mut consumer = Consumer::with(board.shared());
    const COUNT: u64 = 20_000;
    std::thread::scope(|s| {
        s.spawn(move || {
            for n in 0..COUNT {
                while !producer.push(n) {
                    producer.publish();
                    std::thread::yield_now();
                }
                if n % 3 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let mut expected = 0;
        while expected < COUNT {
            match consumer.pop() {
                Some(n) => {
                    assert_eq!(n, expected);
                    expected += 1;
                }
                None => {
                    consumer.release();
                    std::thread::yield_now();
                }
            }
        }
        assert_eq!(consumer.pop(), None);
    });
}

proptest! {
    /// Any order of steps against a queue.
    #[test]
    fn like_a_queue(steps in prop::collection::vec(0u8..5, 0..200), start: u32) {
        let board = Board::new(4, start);
        let mut producer = Producer::with(board.shared());
        let mut consumer = Consumer::with(board.shared());
        let mut model = std::collections::VecDeque::new();
        let (mut pushed, mut published, mut popped, mut released) = (0u64, 0u64, 0u64, 0u64);
        for step in steps {
            match step {
                0 | 1 => {
                    prop_assert_eq!(producer.push(pushed), pushed - released < 4);
                    if pushed - released < 4 {
                        model.push_back(pushed);
                        pushed += 1;
                    }
                }
                2 => {
                    prop_assert_eq!(u64::from(producer.publish()), pushed - published);
                    published = pushed;
                }
                3 => match consumer.pop() {
                    Some(n) => {
                        prop_assert!(popped < published);
                        prop_assert_eq!(Some(n), model.pop_front());
                        popped += 1;
                    }
                    None => prop_assert_eq!(popped, published),
                },
                _ => {
                    prop_assert_eq!(u64::from(consumer.release()), popped - released);
                    released = popped;
                }
            }
        }
    }
}
