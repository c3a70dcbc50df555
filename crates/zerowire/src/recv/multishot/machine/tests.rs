//! The state machine under completions that no kernel sends, and the walk through bundles.

use super::super::posted::Posted;
use super::{BELL, CANCEL, ReceiveMachine};
use crate::recv::core::{RecvConnection, RecvState, SocketShape};
use crate::recv::receiver::new_core;
use crate::recv::{Arrival, ConnectionId, RecvOptions, What};
use proptest::prelude::*;
use zerowire_sys::uring::ring::Cqe;

const SLOTS: usize = 8;
const BYTES: usize = 64;

fn core(connections: u32) -> RecvState {
    core_with(connections, SLOTS, 4)
}

fn core_with(connections: u32, buffers: usize, share: usize) -> RecvState {
    let options = RecvOptions { buffer_bytes: BYTES, buffers, share: Some(share), ..RecvOptions::default() };
    let mut core = new_core(&options).unwrap();
    for place in 0..connections {
        let kind = if place == 0 { SocketShape::Stream } else { SocketShape::Datagram };
        let id = ConnectionId { place, generation: 1 };
        core.connections.push(RecvConnection::new(id, kind));
    }
    core.holdings.grow(connections as usize);
    core
}

/// As the back end posts, without a ring.
fn post(machine: &mut ReceiveMachine, core: &mut RecvState, position: &mut u16) {
    machine.turn();
    while machine.posted.count < machine.depth
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
    assert_eq!(posted.count, 1);
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
        1 => (0..4u64, any::<bool>()).prop_map(|(place, of_accept)| CANCEL | place | u64::from(of_accept) << 63),
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
    /// No sequence of completions makes it panic, lend a slot twice, lend a byte outside the area,
    /// or lose a slot.
    #[test]
    fn hostile_completions_do_no_harm(all in prop::collection::vec(completion(), 0..100), lens in any::<[u8; SLOTS]>()) {
        let mut core = core(3);
        let mut machine = ReceiveMachine::new(SLOTS, 1, 4);
        let mut position = 0;
        for place in 0..3 {
            machine.requests.add(place);
        }
        let mut held: Vec<Arrival> = Vec::new();
        for (cqe, keep) in all {
            post(&mut machine, &mut core, &mut position);
            while let Some(place) = machine.requests.next(&core) {
                machine.arm(place);
            }
            let before = held.len();
            machine.complete(&mut core, cqe, |p| lens[p as usize % SLOTS].into());
            core.take_arrivals(&mut held);
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
                    machine.requests.queue(place);
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
        super::super::testing::play::play(&script);
    }
}

/// A machine with an armed request for each connection.
fn armed(connections: u32, (depth, most): (usize, usize)) -> (ReceiveMachine, RecvState) {
    let core = core_with(connections, 256, 256);
    let mut machine = ReceiveMachine::new(256, depth, most);
    (0..connections).for_each(|place| machine.requests.add(place));
    while let Some(place) = machine.requests.next(&core) {
        machine.arm(place);
    }
    assert_eq!(machine.requests.armed, connections as usize);
    (machine, core)
}

fn answer(machine: &mut ReceiveMachine, core: &mut RecvState, place: u32, result: i32) {
    let user_data = machine.user_data(place).unwrap();
    let flags = if result == -libc::ENOBUFS { 0 } else { 2 };
    machine.complete(core, Cqe { user_data, result, flags }, |_| BYTES as u32);
    core.arrivals.clear();
}

#[test]
fn buffers_follow_the_connections_that_want_some() {
    let (mut machine, mut core) = armed(20, (8, 64));
    machine.turn();
    // A single connection that empties them gets no more, however often.
    for _ in 0..100 {
        machine.turn();
        machine.starved = 0;
        answer(&mut machine, &mut core, 3, -libc::ENOBUFS);
        assert_eq!(machine.requests.next(&core), Some(3));
        machine.arm(3);
    }
    assert_eq!((machine.depth, machine.requests.armed), (8, 20));
    machine.starved = 0;
    for (place, depth) in [(0, 8), (1, 8), (2, 16), (3, 16), (4, 32)] {
        answer(&mut machine, &mut core, place, -libc::ENOBUFS);
        assert_eq!(machine.depth, depth, "{place}");
    }
    (5..20).for_each(|place| answer(&mut machine, &mut core, place, -libc::ENOBUFS));
    assert_eq!((machine.depth, machine.requests.armed), (64, 0), "the most there may be");
    while let Some(place) = machine.requests.next(&core) {
        machine.arm(place);
    }
    // As long as many are served they stay.
    for turn in 0..200 {
        machine.turn();
        (0..9).for_each(|place| answer(&mut machine, &mut core, (turn + place) % 20, 1));
    }
    assert_eq!(machine.depth, 64);
    // Then one: halved again and again, down to what there was at first.
    for _ in 0..64 * 5 {
        machine.turn();
        answer(&mut machine, &mut core, 7, 1);
    }
    assert_eq!(machine.depth, 8);
}

#[test]
fn a_cancellation_that_found_nothing_is_tried_again() {
    let (mut machine, mut core) = armed(2, (4, 4));
    let failed = |machine: &mut ReceiveMachine, core: &mut RecvState, place: u64, result| {
        let cqe = Cqe { user_data: CANCEL | place, result, flags: 0 };
        machine.complete(core, cqe, |_| BYTES as u32);
        core.arrivals.clear();
    };
    machine.requests.all[1].cancelled = true;
    core.connections[1].paused = true;
    failed(&mut machine, &mut core, 1, -libc::EALREADY);
    assert!(!machine.requests.all[1].cancelled);
    assert_eq!(machine.to_cancel, [1]);
    // One that is wanted again, one that has ended, and one that there never was.
    machine.to_cancel.clear();
    machine.requests.all[0].cancelled = true;
    failed(&mut machine, &mut core, 0, -libc::ENOENT);
    answer(&mut machine, &mut core, 1, -libc::ENOBUFS);
    for place in [1, 7] {
        failed(&mut machine, &mut core, place, -libc::ENOENT);
    }
    assert!(!machine.requests.all[0].cancelled && machine.to_cancel.is_empty());
    machine.requests.all[0].cancelled = true;
    failed(&mut machine, &mut core, 0, 0);
    assert!(machine.requests.all[0].cancelled, "it was found");
}
