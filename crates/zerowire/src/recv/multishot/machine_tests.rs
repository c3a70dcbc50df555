//! The state machine under completions that no kernel sends, and the walk through bundles.

use super::machine::{BELL, CANCEL, Machine};
use super::posted::Posted;
use crate::recv::core::{Connection, Core, Kind, State};
use crate::recv::receiver::new_core;
use crate::recv::{Arrival, ConnectionId, Options, What};
use crate::uring::ring::Cqe;
use proptest::prelude::*;

const SLOTS: usize = 8;
const BYTES: usize = 64;

fn core(connections: u32) -> Core {
    let options = Options { buffer_bytes: BYTES, buffers: SLOTS, share: Some(4), ..Options::default() };
    let mut core = new_core(&options).unwrap();
    for place in 0..connections {
        let kind = if place == 0 { Kind::Stream } else { Kind::Datagram };
        let id = ConnectionId { place, generation: 1 };
        core.connections.push(Connection {
            id,
            socket: None,
            kind,
            state: State::Open,
            limit: None,
            paused: false,
        });
    }
    core.holdings.grow(connections as usize);
    core
}

/// As the back end posts, without a ring.
fn post(machine: &mut Machine, core: &mut Core, position: &mut u16) {
    while machine.posted.count() < machine.depth
        && let Some(slot) = core.holdings.take()
    {
        machine.posted.put(slot as u16, *position % SLOTS as u16);
        *position += 1;
    }
}

#[test]
fn a_bundle_is_walked_in_the_order_of_the_ring() {
    let mut posted = Posted::new(4, 4);
    for (position, slot) in [(2, 1), (3, 0), (0, 3), (1, 2)] {
        posted.put(slot, position);
    }
    let walk = |posted: &mut Posted, first, bytes, lens: [u32; 4]| {
        let mut seen = Vec::new();
        posted.used(first, bytes, BYTES, |p| lens[p as usize], |slot, len| seen.push((slot, len)));
        seen
    };
    assert_eq!(walk(&mut posted, 1, 130, [64; 4]), [(1, 64), (0, 64), (3, 2)]);
    assert_eq!(posted.count(), 1);
    // The kernel had shortened an entry, and went on behind it.
    assert_eq!(walk(&mut posted, 0, 50, [64, 64, 64, 10]), [(0, 10), (3, 40)]);
    assert_eq!(walk(&mut posted, 2, 0, [64; 4]), [(2, 0)]);
    // Nonsense: more bytes than the ring holds, lengths of nothing, no such buffer.
    assert_eq!(walk(&mut posted, 1, 1 << 30, [64; 4]).len(), 4);
    assert_eq!(walk(&mut posted, 1, 100, [0; 4]), [(1, 0)]);
    assert_eq!(walk(&mut posted, 9, 100, [64; 4]), []);
}

fn completion() -> impl Strategy<Value = (Cqe, bool)> {
    let user_data = prop_oneof![
        8 => (0..4u64, 0..4u64).prop_map(|(serial, place)| serial << 32 | place),
        1 => Just(BELL),
        1 => Just(CANCEL),
        1 => any::<u64>(),
    ];
    let result = prop_oneof![
        4 => 0..=(BYTES as i32 * 3),
        2 => prop::sample::select(vec![-libc::ENOBUFS, -libc::ECANCELED, -libc::ECONNRESET, -libc::EINTR]),
        1 => any::<i32>(),
    ];
    let flags = (any::<u32>(), 0..10u32).prop_map(|(low, buffer)| buffer << 16 | low & 0xf);
    (user_data, result, flags, any::<bool>())
        .prop_map(|(user_data, result, flags, keep)| (Cqe { user_data, result, flags }, keep))
}

proptest! {
    /// No sequence of completions makes it panic, lend a slot twice, lend a byte outside the area, or lose a slot.
    #[test]
    fn hostile_completions_do_no_harm(all in prop::collection::vec(completion(), 0..100), lens in any::<[u8; SLOTS]>()) {
        let mut core = core(3);
        let mut machine = Machine::new(SLOTS, 4);
        let mut position = 0;
        for place in 0..3 {
            machine.add(place);
        }
        let mut held: Vec<Arrival> = Vec::new();
        for (cqe, keep) in all {
            post(&mut machine, &mut core, &mut position);
            while let Some(place) = machine.next_to_arm(&core) {
                machine.arm(place);
            }
            let before = held.len();
            machine.complete(&mut core, &mut held, cqe, |p| lens[p as usize % SLOTS].into());
            for arrival in &held[before..] {
                if let What::Data(lease) = &arrival.what {
                    prop_assert!(lease.len() <= BYTES);
                    prop_assert!(lease.iter().all(|b| *b == 0));
                }
            }
            if !keep {
                held.clear();
                core.collect(|_| {});
                while let Some(place) = core.eased.pop() {
                    machine.queue(place);
                }
            }
            let lent = (0..3).map(|p| core.holdings.held(p) as usize).sum::<usize>();
            let leases = held.iter().filter(|a| matches!(&a.what, What::Data(l) if !l.is_empty())).count();
            prop_assert_eq!(lent, leases);
            prop_assert!(core.holdings.free() + lent <= SLOTS);
        }
        drop(held);
        core.collect(|_| {});
        prop_assert_eq!((0..3).map(|p| core.holdings.held(p)).sum::<u32>(), 0);
    }
}

proptest! {
    /// The fuzz target's body, for those who don't fuzz.
    #[test]
    fn scripts_of_the_fuzz_target(mut script in prop::collection::vec(any::<u8>(), 1..600), sound in any::<bool>()) {
        script[0] = u8::from(!sound);
        super::play::play(&script);
    }
}
