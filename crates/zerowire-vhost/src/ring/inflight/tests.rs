//! Deaths at every point: no chain is lost, none comes back twice, and no frame is sent twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use rustix::fs::MemfdFlags;

use super::testing::{Driver, SIZE, USED};
use super::{InflightRegion, Recovered, Tracker};
use crate::ring::{SplitRing, UsedOrder};

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize),
    Take,
    /// The frame of one that was taken goes to the kernel.
    HandOn(usize),
    Use(usize),
    Publish,
    Untake(usize),
    /// The memory moves.
    Move,
    Die,
    /// Death after the store of the used index, when this many marks of the batch were taken away.
    DieInPublish(usize),
    /// GET_VRING_BASE; everything was used before.
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0usize..8;
    prop_oneof![
        8 => n().prop_map(Step::Add),
        8 => Just(Step::Take),
        2 => n().prop_map(Step::HandOn),
        5 => n().prop_map(Step::Use),
        3 => Just(Step::Publish),
        1 => n().prop_map(Step::Untake),
        1 => Just(Step::Move),
        1 => Just(Step::Die),
        1 => n().prop_map(Step::DieInPublish),
        1 => Just(Step::Stop),
    ]
}

/// What a device process has in its own memory.
struct Device {
    ring: SplitRing,
    /// Taken and not used, in order.
    held: Vec<u16>,
    /// Taken, in order, used or not.
    order: Vec<u16>,
    batch: Vec<u16>,
}

impl Device {
    fn start(driver: &mut Driver) -> Self {
        let (ring, _) = driver.device();
        // What was handed on has come back.
        driver.reap();
        assert!(driver.out.values().all(|handed_on| !handed_on), "handed on and not given back");
        Self { ring, held: Vec::new(), order: Vec::new(), batch: Vec::new() }
    }

    fn take(&mut self, driver: &Driver) -> bool {
        let Some(head) = self.ring.take().unwrap() else { return false };
        assert_eq!(
            driver.out.get(&head),
            Some(&false),
            "head {head} is not the device's, or was handed on before"
        );
        assert!(!self.held.contains(&head), "head {head} was taken twice");
        self.held.push(head);
        self.order.push(head);
        true
    }

    fn give(&mut self, i: usize) {
        let head = self.held.remove(i);
        self.ring.push_used(head, 0);
        self.batch.push(head);
    }
}

fn run(steps: &[Step], from: u16, order: UsedOrder) {
    let mut driver = Driver::new(from);
    driver.order = order;
    let mut device = Device::start(&mut driver);
    for s in steps {
        let held = device.held.len();
        match *s {
            Step::Add(pick) => driver.add(pick),
            Step::Take => {
                device.take(&driver);
            }
            Step::HandOn(i) if held > 0 => {
                let head = device.held[i % held];
                device.ring.hand_on(std::iter::once(head));
                driver.out.insert(head, true);
            }
            Step::Use(i) if held > 0 => device.give(if order == UsedOrder::Any { i % held } else { 0 }),
            Step::Publish => {
                device.ring.publish();
                device.batch.clear();
                driver.reap();
            }
            // Only those that were taken last, and none whose frames may be out.
            Step::Untake(n) => {
                let pairs = device.held.iter().rev().zip(device.order.iter().rev());
                let tail = pairs.take_while(|(h, o)| h == o && !driver.out[h]).count().min(n);
                device.order.truncate(device.order.len() - tail);
                let rest = device.held.split_off(held - tail);
                device.ring.untake(rest.into_iter());
            }
            Step::Move => {
                device.ring.publish();
                device.batch.clear();
                driver.reap();
                let mut ring = driver.ring(device.ring.next_avail());
                ring.put_tracker(device.ring.take_tracker());
                device.ring = ring;
            }
            Step::Die => device = Device::start(&mut driver),
            Step::DieInPublish(n) => {
                driver.put(USED + 2, device.ring.next_used());
                for head in device.batch.iter().take(n) {
                    driver.place().inflight(*head).store(0, Ordering::Relaxed);
                }
                driver.reap();
                device = Device::start(&mut driver);
            }
            Step::Stop => {
                while !device.held.is_empty() {
                    device.give(0);
                }
                device.ring.end_tracking(false);
                let base = device.ring.next_avail();
                driver.reap();
                assert_eq!(base, driver.get(USED + 2), "nothing is in flight of a ring that has stopped");
                assert_eq!(driver.place().version().load(Ordering::Relaxed), 0);
                device = Device::start(&mut driver);
            }
            _ => {}
        }
    }
    while device.take(&driver) {}
    while !device.held.is_empty() {
        device.give(0);
    }
    device.ring.publish();
    driver.reap();
    assert!(driver.out.is_empty(), "never came back: {:?}", driver.out);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_death_loses_a_chain_or_gives_one_back_twice(
        steps in proptest::collection::vec(step(), 1..120),
        from in prop_oneof![Just(0u16), Just(u16::MAX - 5), any::<u16>()],
        order in proptest::sample::select(vec![UsedOrder::Any, UsedOrder::Each, UsedOrder::Batch]),
    ) {
        run(&steps, from, order);
    }

    /// Marks are taken away from the last one on: whatever is left of them is a beginning of the
    /// available ring.
    #[test]
    fn a_death_while_marks_are_taken_away_loses_nothing(taken in 0..=SIZE, gone in 0..=SIZE) {
        let mut driver = Driver::new(3);
        (0..8).for_each(|_| driver.add(0));
        let mut device = Device::start(&mut driver);
        (0..taken).for_each(|_| assert!(device.take(&driver)));
        for head in device.held.iter().rev().take(usize::from(gone)) {
            driver.place().inflight(*head).store(0, Ordering::Relaxed);
        }
        let mut device = Device::start(&mut driver);
        while device.take(&driver) {}
        prop_assert_eq!(device.held, (0..SIZE).collect::<Vec<_>>());
    }

    #[test]
    fn no_content_does_harm(bytes in proptest::collection::vec(any::<u8>(), 16 + 16 * usize::from(SIZE)), plausible: bool) {
        let mut driver = Driver::new(100);
        (0..5).for_each(|i| driver.add(i));
        let p = driver.place();
        for head in 0..SIZE {
            let entry = &bytes[16 + 16 * usize::from(head)..];
            p.inflight(head).store(entry[0], Ordering::Relaxed);
            p.handed_on(head).store(entry[1], Ordering::Relaxed);
            p.next(head).store(u16::from_le_bytes([entry[6], entry[7]]), Ordering::Relaxed);
            p.counter(head).store(u64::MAX - u64::from(entry[8]), Ordering::Relaxed);
        }
        let word = |i: usize| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        p.version().store(if plausible { 1 } else { word(8) }, Ordering::Relaxed);
        p.desc_num().store(if plausible { SIZE } else { word(10) }, Ordering::Relaxed);
        p.last_batch_head().store(if plausible { word(12) % SIZE } else { word(12) }, Ordering::Relaxed);
        p.used_idx().store(if plausible { 100 - word(14) % SIZE } else { word(14) }, Ordering::Relaxed);
        let mut ring = driver.ring(100);
        if ring.track(driver.tracker()).is_ok() {
            // What it gives is heads of this ring, and an end of them comes.
            let mut n = 0;
            while let Ok(Some(head)) = ring.take() {
                prop_assert!(head < SIZE);
                n += 1;
                prop_assert!(n <= 2 * SIZE);
            }
        }
    }
}

#[test]
fn chains_that_were_used_in_order_leave_nothing_to_remember() {
    let mut driver = Driver::new(0);
    (0..6).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..5).for_each(|_| assert!(device.take(&driver)));
    (0..2).for_each(|_| device.give(0));
    device.ring.publish();
    driver.reap();
    let (ring, recovered) = driver.device();
    assert_eq!(recovered, Recovered { again: 3, unsure: 0 });
    assert_eq!(ring.next_avail(), 2, "the ring was rewound");
    let marks: Vec<u8> = (0..SIZE).map(|h| driver.place().inflight(h).load(Ordering::Relaxed)).collect();
    assert_eq!(marks, [0; SIZE as usize]);
}

#[test]
fn chains_out_of_order_come_again_in_the_order_in_which_they_were_taken() {
    let mut driver = Driver::new(0);
    // Heads 0 to 7, of which 0, 3 and 5 stay out while the others come and go.
    (0..8).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    while device.take(&driver) {}
    for head in [7, 1, 2, 6, 4] {
        let i = device.held.iter().position(|h| *h == head).unwrap();
        device.give(i);
    }
    device.ring.publish();
    driver.reap();
    // Their places in the available ring are written over.
    (0..5).for_each(|_| driver.add(4));
    let mut device = Device::start(&mut driver);
    assert_eq!(device.ring.refresh(), Ok(8));
    for _ in 0..4 {
        assert!(device.take(&driver));
    }
    assert_eq!(device.held[..3], [0, 3, 5]);
    // A second death, when one of them has been given back.
    device.give(1);
    device.ring.publish();
    driver.reap();
    let mut device = Device::start(&mut driver);
    while device.take(&driver) {}
    assert_eq!(device.held[..2], [0, 5]);
    assert_eq!(device.held.len(), 7);
}

#[test]
fn frames_that_were_handed_on_are_given_back_and_not_sent_again() {
    let mut driver = Driver::new(0);
    (0..6).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..5).for_each(|_| assert!(device.take(&driver)));
    device.ring.hand_on([0, 1, 3].into_iter());
    let (mut ring, recovered) = driver.device();
    assert_eq!(recovered, Recovered { again: 2, unsure: 3 });
    driver.reap();
    let rest: Vec<u16> = std::iter::from_fn(|| ring.take().unwrap()).collect();
    assert_eq!(rest, [2, 4, 5]);
}

/// The port had no room for a frame, which is in flight from a death before.
#[test]
fn a_chain_that_goes_back_after_it_was_handed_on_is_sent_after_the_next_death() {
    let mut driver = Driver::new(0);
    (0..3).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..3).for_each(|_| assert!(device.take(&driver)));
    device.give(1);
    device.ring.publish();
    let (mut ring, recovered) = driver.device();
    assert_eq!(recovered, Recovered { again: 2, unsure: 0 });
    assert_eq!(ring.take().unwrap(), Some(0));
    ring.hand_on(std::iter::once(0));
    ring.untake(std::iter::once(0));
    let (mut ring, recovered) = driver.device();
    assert_eq!(recovered, Recovered { again: 2, unsure: 0 });
    let rest: Vec<u16> = std::iter::from_fn(|| ring.take().unwrap()).collect();
    assert_eq!(rest, [0, 2]);
}

/// Heads 0 to 5 are taken; 2 and 4 were not handed on, since their frames were dropped.
#[test]
fn chains_before_one_that_was_handed_on_go_back_with_it_in_a_ring_in_order() {
    let mut driver = Driver::new(0);
    driver.order = UsedOrder::Batch;
    (0..7).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..6).for_each(|_| assert!(device.take(&driver)));
    device.ring.hand_on([0, 1, 3].into_iter());
    let (mut ring, recovered) = driver.device();
    assert_eq!(recovered, Recovered { again: 2, unsure: 4 });
    assert_eq!((driver.get(USED + 2), driver.get(USED + 4)), (4, 3), "one element for all");
    assert_eq!(ring.next_avail(), 4);
    let rest: Vec<u16> = std::iter::from_fn(|| ring.take().unwrap()).collect();
    assert_eq!(rest, [4, 5, 6]);
}

#[test]
fn chains_in_flight_that_are_not_the_next_ones_are_refused_in_a_ring_in_order() {
    let mut driver = Driver::new(0);
    driver.order = UsedOrder::Each;
    (0..4).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..2).for_each(|_| assert!(device.take(&driver)));
    driver.place().inflight(0).store(0, Ordering::Relaxed);
    let refusal = driver.refusal();
    assert!(refusal.contains("IN_ORDER was negotiated") && refusal.contains("used index 0"), "{refusal}");
}

#[test]
fn a_region_that_is_not_the_ring_s_is_refused_with_a_text_that_says_why() {
    let mut driver = Driver::new(50);
    (0..3).for_each(|_| driver.add(0));
    drop(driver.device());
    let p = driver.place();
    p.used_idx().store(20, Ordering::Relaxed);
    assert!(
        driver.refusal().contains("left at used index 20, and the ring is at 50"),
        "{}",
        driver.refusal()
    );
    p.used_idx().store(49, Ordering::Relaxed);
    p.last_batch_head().store(SIZE, Ordering::Relaxed);
    assert!(driver.refusal().contains("names head 8 of a ring of 8"), "{}", driver.refusal());
    p.used_idx().store(50, Ordering::Relaxed);
    (0..5).for_each(|h| p.inflight(h).store(1, Ordering::Relaxed));
    assert!(driver.refusal().contains("5 chains were in flight"), "{}", driver.refusal());
    p.desc_num().store(4, Ordering::Relaxed);
    assert!(driver.refusal().contains("4 entries, where it must have 0 and 8"), "{}", driver.refusal());
    p.version().store(2, Ordering::Relaxed);
    assert!(driver.refusal().contains("version 2; only 1 is known"), "{}", driver.refusal());
    assert!(driver.refusal().starts_with("queue 1: "));
    // After a reset of the device the same region will do.
    driver.region.clear();
    assert_eq!(driver.device().1, Recovered::default());
}

/// A ring whose memory went stops with its marks. Its driver begins anew where the front end does
/// not say that the device was reset.
#[test]
fn marks_that_can_not_be_the_rings_are_forgotten_in_a_region_of_this_side() {
    let mut driver = Driver::new(50);
    (0..3).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    assert!(device.take(&driver));
    drop(device);
    let mut anew = Driver::new(0);
    anew.region = driver.region.clone();
    anew.add(0);
    assert!(anew.refusal().contains("left at used index 50"), "{}", anew.refusal());
    let mut ring = anew.ring(0);
    let recovered = ring.track(Box::new(anew.tracker().of_this_side()));
    assert_eq!(recovered, Ok(Recovered::default()));
    assert_eq!(ring.take(), Ok(Some(0)));
    // From then on the marks are the ring's.
    assert_eq!(anew.device().1, Recovered { again: 1, unsure: 0 });
}

#[test]
fn a_ring_longer_than_its_place_is_refused_and_one_without_a_place_is_not_tracked() {
    let driver = Driver::new(0);
    let small = Arc::new(InflightRegion::create(1, SIZE / 2).unwrap().0);
    let error = driver.ring(0).track(Box::new(Tracker::new(&small, 0).unwrap())).unwrap_err();
    assert!(error.contains("the ring has 8 entries, its in-flight region 4"), "{error}");
    assert!(Tracker::new(&small, 1).is_none());
}

#[test]
fn files_are_checked_before_they_are_mapped() {
    let (_, file) = InflightRegion::create(2, 256).unwrap();
    let needed = InflightRegion::bytes_for(2, 256) as u64;
    assert_eq!(needed, 2 * (16 + 16 * 256_u64).next_multiple_of(64));
    let open = |offset, len, queues, size| InflightRegion::open(&file, offset, len, queues, size);
    assert!(open(0, needed, 2, 256).is_ok());
    // A front end may have mapped more than it needs.
    assert!(open(0, u64::MAX, 2, 256).is_ok());
    for (offset, len, queues, size, word) in [
        (0, needed - 1, 2, 256, "a region of 8319 bytes, where 2 queues of 256 entries take 8320"),
        (0, u64::MAX, 3, 256, "the file ends at 8320"),
        (4096, needed, 2, 256, "the file ends at"),
        (u64::MAX - 4095, needed, 2, 256, "the file ends at"),
        (1 << 63, needed, 2, 256, "the file ends at"),
        (64, needed, 2, 256, "is not a multiple of its file's page size 4096"),
        (0, needed, 512, 32768, "bytes, where 512 queues"),
    ] {
        let error = open(offset, len, queues, size).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    // Nobody can take the memory away from under either side.
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
}

#[test]
fn a_file_that_is_made_shorter_later_ends_nothing() {
    let mut driver = Driver::new(0);
    let file = rustix::fs::memfd_create("region", MemfdFlags::CLOEXEC).unwrap();
    let len = InflightRegion::bytes_for(2, SIZE) as u64;
    rustix::fs::ftruncate(&file, len).unwrap();
    driver.region = Arc::new(InflightRegion::open(&file, 0, len, 2, SIZE).unwrap());
    (0..8).for_each(|_| driver.add(0));
    let mut device = Device::start(&mut driver);
    (0..4).for_each(|_| assert!(device.take(&driver)));
    rustix::fs::ftruncate(&file, 0).unwrap();
    while device.take(&driver) {}
    while !device.held.is_empty() {
        device.give(0);
    }
    device.ring.publish();
    driver.reap();
    assert!(driver.out.is_empty());
}
