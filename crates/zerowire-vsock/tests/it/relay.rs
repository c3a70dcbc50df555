//! From one guest to another, both of which keep to the rules, in random order. Random is how much
//! each sends and reads, when it takes packets and posts buffers, and when the device looks. So is
//! when either ends its sending or its receiving.

use std::time::Duration;

use crate::support::end::{End, Habit};
use proptest::prelude::*;
use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{Kind, Op, SEQ_EOM, SEQ_EOR, SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};
use zerowire_vsock::testing::{Guest, Harness, Layout};

/// Rounds without anything new after which a connection is stuck.
const PATIENCE: u32 = 20;

/// One of the two, and what it has to send.
struct Side {
    guest: Guest,
    end: End,
    /// Messages, each with its flags; of a stream, lengths of writes.
    plan: Vec<(u32, u32)>,
    /// The message that is next, and how much of it was sent.
    at: (usize, u32),
    /// Messages that were read.
    got: Vec<(u32, u32)>,
    /// It received no more before all had come.
    deaf: bool,
}

impl Side {
    fn send(&mut self, n: u32) {
        let Some(&(len, flags)) = self.plan.get(self.at.0) else { return };
        if !self.end.sends() {
            return;
        }
        let rest = len - self.at.1;
        let part = n.min(rest);
        if part == 0 && rest > 0 {
            return;
        }
        let sent = self.end.send(part, if part == rest { flags } else { 0 });
        self.at.1 += sent;
        if self.at.1 == len {
            self.at = (self.at.0 + 1, 0);
        }
    }

    /// Nothing is left to send, or nobody wants it.
    fn has_sent(&self) -> bool {
        self.at.0 >= self.plan.len() || !self.end.sends()
    }

    /// It sends no more than what it has begun.
    fn cut(&mut self) {
        let begun = self.at.0 + usize::from(self.at.1 > 0);
        self.plan.truncate(begun);
    }
}

struct World {
    harness: Harness,
    sides: [Side; 2],
    /// Senders without credit ask for it.
    asking: bool,
    late: bool,
    _dir: tempfile::TempDir,
}

#[derive(Clone, Debug)]
struct Setup {
    kind: Kind,
    buffer: u32,
    alloc: [u32; 2],
    habit: [Habit; 2],
    /// The connection is open before anything else happens.
    opened: bool,
    /// The accepting side posts no more buffers until the end.
    late: bool,
    /// Parts of a hundred of the longest message, and whether a record ends with it.
    plan: [Vec<(u32, bool)>; 2],
}

impl World {
    fn new(s: &Setup) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let limits = VsockLimits::default().buffer_bytes(s.buffer);
        let mut harness = Harness::new(dir.path(), &[3, 4], limits).expect("a device");
        let sides = [0, 1].map(|i| {
            let (own, peer) = ([(3, 1000), (4, 80)][i], [(4, 80), (3, 0)][i]);
            let most = s.alloc[1 - i].min(s.buffer);
            let end = End::new(own, peer, s.kind, s.habit[i], s.alloc[i], most);
            let guest = Guest::new().expect("memory");
            harness.set_memory(i, guest.memory());
            harness.start(i, &guest).expect("rings");
            let message = |&(part, record): &(u32, bool)| {
                let len = (u64::from(most) * u64::from(part) / 100) as u32;
                let flags = if record { SEQ_EOM | SEQ_EOR } else { SEQ_EOM };
                if s.kind == Kind::Stream { (len, 0) } else { (len, flags) }
            };
            let plan =
                s.plan[i].iter().map(message).filter(|m| s.kind == Kind::SeqPacket || m.0 > 0).collect();
            Side { guest, end, plan, at: (0, 0), got: Vec::new(), deaf: false }
        });
        let quiet = s.habit.contains(&Habit::Asked);
        // A message that is partly in is not read, so that its receiver may not know that more room
        // is wanted.
        let asking = quiet || (s.kind == Kind::SeqPacket && s.habit.contains(&Habit::Half));
        let mut world = Self { harness, sides, asking, late: s.late, _dir: dir };
        world.sides[0].end.say(Op::Request, 0);
        for _ in 0..if s.opened { 3 } else { 0 } {
            for side in &mut world.sides {
                side.end.pull(&mut side.guest);
                side.guest.post(4096, Layout(0));
                side.end.push(&mut side.guest, Layout(0));
            }
            world.harness.rest();
        }
        world
    }

    fn act(&mut self, (what, n): (u8, u32)) {
        let i = usize::from(what & 1);
        let side = &mut self.sides[i];
        match what >> 1 & 15 {
            0..=2 => {
                self.harness.turn();
            }
            3 => {
                side.end.pull(&mut side.guest);
            }
            4 | 5 if self.late && i == 1 => {}
            4 => {
                side.guest.post(45 + n as usize, Layout(n as u8));
            }
            5 => {
                for _ in 0..3 {
                    side.guest.post(4096, Layout(n as u8));
                }
            }
            6 | 7 => side.send(n),
            8 => {
                side.end.push(&mut side.guest, Layout(n as u8));
            }
            9 => side.end.read(n, &mut side.got),
            10 => side.end.read(u32::MAX, &mut side.got),
            11 if side.end.open => side.end.say(Op::CreditRequest, 0),
            12 if n < 200 => {
                side.cut();
                if side.has_sent() {
                    side.end.shut(SHUT_SEND);
                }
            }
            13 if n < 30 && side.end.open => {
                side.end.shut(SHUT_RECEIVE);
                side.deaf = true;
            }
            14 => self.harness.pass(Duration::from_micros(n.into())),
            15 => self.harness.rest(),
            _ => {}
        }
        self.check();
    }

    /// No more is under way, from one end to the other, than the receiver has room for.
    fn check(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (&self.sides[from].end, &self.sides[to].end);
            let out = from.sent - to.told;
            assert!(out <= to.alloc, "{out} bytes are under way to a buffer of {}", to.alloc);
        }
    }

    /// Both do what is left to do. Panics where they can't.
    fn finish(&mut self) {
        let mut still = 0;
        while !self.sides.iter().all(|s| s.end.gone) {
            let before = self.news();
            for side in &mut self.sides {
                side.end.pull(&mut side.guest);
                while side.guest.post(4096, Layout(0)) {}
                side.end.read(u32::MAX, &mut side.got);
                side.send(u32::MAX);
                if side.end.open && side.has_sent() {
                    side.end.shut(SHUT_SEND);
                    if side.end.peer_ended & SHUT_SEND != 0 && side.end.has_read_all() {
                        side.end.shut(SHUT_BOTH);
                    }
                }
                side.end.push(&mut side.guest, Layout(0));
            }
            self.check();
            self.harness.rest();
            if self.news() != before {
                still = 0;
                continue;
            }
            still += 1;
            // Who is not told that packets were read asks again, after a second at most.
            self.harness.pass(Duration::from_millis(100));
            assert!(
                still < PATIENCE,
                "stuck: {:#?}",
                self.sides.each_ref().map(|s| (&s.end, s.at, s.plan.len()))
            );
            if self.asking {
                let asks = |s: &&mut Side| !s.has_sent() && s.end.credit() == 0;
                self.sides.iter_mut().filter(asks).for_each(|s| s.end.say(Op::CreditRequest, 0));
            }
        }
        for _ in 0..3 {
            for side in &mut self.sides {
                side.end.push(&mut side.guest, Layout(0));
                side.end.pull(&mut side.guest);
                while side.guest.post(4096, Layout(0)) {}
            }
            self.harness.rest();
        }
    }

    fn news(&self) -> [(u32, u32, u32, u32, bool); 2] {
        self.sides.each_ref().map(|s| (s.end.sent, s.end.received, s.end.read, s.end.peer_ended, s.end.gone))
    }
}

fn alloc() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 1u32..100, 3 => 100u32..5000, 3 => 4096u32..20_000, 2 => 20_000u32..300_000]
}

fn habit() -> impl Strategy<Value = Habit> {
    prop_oneof![Just(Habit::EachRead), Just(Habit::Half), Just(Habit::Asked)]
}

fn setup() -> impl Strategy<Value = Setup> {
    let plan = || {
        proptest::collection::vec(
            (prop_oneof![1 => Just(0u32), 2 => Just(100u32), 4 => 0u32..=100], any::<bool>()),
            0..12,
        )
    };
    let kind = prop_oneof![Just(Kind::Stream), Just(Kind::SeqPacket)];
    let buffer = prop_oneof![Just(4096u32), 4096u32..30_000, Just(256u32 << 10)];
    (kind, buffer, [alloc(), alloc()], [habit(), habit()], any::<(bool, bool)>(), [plan(), plan()]).prop_map(
        |(kind, buffer, alloc, habit, (opened, late), plan)| Setup {
            kind,
            buffer,
            alloc,
            habit,
            opened,
            late: opened && late,
            plan,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_and_bounds_come_out_exactly_and_nothing_is_stuck(
        setup in setup(),
        actions in proptest::collection::vec((any::<u8>(), prop_oneof![0u32..300, 0u32..9000]), 0..250),
    ) {
        let mut w = World::new(&setup);
        actions.into_iter().for_each(|a| w.act(a));
        w.finish();
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (&w.sides[from], &w.sides[to]);
            if !to.deaf {
                prop_assert_eq!(from.at.0, from.plan.len(), "all was sent");
                prop_assert_eq!(to.end.received, from.end.sent, "all that was sent has arrived");
                prop_assert!(to.end.has_read_all());
            }
            if setup.kind == Kind::SeqPacket {
                let want = if to.deaf { &from.plan[..to.got.len()] } else { &from.plan[..] };
                prop_assert_eq!(&to.got[..], want, "messages, their lengths and their flags");
            }
        }
        for vm in 0..2 {
            prop_assert_eq!(w.harness.connections(vm), 0, "a connection stays");
            prop_assert_eq!(w.harness.held_bytes(vm), 0);
            let totals = w.harness.totals(vm);
            prop_assert_eq!((totals.connections_opened, totals.ring_errors), (1, 0));
            prop_assert_eq!(totals.transmit.dropped_frames.get("beyond_credit"), None, "no rule was broken");
        }
    }
}

/// What waits for a guest that receives no more is not what its reset waits for.
#[test]
fn a_deaf_guest_hears_of_the_end() {
    let setup = Setup {
        kind: Kind::SeqPacket,
        buffer: 4096,
        alloc: [1, 1],
        habit: [Habit::EachRead; 2],
        opened: true,
        late: false,
        plan: [vec![(0, false); 6], Vec::new()],
    };
    let mut w = World::new(&setup);
    let send = 6 << 1;
    let deaf = 13 << 1 | 1;
    for what in [send, send, deaf] {
        w.act((what, 0));
    }
    w.finish();
    assert_eq!([0, 1].map(|vm| w.harness.connections(vm)), [0, 0]);
}
