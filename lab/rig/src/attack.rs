//! One attack on a ring of a running back end, and what has to come of it.

use zerowire_guest::misbehave::{Expect, RawDesc, RawQueue, RingAttack};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, features as f};

use super::{Backend, PATIENCE, Peer, frames, wait_until};

/// Entries of the attacked ring.
pub const SIZE: u16 = 16;

/// Features of a guest without offloads.
pub const PLAIN: u64 = f::VERSION_1 | f::RING_INDIRECT_DESC | f::RING_EVENT_IDX | f::NET_MRG_RXBUF;

/// What this device does where it deliberately differs from [`RingAttack::expect`], and why.
pub fn expected(attack: RingAttack) -> Expect {
    match attack {
        // Indirect tables may be longer than the queue: Linux guests make such ones
        // (drivers/virtio/virtio_ring.c warns only for direct chains). The bound is that of one
        // vectored system call.
        RingAttack::IndirectTooLong => Expect::FrameSent,
        // A descriptor of no bytes breaks the ring, wherever it is: no driver makes one.
        RingAttack::ZeroLengthOnly | RingAttack::ZeroLengthAmong => Expect::RingStops,
        other => other.expect(),
    }
}

/// A word of the error that each attack on a ring must cause.
pub fn rule(attack: RingAttack) -> &'static str {
    use RingAttack::*;
    match attack {
        AvailIdxJump => "more than the queue size 16",
        HeadOutOfRange => "descriptor index 16 is outside a table of 16",
        NextOutOfRange => "descriptor index 16 is outside a table of 16",
        LoopOfOne | LoopOfAll => "more than 16 descriptors or loops",
        AddressOutside | CrossesRegionEnd | AddressWraps | IndirectOutside | IndirectCrossesRegionEnd => {
            "are not in the guest's memory"
        }
        WritablePayload | ReadableAfterWritable | WritableOnly => {
            "device-writable descriptor in a transmit queue"
        }
        IndirectEmpty => "an indirect table of 0 bytes",
        IndirectRagged => "an indirect table of 31 bytes",
        IndirectNested => "an indirect table contains an indirect descriptor",
        IndirectNextOutOfRange => "descriptor index 2 is outside a table of 2",
        IndirectLoop => "more than 1024 descriptors or loops",
        IndirectWithNext => "both INDIRECT and NEXT",
        ZeroLengthOnly | ZeroLengthAmong => "has length 0",
        _ => "",
    }
}

/// A front end with memory of its own that has come as far as to start queues.
pub fn front_end(backend: &Backend, vm: &str, features: u64) -> (VhostUser, GuestMemory) {
    let memory =
        GuestMemory::new(&[(GuestAddr(0), 4 << 20), (GuestAddr(1 << 32), 1 << 20)]).expect("guest memory");
    let mut transport = backend.connect(vm);
    transport.negotiate(features).expect("features");
    transport.share_memory(&memory).expect("shared memory");
    (transport, memory)
}

/// Sends one good frame through `queue`, whose ring is at `at` entries.
pub fn good_frame(queue: &mut RawQueue, peer: &mut Peer, n: u32) {
    let frame = frames::frame(n, 100);
    let whole = queue.place(&[&[0; 12], frame.as_slice()].concat()).expect("guest memory");
    let before = queue.ring().used_idx();
    queue.write_chain(0, &[RawDesc::readable(&whole)]);
    queue.offer(0);
    queue.kick().expect("a kick");
    assert!(queue.wait_used(before.wrapping_add(1), PATIENCE), "the chain comes back");
    assert_eq!(peer.expect().bytes, frame);
}

/// Carries out one attack on queue 1 of `vm`, whose guest has these features, and checks what comes
/// of it.
pub fn attack(backend: &Backend, vm: &str, peer: &mut Peer, features: u64, attack: RingAttack) {
    let (mut transport, memory) = front_end(backend, vm, features);
    let mut queue = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
    good_frame(&mut queue, peer, 1);
    let before = backend.stats(vm);
    let frame = frames::frame(2, 70);
    attack.apply(&mut queue, &frame).expect("applied");
    match expected(attack) {
        Expect::RingStops => {
            assert!(queue.wait_error(PATIENCE).expect("a poll"), "{attack:?}: the error descriptor");
            wait_until("the error is counted", || backend.stats(vm).ring_errors == before.ring_errors + 1);
            let error = backend.stats(vm).last_error.expect("an error");
            assert!(error.starts_with("queue 1: at available index 1: "), "{attack:?}: {error}");
            assert!(error.contains(rule(attack)), "{attack:?}: {error}");
            // The ring is left alone from then on.
            queue.kick().expect("a kick");
            transport.barrier().expect("the connection goes on");
            assert_eq!(queue.ring().used_idx(), 1, "{attack:?}");
            assert_eq!(backend.stats(vm).ring_errors, before.ring_errors + 1);
            // A driver that resets its queue can use it again.
            transport.stop_queue(1).expect("stopped");
            queue = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
        }
        Expect::FrameDropped => {
            assert!(queue.wait_used(2, PATIENCE), "{attack:?}: the chain comes back");
            let dropped = backend.stats(vm).transmit.totals.dropped_total();
            assert_eq!(dropped, before.transmit.totals.dropped_total() + 1, "{attack:?}");
        }
        Expect::FrameSent => {
            assert!(queue.wait_used(2, PATIENCE), "{attack:?}: the chain comes back");
            let got = peer.expect().bytes;
            if attack != RingAttack::IndirectTooLong {
                assert_eq!(got, frame, "{attack:?}");
            }
        }
    }
    good_frame(&mut queue, peer, 3);
    assert!(peer.drain().is_empty(), "{attack:?}: nothing else went out");
}

/// As [`rule`], of a receive queue.
fn receive_rule(attack: RingAttack) -> &'static str {
    use RingAttack::*;
    match attack {
        WritablePayload | ReadableAfterWritable | WritableOnly => {
            "device-readable descriptor in a receive queue"
        }
        HalfHeader => "can't hold the virtio-net header",
        other => rule(other),
    }
}

/// Receives one frame into `queue`, which has no buffers.
fn good_receive(queue: &mut RawQueue, peer: &mut Peer, n: u32) {
    let buffer = queue.place(&[0; 2048]).expect("guest memory");
    let before = queue.ring().used_idx();
    queue.write_chain(0, &[RawDesc::writable(&buffer)]);
    queue.offer(0);
    queue.kick().expect("a kick");
    let frame = frames::frame(n, 100);
    peer.send(&frame);
    assert!(queue.wait_used(before.wrapping_add(1), PATIENCE), "the buffer comes back");
    let mut bytes = Vec::new();
    buffer.append_to(12, frame.len(), &mut bytes);
    assert_eq!(bytes, frame);
}

/// Carries out one attack on queue 0 of `vm`, whose guest has these features, and checks what comes
/// of it.
pub fn attack_receive(backend: &Backend, vm: &str, peer: &mut Peer, features: u64, attack: RingAttack) {
    const ROOM: usize = 70;
    let (mut transport, memory) = front_end(backend, vm, features);
    let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
    let mut queue = RawQueue::start(&memory, &mut transport, 0, SIZE).expect("a queue");
    good_receive(&mut queue, peer, 1);
    let before = backend.stats(vm);
    attack.apply_to_receive(&mut queue, ROOM).expect("applied");
    let expected = match attack {
        RingAttack::HalfHeader => Expect::RingStops,
        other => expected(other),
    };
    match expected {
        Expect::RingStops => {
            // Longer than any sound part of such a chain: the device has to look at all of it.
            peer.send(&frames::frame(2, 1000));
            assert!(queue.wait_error(PATIENCE).expect("a poll"), "{attack:?}: the error descriptor");
            wait_until("the error is counted", || backend.stats(vm).ring_errors == before.ring_errors + 1);
            let error = backend.stats(vm).last_error.expect("an error");
            assert!(error.starts_with("queue 0: "), "{attack:?}: {error}");
            assert!(error.contains(receive_rule(attack)), "{attack:?}: {error}");
            // The ring is left alone from then on.
            queue.kick().expect("a kick");
            transport.barrier().expect("the connection goes on");
            assert_eq!(queue.ring().used_idx(), 1, "{attack:?}");
            assert_eq!(backend.stats(vm).ring_errors, before.ring_errors + 1);
        }
        Expect::FrameSent => {
            peer.send(&frames::frame(2, ROOM));
            assert!(queue.wait_used(2, PATIENCE), "{attack:?}: the chain comes back");
            assert_eq!(queue.ring().used_entry(1), (0, 12 + ROOM as u32), "{attack:?}");
        }
        // A sound chain that is too short for a frame.
        Expect::FrameDropped => peer.send(&frames::frame(2, 1000)),
    }
    good_frame(&mut tx, peer, 3);
    // A driver that resets its queue can use it again; what waited for buffers is lost, or comes
    // first.
    transport.stop_queue(0).expect("stopped");
    let mut queue = RawQueue::start(&memory, &mut transport, 0, SIZE).expect("a queue");
    let buffer = queue.place(&[0; 2048]).expect("guest memory");
    for i in 0..SIZE {
        queue.write_chain(i, &[RawDesc::writable(&buffer)]);
        queue.offer(i);
    }
    queue.kick().expect("a kick");
    peer.send(&frames::frame(4, 100));
    wait_until("a frame comes", || queue.ring().used_idx() > 0);
    drop((transport, tx, queue));
    wait_until("the connection has ended", || !backend.stats(vm).connected);
}
