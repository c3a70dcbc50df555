//! Rings in memory of the test's own: it plays the other side.

use super::*;
use proptest::prelude::*;

/// The memory of a ring, and the other side's view of it.
struct Board {
    words: Box<[AtomicU32; 3]>,
    entries: Vec<u64>,
}

impl Board {
    /// Both indices begin at `start`.
    fn new(size: usize, start: u32) -> Self {
        let words = Box::new([AtomicU32::new(start), AtomicU32::new(start), AtomicU32::new(0)]);
        Self { words, entries: vec![0; size] }
    }

    fn shared(&mut self, size: u32) -> Option<SharedRing<u64>> {
        let word = |w: &AtomicU32| NonNull::from(w);
        let [producer, consumer, flags] = &*self.words;
        let entries = NonNull::new(self.entries.as_mut_ptr()).expect("an address");
        // SAFETY: the board outlives the ring in every test, and is accessed by atomics, or while
        // the ring is idle.
        unsafe { SharedRing::from_parts(word(producer), word(consumer), word(flags), entries, size, None) }
    }

    fn entry(&self, index: u32) -> u64 {
        // SAFETY: in bounds; volatile, as the ring writes through a pointer.
        unsafe { self.entries.as_ptr().add(index as usize & (self.entries.len() - 1)).read_volatile() }
    }

    fn set_entry(&mut self, index: u32, value: u64) {
        let at = index as usize & (self.entries.len() - 1);
        // SAFETY: in bounds; the ring is idle.
        unsafe { self.entries.as_mut_ptr().add(at).write_volatile(value) };
    }

    fn producer(&self) -> &AtomicU32 {
        &self.words[0]
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.words[1]
    }
}

#[test]
fn only_powers_of_two() {
    for size in [0, 3, 6] {
        assert!(Board::new(8, 0).shared(size).is_none(), "{size}");
    }
    assert!(Board::new(1, 0).shared(1).is_some());
}

#[test]
fn a_full_ring_takes_no_more_until_the_other_side_took_some() {
    let mut board = Board::new(4, u32::MAX - 1);
    let mut ring = Producer::with(board.shared(4).expect("a ring"));
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
    let mut board = Board::new(2, u32::MAX);
    let mut ring = Consumer::with(board.shared(2).expect("a ring"));
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
    let mut board = Board::new(4, 0);
    let mut ring = Producer::with(board.shared(4).expect("a ring"));
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
    let mut board = Board::new(4, 0);
    let mut ring = Producer::with(board.shared(4).expect("a ring"));
    // Claims to have taken what was never given.
    board.consumer().store(1000, Ordering::Relaxed);
    assert!(ring.room(5) <= 4);
    assert!(ring.waiting() <= 4);
    let mut board = Board::new(4, 0);
    let mut ring = Consumer::with(board.shared(4).expect("a ring"));
    board.producer().store(1000, Ordering::Relaxed);
    assert_eq!(ring.available(), 4);
    assert_eq!(ring.pop(), Some(0));
}

#[test]
fn the_kernel_asks_for_a_call_by_a_flag() {
    let mut board = Board::new(2, 0);
    let ring = Producer::with(board.shared(2).expect("a ring"));
    assert!(!ring.needs_wakeup());
    board.words[2].store(1, Ordering::Relaxed);
    assert!(ring.needs_wakeup());
}

#[test]
fn two_threads_pass_every_entry_once_and_in_order() {
    let mut board = Board::new(8, u32::MAX - 100);
    let mut producer = Producer::with(board.shared(8).expect("a ring"));
    let mut consumer = Consumer::with(board.shared(8).expect("a ring"));
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
        let mut board = Board::new(4, start);
        let mut producer = Producer::with(board.shared(4).expect("a ring"));
        let mut consumer = Consumer::with(board.shared(4).expect("a ring"));
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
