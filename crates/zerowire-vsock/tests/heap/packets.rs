//! Payload is moved without an allocation, and where the other side has room without a copy, or
//! with the one between guests.

use zerowire::ledger::Totals;
use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{Kind, SEQ_EOM};

use super::device::{CIDS, Device};
use super::{heap, host};

/// Rounds until all lists have the length that they need.
const WARM: usize = 20;
const ROUNDS: usize = 200;

/// Does something for a while, and then as often again as it takes to see that it allocates
/// nothing. Returns what the two guests' devices have counted meanwhile, from each and to each.
fn without_allocation(device: &mut Device, mut round: impl FnMut(&mut Device)) -> [(Totals, Totals); 2] {
    (0..WARM).for_each(|_| round(device));
    let before = [0, 1].map(|vm| device.harness.totals(vm));
    let allocations = heap::allocations();
    (0..ROUNDS).for_each(|_| round(device));
    assert_eq!(heap::allocations() - allocations, 0, "allocations in {ROUNDS} rounds");
    let mut before = before.into_iter();
    [0, 1].map(|vm| {
        let (now, before) = (device.harness.totals(vm), before.next().expect("two"));
        (minus(now.transmit, &before.transmit), minus(now.receive, &before.receive))
    })
}

fn minus(mut now: Totals, before: &Totals) -> Totals {
    now.frames -= before.frames;
    now.bytes -= before.bytes;
    now.zero_copied_frames -= before.zero_copied_frames;
    now.zero_copied_bytes -= before.zero_copied_bytes;
    for (reason, n) in &mut now.copied_bytes {
        *n -= before.copied_bytes.get(reason).copied().unwrap_or(0);
    }
    now.copied_bytes.retain(|_, n| *n > 0);
    now
}

fn copied(t: &Totals) -> Vec<(&'static str, u64)> {
    t.copied_bytes.iter().map(|(reason, n)| (*reason, *n)).collect()
}

#[test]
fn a_stream_to_a_host_program_and_back() {
    let mut device = Device::new(VsockLimits::default());
    let mut hosts = host::connect(&mut device, 1, Kind::Stream);
    let host = &mut hosts[0];
    let [(out, back), _] = without_allocation(&mut device, |device| {
        assert_eq!(device.send_all(0, host.key, 64 << 10, 4096), 64 << 10);
        while host.read(1 << 18) > 0 {}
        host.write(50_000);
        device.rest();
    });
    assert_eq!(host.read, (WARM + ROUNDS) * (64 << 10));
    assert_eq!(device.conns[0][&host.key].received as usize, (WARM + ROUNDS) * 50_000);
    let total = ROUNDS as u64 * (64 << 10);
    assert_eq!((out.bytes, out.zero_copied_bytes, copied(&out)), (total, total, vec![]));
    assert!(out.frames >= ROUNDS as u64 * 16, "{} packets", out.frames);
    let total = ROUNDS as u64 * 50_000;
    assert_eq!((back.bytes, back.zero_copied_bytes, copied(&back)), (total, total, vec![]));
    assert!(back.frames >= total / 4052, "{} packets", back.frames);
}

/// Eight packets at a time, for which the other guest has buffers.
fn across(device: &mut Device, vm: usize, key: (u32, u32), len: usize, flags: u32) {
    for _ in 0..8 {
        assert!(device.send(vm, key, len, flags), "a chain is free");
    }
    device.rest();
}

#[test]
fn between_guests_with_one_copy() {
    for kind in [Kind::Stream, Kind::SeqPacket] {
        let mut device = Device::new(VsockLimits::default());
        let at_a = device.connect(0, CIDS[1], 7, kind);
        let at_b = (at_a.1, at_a.0);
        let flags = if kind == Kind::Stream { 0 } else { SEQ_EOM };
        let totals = without_allocation(&mut device, |device| {
            across(device, 0, at_a, 4052, flags);
            across(device, 1, at_b, 1000, flags);
        });
        let (from_a, from_b) = (ROUNDS as u64 * 8 * 4052, ROUNDS as u64 * 8 * 1000);
        let [(a_out, a_in), (b_out, b_in)] = &totals;
        assert_eq!((copied(a_out), copied(b_in)), (vec![("sibling", from_a)], vec![("sibling", from_a)]));
        assert_eq!((copied(b_out), copied(a_in)), (vec![("sibling", from_b)], vec![("sibling", from_b)]));
        assert_eq!((a_out.bytes, b_out.bytes), (from_a, from_b));
    }
}

/// What comes and goes again has been there before: the thread keeps what it took.
#[test]
fn between_guests_while_bytes_wait() {
    for kind in [Kind::Stream, Kind::SeqPacket] {
        let mut device = Device::new(VsockLimits::default());
        let at_a = device.connect(0, CIDS[1], 7, kind);
        let flags = if kind == Kind::Stream { 0 } else { SEQ_EOM };
        let [(out, _), (_, back)] = without_allocation(&mut device, |device| {
            device.posts[1] = None;
            for _ in 0..8 {
                across(device, 0, at_a, 1500, flags);
            }
            assert!(device.harness.held_bytes(1) > 50_000, "{}", device.harness.held_bytes(1));
            device.posts[1] = Some(4096);
            device.rest();
            assert_eq!(device.harness.held_bytes(1), 0);
        });
        let total = ROUNDS as u64 * 64 * 1500;
        assert_eq!((out.bytes, back.bytes), (total, total));
        assert!(out.copied_bytes["held"] > total / 2, "{:?}", out.copied_bytes);
    }
}

#[test]
fn messages_to_a_host_program_and_back_also_in_parts() {
    let mut device = Device::new(VsockLimits::default());
    let mut hosts = host::connect(&mut device, 1, Kind::SeqPacket);
    let host = &mut hosts[0];
    // Too few buffers for a message, so that it has to wait for more of them.
    device.posts[0] = Some(500);
    device.rest();
    let [(out, back), _] = without_allocation(&mut device, |device| {
        for part in 0..4 {
            let flags = if part == 3 { SEQ_EOM } else { 0 };
            assert!(device.send(0, host.key, 10_000, flags));
            device.rest();
        }
        assert_eq!(host.read(1 << 18), 40_000, "one message");
        assert!(device.send(0, host.key, 3000, SEQ_EOM));
        device.rest();
        assert_eq!(host.read(1 << 18), 3000, "a message of one packet");
        host.write(30_000);
        device.rest();
        host.write(300);
        device.rest();
    });
    let conn = &device.conns[0][&host.key];
    let rounds = (WARM + ROUNDS) as u32;
    assert_eq!((conn.messages, conn.received), (rounds * 2, rounds * 30_300));
    let each = |n: u64| n * ROUNDS as u64;
    assert_eq!((copied(&out), out.zero_copied_bytes), (vec![("message", each(40_000))], each(3000)));
    assert_eq!((copied(&back), back.zero_copied_bytes), (vec![("message", each(30_000))], each(300)));
}
