//! The driver's ring against a plain model of a device.

use std::collections::{HashMap, VecDeque};

use crate::support::Device;
use proptest::prelude::*;
use zerowire_guest::ring::{BufferPiece, DESC_NEXT, DESC_WRITE, DriverRing, write_desc_at};
use zerowire_guest::{GuestAddr, GuestError, GuestMemory};

fn memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0x10000), 1 << 20)]).unwrap()
}

fn segment(number: u32, len: u32, writable: bool) -> BufferPiece {
    BufferPiece { addr: GuestAddr(0x20000 + u64::from(number) * 64), len, writable }
}

/// How a device uses chains.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Any,
    /// In order, with an element for each.
    Each,
    /// In order, with an element for all that are published together.
    Batch,
}

const ORDERS: [Order; 3] = [Order::Any, Order::Each, Order::Batch];

fn ring(size: u16, event_idx: bool, order: Order) -> (DriverRing, Device) {
    let memory = memory();
    let ring = DriverRing::new(&memory, 1, size, event_idx).unwrap().in_order(order != Order::Any);
    let mut device = Device::new(&memory, ring.setup(), event_idx);
    device.batches = order == Order::Batch;
    (ring, device)
}

#[derive(Clone, Debug)]
enum Step {
    Add { readable: u8, writable: u8, indirect: bool },
    Publish,
    DevicePop,
    DevicePush { which: u8 },
    DevicePublish,
    DeviceArm,
    DriverArm { after: u16 },
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..4, 0u8..4, any::<bool>())
            .prop_map(|(readable, writable, indirect)| Step::Add { readable, writable, indirect }),
        2 => Just(Step::Publish),
        4 => Just(Step::DevicePop),
        4 => any::<u8>().prop_map(|which| Step::DevicePush { which }),
        2 => Just(Step::DevicePublish),
        1 => Just(Step::DeviceArm),
        1 => (1u16..5).prop_map(|after| Step::DriverArm { after }),
        3 => Just(Step::Reap),
    ]
}

/// Runs the steps and checks. Chains arrive as they were added and in order, and each comes back
/// exactly once with its length. Descriptors are never lost, and no notification that a side
/// requested is missing.
fn check(size: u16, event_idx: bool, order: Order, steps: &[Step]) {
    let (mut ring, mut device) = ring(size, event_idx, order);
    let tables = memory();
    let memory = device.memory.clone();
    let mut next_token = 0;
    let mut in_use: HashMap<u32, (u32, zerowire_guest::GuestSlice)> = HashMap::new();
    let mut unpublished: VecDeque<(u32, Vec<BufferPiece>)> = VecDeque::new();
    let mut visible: VecDeque<(u32, Vec<BufferPiece>)> = VecDeque::new();
    let mut held: Vec<(u16, u32)> = Vec::new();
    let mut pushed: VecDeque<(u32, u32)> = VecDeque::new();
    let mut returned: VecDeque<(u32, u32)> = VecDeque::new();
    // None: not armed. Some(n): a notification is due once n more came.
    let mut device_armed = false;
    let mut driver_armed: Option<usize> = None;
    device.disarm();
    ring.disarm();
    for step in steps {
        match *step {
            Step::Add { readable, writable, indirect } => {
                let (readable, writable) = (u32::from(readable), u32::from(writable));
                let segments: Vec<BufferPiece> = (0..readable)
                    .map(|n| segment(n, 10 + n, false))
                    .chain((0..writable).map(|n| segment(100 + n, 20 + n, true)))
                    .collect();
                let capacity: u32 = segments.iter().filter(|s| s.writable).map(|s| s.len).sum();
                let needed = if indirect { 1 } else { segments.len() };
                let fits = !segments.is_empty() && needed <= usize::from(ring.free());
                let token = next_token;
                let before = ring.free();
                let mut keep = tables.allocate(16, 16).unwrap();
                let added = if indirect && !segments.is_empty() {
                    let table = memory.allocate(16 * segments.len(), 16).unwrap();
                    for (at, s) in segments.iter().enumerate() {
                        let more = if at + 1 < segments.len() { DESC_NEXT } else { 0 };
                        let flags = more | if s.writable { DESC_WRITE } else { 0 };
                        write_desc_at(&table, at, s.addr.0, s.len, flags, at as u16 + 1);
                    }
                    let len = table.len() as u32;
                    let added = ring.add_indirect(table.guest_addr(), len, capacity, token);
                    keep = table;
                    added
                } else {
                    ring.add(&segments, token)
                };
                assert_eq!(added, fits);
                assert_eq!(before - ring.free(), if fits { needed as u16 } else { 0 });
                if added {
                    next_token += 1;
                    in_use.insert(token, (capacity, keep));
                    unpublished.push_back((token, segments));
                }
            }
            Step::Publish => {
                let any = !unpublished.is_empty();
                visible.append(&mut unpublished);
                let kick = ring.publish();
                assert!(!kick || any, "a kick without a new chain");
                if any && device_armed {
                    assert!(kick, "the device asked and was not notified");
                    device_armed = false;
                    device.disarm();
                } else {
                    assert!(!kick, "nobody asked for a notification");
                }
            }
            Step::DevicePop => match device.pop() {
                None => assert!(visible.is_empty()),
                Some(chain) => {
                    let (token, segments) = visible.pop_front().expect("a chain that was added");
                    let seen: Vec<BufferPiece> = chain
                        .pieces
                        .iter()
                        .map(|p| BufferPiece { addr: GuestAddr(p.addr), len: p.len, writable: p.writable })
                        .collect();
                    assert_eq!(seen, segments);
                    held.push((chain.head, token));
                    if device_armed {
                        // Only a device that found nothing may sleep armed.
                        device_armed = false;
                        device.disarm();
                    }
                }
            },
            Step::DevicePush { which } => {
                if !held.is_empty() {
                    let (head, token) = match order {
                        Order::Any => held.swap_remove(usize::from(which) % held.len()),
                        Order::Each | Order::Batch => held.remove(0),
                    };
                    let len = in_use[&token].0 / 2;
                    device.push(head.into(), len);
                    pushed.push_back((token, len));
                }
            }
            Step::DevicePublish => {
                let any = pushed.len();
                if order == Order::Batch && any > 0 {
                    // Those that are skipped were used completely.
                    pushed.iter_mut().take(any - 1).for_each(|(token, len)| *len = in_use[token].0);
                }
                returned.append(&mut pushed);
                let call = device.publish();
                match driver_armed {
                    Some(after) if any >= after => {
                        assert!(call, "the driver asked and was not interrupted");
                        driver_armed = None;
                        ring.disarm();
                    }
                    Some(after) => {
                        assert!(!call || any == 0, "an interrupt too early");
                        driver_armed = Some(after - any);
                    }
                    None => assert!(!call, "nobody asked for an interrupt"),
                }
            }
            Step::DeviceArm => {
                device_armed = !device.arm();
                assert_eq!(device_armed, visible.is_empty());
                if !device_armed {
                    device.disarm();
                }
            }
            Step::DriverArm { after } => {
                let after = if event_idx { after } else { 1 };
                let ready = ring.arm(after);
                assert_eq!(ready, returned.len() >= usize::from(after));
                assert_eq!(ring.has_used(), !returned.is_empty());
                if ready {
                    driver_armed = None;
                    ring.disarm();
                } else {
                    driver_armed = Some(usize::from(after) - returned.len());
                }
            }
            Step::Reap => {
                let used = ring.reap().unwrap();
                assert_eq!(used.map(|u| (u.token, u.len)), returned.pop_front());
                if let Some(used) = used {
                    in_use.remove(&used.token).expect("each token comes back once");
                    // A driver that reaps while armed arms again later.
                    if driver_armed.take().is_some() {
                        ring.disarm();
                    }
                }
            }
        }
    }
    // Wind everything down: all descriptors come home.
    ring.publish();
    while let Some(chain) = device.pop() {
        held.push((chain.head, 0));
    }
    for (head, _) in held {
        device.push(head.into(), 0);
    }
    device.publish();
    while let Some(used) = ring.reap().unwrap() {
        assert!(in_use.remove(&used.token).is_some());
    }
    assert!(in_use.is_empty());
    assert_eq!(ring.free(), size);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_steps(
        log_size in 0u32..6,
        event_idx: bool,
        order in proptest::sample::select(ORDERS.to_vec()),
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        check(1 << log_size, event_idx, order, &steps);
    }
}

#[test]
fn indices_wrap_around() {
    for (event_idx, order) in [false, true].into_iter().flat_map(|e| ORDERS.map(|o| (e, o))) {
        let (mut ring, mut device) = ring(4, event_idx, order);
        ring.disarm();
        for round in 0..70_000u32 {
            assert!(ring.add(&[segment(0, 8, true)], round));
            ring.publish();
            let chain = device.pop().unwrap();
            device.push(chain.head.into(), 8);
            device.publish();
            assert_eq!(ring.reap().unwrap().unwrap().token, round);
        }
        assert_eq!(ring.free(), 4);
    }
}

#[test]
fn a_batch_is_one_kick() {
    for event_idx in [false, true] {
        let (mut ring, mut device) = ring(16, event_idx, Order::Any);
        device.arm();
        for token in 0..10 {
            assert!(ring.add(&[segment(0, 8, false)], token));
            assert!(device.pop().is_none(), "nothing is seen before publish");
        }
        assert!(ring.publish());
        assert!(!ring.publish(), "nothing new");
    }
}

#[test]
fn a_device_that_breaks_the_ring_is_noticed() {
    type Break = fn(&mut Device);
    let cases: [(&str, Break); 5] = [
        ("no chain in flight", |d| d.push(7, 0)),
        ("no chain in flight", |d| d.push(70_000, 0)),
        ("more bytes were written", |d| d.push(0, 9)),
        ("runs past", |d| {
            for _ in 0..9 {
                d.push(0, 0);
            }
        }),
        ("no chain in flight", |d| {
            d.push(0, 0);
            d.push(0, 0);
        }),
    ];
    for (order, (rule, act)) in [Order::Any, Order::Each].into_iter().flat_map(|o| cases.map(|c| (o, c))) {
        let (mut ring, mut device) = ring(8, true, order);
        assert!(ring.add(&[segment(0, 8, true), segment(1, 4, false)], 0));
        ring.publish();
        device.pop().unwrap();
        act(&mut device);
        device.publish();
        let error = loop {
            match ring.reap() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{rule}: not noticed"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, GuestError::DeviceBrokeRing { queue: 1, .. }));
        assert!(error.to_string().contains(rule), "{error}");
    }
}

/// Chains of two descriptors, which the device has taken.
fn three_taken() -> (DriverRing, Device) {
    let (mut ring, mut device) = ring(8, true, Order::Each);
    for token in 0..3 {
        assert!(ring.add(&[segment(0, 8, true), segment(1, 8, true)], token));
    }
    ring.publish();
    (0..3).for_each(|_| drop(device.pop().unwrap()));
    (ring, device)
}

#[test]
fn one_element_stands_for_the_chains_before_it() {
    let (mut ring, mut device) = three_taken();
    device.batches = true;
    for head in [0, 2, 4] {
        device.push(head, 5);
    }
    device.publish();
    // What lies behind the batch's element means nothing.
    let got: Vec<_> = std::iter::from_fn(|| ring.reap().unwrap()).map(|u| (u.token, u.len)).collect();
    assert_eq!(got, [(0, 16), (1, 16), (2, 5)]);
    assert_eq!(ring.free(), 8);
}

#[test]
fn a_device_that_does_not_keep_the_order_is_noticed() {
    let (mut ring, mut device) = three_taken();
    // The second chain, where the used index counts one.
    device.push(2, 0);
    device.publish();
    let error = ring.reap().unwrap_err().to_string();
    assert!(error.contains("not in order"), "{error}");
    // The third one before the second one.
    let (mut ring, mut device) = three_taken();
    device.push(0, 0);
    device.push(4, 0);
    device.publish();
    assert_eq!(ring.reap().unwrap().map(|u| u.token), Some(0));
    let error = ring.reap().unwrap_err().to_string();
    assert!(error.contains("not in order"), "{error}");
    // One that came back before.
    let (mut ring, mut device) = three_taken();
    device.push(0, 0);
    device.push(0, 0);
    device.publish();
    ring.reap().unwrap();
    let error = ring.reap().unwrap_err().to_string();
    assert!(error.contains("no chain in flight"), "{error}");
}

#[test]
fn a_driver_in_order_uses_descriptors_in_the_order_of_the_table() {
    let (mut ring, mut device) = ring(8, false, Order::Each);
    let mut expected = 0;
    for round in 0..40u32 {
        let count = 1 + round % 3;
        let segments: Vec<_> = (0..count).map(|n| segment(n, 8, false)).collect();
        assert!(ring.add(&segments, round));
        assert!(ring.add(&segments[..1], round));
        ring.publish();
        for len in [count, 1] {
            let chain = device.pop().unwrap();
            assert_eq!((u32::from(chain.head), chain.pieces.len()), (expected % 8, len as usize));
            expected += len;
            device.push(chain.head.into(), 0);
        }
        device.publish();
        assert_eq!(std::iter::from_fn(|| ring.reap().unwrap()).count(), 2);
    }
}

#[test]
fn sizes_are_checked() {
    let memory = memory();
    for size in [0, 3, 255, 40_000] {
        let error = DriverRing::new(&memory, 0, size, false).unwrap_err();
        assert!(error.to_string().contains(&size.to_string()), "{error}");
    }
}
