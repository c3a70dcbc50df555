//! Transmit over a wire that keeps frames as they are. Whatever the layout and the policy, what
//! goes out is the guest's frame, and every chain comes back once.

use crate::support::frames;
use crate::support::lab::Lab;
use crate::support::wire::{read_frame, wire};
use proptest::prelude::*;
use zerowire::ledger::Counters;
use zerowire_guest::features as f;
use zerowire_guest::ring::{DESC_INDIRECT, DESC_NEXT, RingMemory, write_desc_at};
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapOutlet;
use zerowire_net::transmit::{Detour, TransmitContext};
use zerowire_net::{MAX_FRAME_BYTES, PathMode, Policy, Transmit};
use zerowire_testkit::own_process;

/// Two regions that touch, and one apart.
const REGIONS: [(u64, usize); 3] = [(0, 2 << 20), (2 << 20, 2 << 20), (1 << 32, 2 << 20)];
const EDGE: u64 = 2 << 20;
const SIZE: u16 = 256;
const HEADER: usize = 12;

#[derive(Clone, Debug)]
struct Plan {
    len: usize,
    header: [u8; HEADER],
    /// Where the frame with its header is cut, in thousandths of its length.
    cuts: Vec<u16>,
    /// Region of each segment, in turn.
    places: Vec<u8>,
    indirect: bool,
    /// The first segment lies across the edge of two regions.
    across: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = prop_oneof![
        4 => 14usize..300,
        4 => 300usize..5000,
        2 => 5000usize..MAX_FRAME_BYTES + 1,
        1 => Just(MAX_FRAME_BYTES),
        1 => 1usize..14,
        1 => MAX_FRAME_BYTES + 1..MAX_FRAME_BYTES + 400,
    ];
    let header = prop_oneof![
        3 => any::<[u8; HEADER]>().prop_map(|mut h| {
            // Nothing asked for; the rest is noise.
            h[0] &= !1;
            h[1] = 0;
            h
        }),
        1 => any::<u16>().prop_map(|n| [1, 0, 9, 9, 9, 9, 14, 0, 0, 0, n as u8, (n >> 8) as u8]),
    ];
    let cuts = prop_oneof![4 => proptest::collection::vec(0u16..1000, 0..4), 1 => proptest::collection::vec(0u16..1000, 20..60), 1 => proptest::collection::vec(0u16..8, 0..10)];
    (len, header, cuts, proptest::collection::vec(0u8..3, 1..4), any::<bool>(), proptest::bool::weighted(0.2))
        .prop_map(|(len, header, cuts, places, indirect, across)| Plan {
            len,
            header,
            cuts,
            places,
            indirect,
            across,
        })
}

/// What must come out, with the header as it is rewritten; None for a frame that is dropped.
fn expected(p: &Plan, frame: &[u8]) -> Option<Vec<u8>> {
    if !(14..=MAX_FRAME_BYTES).contains(&p.len) {
        return None;
    }
    let mut header = [0; HEADER];
    if p.header[0] & 1 != 0 {
        // Of a frame that is not to be segmented only the checksum's fields mean anything.
        header[6..10].copy_from_slice(&p.header[6..10]);
        header[0] = 1;
        if p.len < 16 {
            return None;
        }
    }
    Some([header.as_slice(), frame].concat())
}

fn content(n: u32, len: usize) -> Vec<u8> {
    let mut f = Vec::with_capacity(len);
    frames::fill(&mut f, n, len);
    f
}

/// Lays frames out in guest memory and offers them.
struct Layouter<'a> {
    lab: &'a Lab,
    ring: &'a RingMemory,
    next: [u64; 3],
    desc: u16,
    avail: u16,
    edge_used: bool,
}

impl<'a> Layouter<'a> {
    fn new(lab: &'a Lab, ring: &'a RingMemory) -> Self {
        // The ring is at the begin of the first region; the edge stays free.
        Self { lab, ring, next: [0x1_0000, EDGE + 0x2_0000, 1 << 32], desc: 0, avail: 0, edge_used: false }
    }

    fn place(&mut self, region: usize, bytes: &[u8]) -> u64 {
        let at = self.next[region];
        self.next[region] += bytes.len() as u64 + 3;
        self.lab.write(at, bytes);
        at
    }

    fn place_across(&mut self, bytes: &[u8]) -> u64 {
        self.edge_used = true;
        let before = bytes.len() / 2;
        let at = EDGE - before as u64;
        self.lab.write(at, &bytes[..before]);
        self.lab.write(EDGE, &bytes[before..]);
        at
    }

    /// Returns whether there was room.
    fn offer(&mut self, p: &Plan, frame: &[u8]) -> bool {
        let whole = [p.header.as_slice(), frame].concat();
        let mut cuts: Vec<_> = p.cuts.iter().map(|c| whole.len() * usize::from(*c) / 1000).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let count = cuts.len() - 1;
        let needed = if p.indirect { 1 } else { count };
        let space = |r: usize| REGIONS[r].0 + REGIONS[r].1 as u64 - if r == 0 { 0x1_0000 } else { 0 };
        if usize::from(self.desc) + needed > usize::from(SIZE)
            || (0..3).any(|r| self.next[r] + whole.len() as u64 + 0x2000 > space(r))
        {
            return false;
        }
        let mut segments = Vec::new();
        for (i, pair) in cuts.windows(2).enumerate() {
            let bytes = &whole[pair[0]..pair[1]];
            let across = i == 0 && p.across && !self.edge_used && bytes.len() < 0x1_0000;
            let at = match across {
                true => self.place_across(bytes),
                false => self.place(usize::from(p.places[i % p.places.len()]), bytes),
            };
            segments.push((at, bytes.len() as u32));
        }
        let head = self.desc;
        if p.indirect {
            // Tables lie at multiples of 8 here, which the driver's helper wants.
            let at = self.place(2, &vec![0; 16 * count + 8]).next_multiple_of(8);
            let table = self.lab.ram.at(zerowire_guest::GuestAddr(at), 16 * count).expect("room for a table");
            for (i, (addr, len)) in segments.iter().enumerate() {
                let next = if i + 1 < count { DESC_NEXT } else { 0 };
                write_desc_at(&table, i, *addr, *len, next, i as u16 + 1);
            }
            self.ring.write_desc(head, at, 16 * count as u32, DESC_INDIRECT, 0);
        } else {
            for (i, (addr, len)) in segments.iter().enumerate() {
                let index = head + i as u16;
                let next = if i + 1 < count { DESC_NEXT } else { 0 };
                self.ring.write_desc(index, *addr, *len, next, index + 1);
            }
        }
        self.desc += needed as u16;
        self.ring.write_avail(self.avail, head);
        self.avail += 1;
        true
    }
}

#[derive(Default)]
struct Taken(Vec<Vec<u8>>);

impl Detour for Taken {
    /// Wants frames whose first byte is even, which is as good as any rule.
    fn wants(&self, start: &[u8]) -> bool {
        start[0].is_multiple_of(2)
    }

    fn take(&mut self, frame: &[u8]) {
        self.0.push(frame.to_vec());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_out_is_the_guests_frame(
        plans in proptest::collection::vec(plan(), 1..14),
        gather_max_bytes in prop_oneof![Just(0usize), Just(200), Just(1514), Just(4096), Just(MAX_FRAME_BYTES)],
        copy in proptest::bool::weighted(0.2),
        detoured in proptest::bool::weighted(0.2),
    ) {
        let lab = Lab::new(&REGIONS);
        let ring = lab.ring(SIZE);
        let (port, far) = wire();
        let mut io = PortIo::new(port);
        let mode = if copy { PathMode::Copy } else { PathMode::Auto };
        let policy = Policy::default().mode(mode).gather_max_bytes(gather_max_bytes);
        let outlet = TapOutlet::new(policy).expect("memory");
        let mut side = Transmit::new(lab.device(&ring, 1, false), outlet, f::NET_CSUM | f::VERSION_1, HEADER);

        let mut layouter = Layouter::new(&lab, &ring);
        let (mut wanted, mut taken_out, mut heads, mut dropped) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (n, p) in plans.iter().enumerate() {
            let frame = content(n as u32, p.len);
            let head = layouter.desc;
            if !layouter.offer(p, &frame) {
                break;
            }
            heads.push(u32::from(head));
            match expected(p, &frame) {
                Some(_) if detoured && frame[0].is_multiple_of(2) => taken_out.push(frame),
                Some(w) => wanted.push(w),
                None => dropped += 1,
            }
        }
        ring.publish_avail_idx(layouter.avail);

        let counters = Counters::default();
        let mut detour = Taken::default();
        let mut chains = 0;
        loop {
            let mut cx = TransmitContext {
                memory: &lab.memory,
                counters: &counters,
                detour: detoured.then_some(&mut detour as &mut dyn Detour),
                guard: None,
            };
            let turn = side.run(&mut io, &mut cx).expect("a sound ring");
            chains += turn.chains;
            if turn.chains == 0 {
                break;
            }
        }

        prop_assert_eq!(chains, heads.len());
        for (i, want) in wanted.iter().enumerate() {
            let got = read_frame(&far);
            prop_assert!(got.as_ref() == Some(want), "frame {} of {} bytes on the wire", i, want.len());
        }
        prop_assert_eq!(read_frame(&far), None, "nothing else goes out");
        prop_assert!(detour.0 == taken_out, "the detour gets its frames whole");
        let used: Vec<_> = (0..layouter.avail).map(|i| ring.used_entry(i)).collect();
        prop_assert_eq!(used, heads.iter().map(|h| (*h, 0)).collect::<Vec<_>>(), "each chain once, in order");
        prop_assert_eq!(ring.used_idx(), layouter.avail);

        let t = counters.snapshot();
        let bytes: usize = wanted.iter().map(Vec::len).sum();
        let aside: usize = taken_out.iter().map(|f| HEADER + f.len()).sum();
        prop_assert_eq!((t.frames, t.dropped_total()), (wanted.len() as u64, dropped));
        prop_assert_eq!(t.bytes, (bytes + aside) as u64, "each byte is in the ledger once: {:?}", t);
        if copy {
            prop_assert_eq!(t.zero_copied_bytes, 0);
        } else {
            let small: usize = wanted.iter().map(Vec::len).filter(|n| *n <= gather_max_bytes).sum();
            prop_assert_eq!(t.copied_bytes.get("small").copied().unwrap_or(0), small as u64);
        }
    }
}

/// A port that takes nothing: chains come back all the same, and the frames are counted as refused.
#[test]
fn frames_that_the_port_refuses_are_counted_and_their_chains_come_back() {
    own_process!();
    let lab = Lab::new(&REGIONS);
    let ring = lab.ring(SIZE);
    let (port, far) = wire();
    drop(far);
    let mut io = PortIo::new(port);
    let outlet = TapOutlet::new(Policy::default()).expect("memory");
    let mut side = Transmit::new(lab.device(&ring, 1, false), outlet, 0, HEADER);
    let mut layouter = Layouter::new(&lab, &ring);
    for n in 0..70 {
        let p = Plan {
            len: 64 + n,
            header: [0; HEADER],
            cuts: vec![500],
            places: vec![0],
            indirect: true,
            across: false,
        };
        assert!(layouter.offer(&p, &content(n as u32, p.len)));
    }
    ring.publish_avail_idx(layouter.avail);
    let counters = Counters::default();
    let mut chains = 0;
    while chains < 70 {
        let mut cx = TransmitContext { memory: &lab.memory, counters: &counters, detour: None, guard: None };
        chains += side.run(&mut io, &mut cx).expect("a sound ring").chains;
    }
    let t = counters.snapshot();
    assert_eq!((t.frames, t.bytes, t.dropped_frames["port_refused"]), (0, 0, 70));
    assert_eq!(ring.used_idx(), 70);
}
