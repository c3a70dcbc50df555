//! Receive over a wire that keeps frames as they are. Whatever the guest's buffers look like, it
//! gets the frames in order and whole, in the fewest buffers. Every buffer comes back once, in the
//! order in which it was posted.

use std::collections::VecDeque;

use crate::support::dirty::{Watch, without_mark};
use crate::support::frames;
use crate::support::lab::Lab;
use crate::support::wire::{receive, rx_policy, wire};
use proptest::prelude::*;
use zerowire::ledger::Counters;
use zerowire_guest::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, RingMemory, write_desc_at};
use zerowire_net::io::PortIo;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup, RxPort, SETTLE_AFTER};
use zerowire_net::{MAX_FRAME_BYTES, PathMode, Policy};

const SIZE: u16 = 256;
/// The ring is in the first region; buffers lie in the others.
const REGIONS: [(u64, usize); 3] = [(0, 0x10_0000), (0x10_0000, 0x80_0000), (1 << 32, 0x80_0000)];

/// A posted buffer.
#[derive(Clone, Debug)]
struct Buffer {
    head: u16,
    segments: Vec<(u64, u32)>,
}

impl Buffer {
    fn capacity(&self) -> usize {
        self.segments.iter().map(|s| s.1 as usize).sum()
    }

    fn bytes(&self, lab: &Lab, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for &(addr, n) in &self.segments {
            let n = (n as usize).min(len - all.len());
            all.extend(lab.bytes(addr, n));
        }
        all
    }
}

/// The driver: posts the same buffers again and again, one a descriptor of the ring.
struct Driver<'a> {
    lab: &'a Lab,
    ring: RingMemory,
    header_len: usize,
    mergeable: bool,
    posted: VecDeque<Buffer>,
    idle: VecDeque<Buffer>,
    avail: u16,
    used: u16,
}

/// How a guest cuts its buffers: lengths of the descriptors of one buffer.
type Shape = Vec<u32>;

impl<'a> Driver<'a> {
    fn new(lab: &'a Lab, shapes: &[Shape], count: usize, header_len: usize, mergeable: bool) -> Self {
        let ring = lab.ring(SIZE);
        let mut next = [REGIONS[1].0, REGIONS[2].0];
        let mut idle = VecDeque::new();
        for head in 0..count as u16 {
            let shape = &shapes[usize::from(head) % shapes.len()];
            let region = usize::from(head) % 2;
            let mut take = |len: usize, align: u64| {
                let at = next[region].next_multiple_of(align);
                next[region] = at + len as u64;
                at
            };
            let segments: Vec<_> = shape.iter().map(|len| (take(*len as usize + 1, 1), *len)).collect();
            // A table for each, also for chains of one, in turn with direct ones.
            if head % 2 == 0 || segments.len() > 1 {
                let at = take(16 * segments.len(), 16);
                let table = lab.ram.at(zerowire_guest::GuestAddr(at), 16 * segments.len()).expect("room");
                for (i, (addr, len)) in segments.iter().enumerate() {
                    let more = if i + 1 < segments.len() { DESC_NEXT } else { 0 };
                    write_desc_at(&table, i, *addr, *len, DESC_WRITE | more, i as u16 + 1);
                }
                ring.write_desc(head, at, 16 * segments.len() as u32, DESC_INDIRECT, 0);
            } else {
                ring.write_desc(head, segments[0].0, segments[0].1, DESC_WRITE, 0);
            }
            idle.push_back(Buffer { head, segments });
        }
        Self { lab, ring, header_len, mergeable, posted: VecDeque::new(), idle, avail: 0, used: 0 }
    }

    fn post(&mut self, most: usize) {
        for _ in 0..most {
            let Some(b) = self.idle.pop_front() else { break };
            self.ring.write_avail(self.avail, b.head);
            self.avail = self.avail.wrapping_add(1);
            self.posted.push_back(b);
        }
        self.ring.publish_avail_idx(self.avail);
    }

    fn room(&self) -> usize {
        match self.mergeable {
            true => self.posted.iter().map(Buffer::capacity).sum(),
            false => self.posted.front().map_or(0, Buffer::capacity),
        }
    }

    /// Takes everything that was given back, and checks it against the frames sent (header
    /// included). Returns how many frames were left out.
    fn harvest(&mut self, sent: &mut VecDeque<Vec<u8>>) -> Result<u64, TestCaseError> {
        let mut lost = 0;
        while self.ring.used_idx() != self.used {
            let first = self.posted.front().cloned().expect("a posted buffer");
            let head = first.bytes(self.lab, first.capacity().min(self.header_len + 18));
            let count = match self.header_len {
                12 => usize::from(u16::from_le_bytes([head[10], head[11]])),
                _ => 1,
            };
            prop_assert!(count >= 1 && (self.mergeable || count == 1), "num_buffers {}", count);
            let mut frame = Vec::new();
            let before = self.room();
            for i in 0..count {
                prop_assert_ne!(
                    self.ring.used_idx(),
                    self.used,
                    "num_buffers counts buffers that were not given back"
                );
                let (id, len) = self.ring.used_entry(self.used);
                self.used = self.used.wrapping_add(1);
                let b = self.posted.pop_front().expect("a posted buffer");
                prop_assert_eq!(
                    id,
                    u32::from(b.head),
                    "buffers come back in the order in which they were posted"
                );
                prop_assert!(len as usize <= b.capacity() && len > 0);
                prop_assert!(i + 1 == count || len as usize == b.capacity(), "all but the last are full");
                frame.extend(b.bytes(self.lab, len as usize));
                self.idle.push_back(b);
            }
            if self.header_len == 12 {
                frame[10] = 0;
                frame[11] = 0;
            }
            // Frames left out must be those that found no room.
            loop {
                let want = sent.pop_front();
                prop_assert!(want.is_some(), "a frame that was not sent, or not in order");
                let want = want.unwrap_or_default();
                if want == frame {
                    break;
                }
                prop_assert!(
                    want.len() > before || before == 0,
                    "a frame of {} bytes was lost with room for {}",
                    want.len(),
                    before
                );
                lost += 1;
            }
        }
        Ok(lost)
    }
}

fn tap_frame(n: u32, len: usize, header_len: usize) -> Vec<u8> {
    without_mark([vec![0; header_len], frames::frame(n, len)].concat())
}

fn shapes(mergeable: bool) -> BoxedStrategy<Vec<Shape>> {
    let small = prop_oneof![
        Just(vec![1530]),
        Just(vec![12, 1518]),
        (1531u32..2100).prop_map(|n| vec![n]),
        Just(vec![5, 7, 3, 1600])
    ];
    let page = prop_oneof![
        Just(vec![4096]),
        Just(vec![1536]),
        Just(vec![12, 4084]),
        (64u32..3000).prop_map(|n| vec![n]),
        Just(vec![20])
    ];
    let long = prop_oneof![
        Just(vec![4096; 17]),
        Just([vec![12], vec![4096; 17]].concat()),
        Just(vec![65_700]),
        Just(vec![300; 230]),
        proptest::collection::vec(12u32..9000, 1..24),
    ];
    let one = if mergeable {
        prop_oneof![1 => small, 4 => page, 1 => long].boxed()
    } else {
        prop_oneof![2 => small, 2 => long].boxed()
    };
    proptest::collection::vec(one, 1..4).boxed()
}

fn frame_len() -> impl Strategy<Value = usize> {
    prop_oneof![5 => 18usize..200, 4 => 200usize..1519, 2 => 1519usize..9100, 1 => 9100usize..MAX_FRAME_BYTES + 1, 1 => Just(MAX_FRAME_BYTES)]
}

#[derive(Clone, Debug)]
struct Case {
    mergeable: bool,
    shapes: Vec<Shape>,
    buffers: usize,
    rounds: Vec<(usize, Vec<usize>)>,
    mode: PathMode,
    copybreak: usize,
    header_len: usize,
    logged: bool,
}

fn case() -> impl Strategy<Value = Case> {
    any::<bool>().prop_flat_map(|mergeable| {
        let rounds =
            proptest::collection::vec((0usize..60, proptest::collection::vec(frame_len(), 0..20)), 1..8);
        let copybreak = prop_oneof![Just(0usize), Just(1024), Just(4096)];
        let path = (prop_oneof![1 => Just(PathMode::Copy), 4 => Just(PathMode::Auto)], copybreak);
        let header_len =
            if mergeable { Just(12).boxed() } else { prop_oneof![Just(12usize), Just(10)].boxed() };
        (
            shapes(mergeable),
            prop_oneof![5 => 40usize..96, 1 => 1usize..40],
            rounds,
            path,
            header_len,
            any::<bool>(),
        )
            .prop_map(move |(shapes, buffers, rounds, (mode, copybreak), header_len, logged)| Case {
                mergeable,
                shapes,
                buffers,
                rounds,
                mode,
                copybreak,
                header_len,
                logged,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_guest_gets_every_frame_whole_and_in_order(case in case()) {
        let lab = Lab::new(&REGIONS);
        let lab = if case.logged { lab.logging() } else { lab };
        let (port, far) = wire();
        let mut io = PortIo::new(port);
        let mut driver = Driver::new(&lab, &case.shapes, case.buffers, case.header_len, case.mergeable);
        let setup =
            ReceiveSetup { mergeable: case.mergeable, header_len: case.header_len, clears_flags: false };
        let policy = Policy::default().mode(case.mode).rx_copybreak_bytes(case.copybreak);
        let buffers: Vec<_> = driver.idle.iter().flat_map(|b| &b.segments).map(|(at, len)| (*at, u64::from(*len))).collect();
        let watch = Watch::fresh(&lab.ram, &[driver.ring.setup(0)], &buffers);
        let mut side = receive(lab.device(&driver.ring, 0, false), setup, policy);
        let counters = Counters::default();
        let (mut sent, mut n, mut lost) = (VecDeque::new(), 0, 0);
        let capacity: usize = driver.idle.iter().map(Buffer::capacity).sum();
        prop_assume!(capacity >= 30 || !case.mergeable);
        // After the rounds everything is posted, again and again, until nothing waits.
        for round in 0..=case.rounds.len() {
            let last = round == case.rounds.len();
            let (post, lens) = case.rounds.get(round).cloned().unwrap_or((usize::MAX, Vec::new()));
            for len in lens {
                // What no number of buffers takes would wait long before it is dropped; another
                // test sees to that.
                let len = if case.mergeable { len.min(capacity.saturating_sub(12)).max(18) } else { len };
                let frame = tap_frame(n, len, case.header_len);
                rustix::io::write(&far, &frame).expect("a frame on the wire");
                sent.push_back(frame);
                n += 1;
            }
            driver.post(post);
            let waiting = loop {
                let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
                let turn = side.run(&mut io, &cx).expect("a sound ring");
                lost += driver.harvest(&mut sent)?;
                // Frames that were given up without another one behind them.
                let dropped = counters.snapshot().dropped_total();
                prop_assert!(lost <= dropped, "a frame was lost and not counted");
                for _ in lost..dropped {
                    let frame = sent.pop_front().expect("a frame that was sent");
                    prop_assert!(frame.len() > driver.room(), "{} bytes dropped, room for {}", frame.len(), driver.room());
                }
                lost = dropped;
                if turn.buffers.are_short() && last {
                    let empty = driver.idle.is_empty();
                    driver.post(usize::MAX);
                    if turn.buffers.are_awaited() && empty {
                        std::thread::sleep(SETTLE_AFTER);
                    }
                } else if turn.buffers.are_short() || (turn.port == RxPort::Empty && turn.turn.chains == 0) {
                    break turn.buffers.are_awaited();
                }
            };
            // A stop in between: what was parsed ahead is taken again.
            if n % 3 == 0 && !waiting {
                side.release(&mut io, &ReceiveContext { memory: &lab.memory, counters: &counters });
                prop_assert_eq!(side.host_mut().ring.next_avail(), driver.used);
            }
        }
        drop(side);
        if let Some(log) = lab.log.as_ref().filter(|_| n > 0) {
            watch.check(&lab.ram, &log.take(), "receive");
        }
        let t = counters.snapshot();
        prop_assert!(sent.is_empty(), "{} frames are neither here nor there: {:?}", sent.len(), t);
        prop_assert_eq!(t.frames + t.dropped_total(), u64::from(n));
        if case.mode == PathMode::Copy {
            prop_assert_eq!(t.zero_copied_bytes, 0);
        }
        if t.frames > 0 {
            prop_assert!(t.copied_bytes.keys().all(|k| if case.mode == PathMode::Copy { *k == "asked" } else { ["overflow", "small"].contains(k) }), "{:?}", t);
        }
    }
}

/// Frames that come while a batch of reads is under way, so that reads in its middle find none and
/// later ones do.
#[test]
fn frames_that_arrive_in_the_middle_of_a_batch_keep_their_order() {
    const FRAMES: u32 = 20_000;
    for mergeable in [true, false] {
        let lab = Lab::new(&REGIONS);
        let (port, far) = wire();
        let mut io = PortIo::new(port);
        let len =
            move |n: u32| if mergeable { 18 + (n as usize * 7) % 3000 } else { 18 + (n as usize * 7) % 1500 };
        let mut driver = Driver::new(&lab, &[vec![1530]], 200, 12, mergeable);
        let setup = ReceiveSetup { mergeable, header_len: 12, clears_flags: false };
        let mut side = receive(lab.device(&driver.ring, 0, false), setup, rx_policy());
        let counters = Counters::default();
        let writer = std::thread::spawn(move || {
            for n in 0..FRAMES {
                let frame = tap_frame(n, len(n), 12);
                loop {
                    match rustix::io::write(&far, &frame) {
                        Ok(_) => break,
                        Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            far
        });
        let mut sent: VecDeque<_> = (0..FRAMES).map(|n| tap_frame(n, len(n), 12)).collect();
        while !sent.is_empty() {
            driver.post(200);
            let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
            side.run(&mut io, &cx).expect("a sound ring");
            let lost = driver.harvest(&mut sent).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(lost, 0, "there was always room");
        }
        drop(writer.join().expect("the writer"));
        assert_eq!((counters.snapshot().frames, counters.snapshot().dropped_total()), (u64::from(FRAMES), 0));
    }
}

/// A broken chain behind good ones. The reads that were queued for those are carried out before the
/// ring stops.
#[test]
fn reads_before_a_broken_chain_are_carried_out() {
    let lab = Lab::new(&REGIONS);
    let ring = lab.ring(64);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let setup = ReceiveSetup { mergeable: true, header_len: 12, clears_flags: false };
    let mut side = receive(lab.device(&ring, 0, false), setup, rx_policy());
    let counters = Counters::default();
    let post = |n: u16, head: u16| {
        ring.write_desc(n, REGIONS[0].0 + 0x2_0000 + u64::from(n) * 4096, 2048, DESC_WRITE, 0);
        ring.write_avail(n, head);
        ring.publish_avail_idx(n + 1);
    };
    // Frames that fill their turn make the next one larger.
    for n in 0..4 {
        post(n, n);
    }
    for n in 0..4 {
        rustix::io::write(&far, &tap_frame(n, 1500, 12)).expect("a frame on the wire");
    }
    let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
    while counters.snapshot().frames < 4 {
        side.run(&mut io, &cx).expect("a sound ring");
    }
    post(4, 4);
    post(5, 64);
    let last = tap_frame(9, 1500, 12);
    rustix::io::write(&far, &last).expect("a frame on the wire");
    let error = side.run(&mut io, &cx).expect_err("a head outside the table");
    assert!(error.to_string().contains("descriptor index 64"), "{error}");
    assert_eq!(ring.used_idx(), 5, "the good chain was given back");
    assert_eq!(counters.snapshot().frames, 5);
}

/// A frame that waits too long for buffers is dropped and counted, and those behind it still come.
#[test]
fn a_frame_that_waits_too_long_is_dropped_and_counted() {
    let lab = Lab::new(&REGIONS);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let mut driver = Driver::new(&lab, &[vec![1530]], 2, 12, true);
    let setup = ReceiveSetup { mergeable: true, header_len: 12, clears_flags: false };
    let mut side = receive(lab.device(&driver.ring, 0, false), setup, rx_policy());
    let counters = Counters::default();
    let mut sent: VecDeque<_> = [9000, 100].into_iter().map(|len| tap_frame(len as u32, len, 12)).collect();
    for frame in &sent {
        rustix::io::write(&far, frame).expect("a frame on the wire");
    }
    driver.post(2);
    let start = std::time::Instant::now();
    while counters.snapshot().frames == 0 {
        assert!(start.elapsed() < crate::support::PATIENCE, "{:?}", counters.snapshot());
        let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
        if side.run(&mut io, &cx).expect("a sound ring").buffers.are_awaited() {
            std::thread::sleep(SETTLE_AFTER);
        }
    }
    assert_eq!(driver.harvest(&mut sent).unwrap_or_else(|e| panic!("{e}")), 1);
    assert_eq!(counters.snapshot().dropped_frames["no_room"], 1);
    assert!(sent.is_empty());
}

#[test]
fn buffers_that_break_the_rules_stop_the_ring() {
    for (flags, len, word) in [
        (0, 1530, "device-readable"),
        (DESC_WRITE, 11, "can't hold the virtio-net header"),
        (DESC_WRITE, 0, "length 0"),
        (DESC_WRITE, u32::MAX, "not in the guest's memory"),
    ] {
        let lab = Lab::new(&REGIONS);
        let ring = lab.ring(16);
        let (port, _far) = wire();
        let mut io = PortIo::new(port);
        ring.write_desc(5, REGIONS[1].0, len, flags, 0);
        ring.write_avail(0, 5);
        ring.publish_avail_idx(1);
        let setup = ReceiveSetup { mergeable: true, header_len: 12, clears_flags: false };
        let mut side = receive(lab.device(&ring, 4, false), setup, rx_policy());
        let counters = Counters::default();
        let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
        let error = side.run(&mut io, &cx).expect_err(word).to_string();
        assert!(error.starts_with("queue 4: at available index 0: ") && error.contains(word), "{error}");
        assert_eq!(ring.used_idx(), 0);
    }
}
