//! Driver and front end against a back end that echoes frames, over a socket
//! pair: every layout, receive mode and notification scheme with one body.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::support::backend::{Backend, PATIENCE, Script};
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4};
use zerowire_guest::net::{
    FramePool, FrameShape, Layout, NetDriver, NetOptions, QueuePair, RxMode, RxOptions, VirtioNetHdr,
};
use zerowire_guest::{
    GuestAddr, GuestError, GuestMemory, Transport, VhostUser, VhostUserOptions, features, protocol,
};
use zerowire_vhost_user::{Request, WireError};

fn memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0), 2 << 20), (GuestAddr(1 << 32), 24 << 20)]).unwrap()
}

type Started = (NetDriver<VhostUser>, Vec<QueuePair>, Backend);

fn start(memory: &GuestMemory, script: Script, options: &NetOptions) -> Started {
    start_with(memory, script, options, &VhostUserOptions::default())
}

fn start_with(
    memory: &GuestMemory,
    script: Script,
    options: &NetOptions,
    front: &VhostUserOptions,
) -> Started {
    let (stream, backend) = Backend::start(memory, script);
    let transport = VhostUser::from_stream(stream, front).unwrap();
    let (driver, pairs) = NetDriver::start(transport, memory, options).unwrap();
    (driver, pairs, backend)
}

fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13) as u8).collect()
}

/// Sends frames of many lengths and expects them back, in order.
fn exchange(pair: &mut QueuePair, longest: usize, count: usize) {
    for number in 0..count {
        let len = 14 + number * 977 % (longest - 13);
        let sent = frame(len, number);
        let header = VirtioNetHdr {
            flags: FLAG_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 54,
            gso_size: number as u16,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        };
        while !pair.tx.send(&header, &sent).unwrap() {
            assert!(pair.tx.wait(1, PATIENCE).unwrap(), "the queue stays full");
            pair.tx.reap().unwrap();
        }
        pair.tx.publish().unwrap();
        let (got, bytes) = pair.rx.recv(PATIENCE).unwrap().expect("the frame comes back");
        assert_eq!(bytes, sent, "frame {number}");
        assert_eq!(VirtioNetHdr { num_buffers: 0, ..got }, header);
        pair.tx.reap().unwrap();
    }
    assert!(pair.tx.drain(PATIENCE).unwrap());
}

#[test]
fn every_layout_and_receive_mode() {
    let layouts = [Layout::Single, Layout::Split, Layout::Segments(5), Layout::Pages];
    let modes = [
        (RxMode::Mergeable { buffer_len: 1536 }, 9000),
        (RxMode::Mergeable { buffer_len: 4096 }, 65000),
        (RxMode::Big { descriptors: 17, header_apart: false }, 65550),
        (RxMode::Big { descriptors: 3, header_apart: true }, 9000),
        (RxMode::Small, 1518),
    ];
    for event_idx in [false, true] {
        for indirect in [false, true] {
            for layout in layouts {
                for (mode, longest) in modes {
                    let mut wanted = zerowire_guest::net::SUPPORTED;
                    if !event_idx {
                        wanted &= !features::RING_EVENT_IDX;
                    }
                    if !matches!(mode, RxMode::Mergeable { .. }) {
                        wanted &= !features::NET_MRG_RXBUF;
                    }
                    let options = NetOptions {
                        wanted,
                        queue_size: 64,
                        tx: FrameShape { layout, indirect, capacity: longest },
                        tx_slots: 4,
                        rx: Some(RxOptions { mode, indirect, buffers: 0 }),
                        ..NetOptions::default()
                    };
                    let memory = memory();
                    let (driver, mut pairs, backend) = start(&memory, Script::default(), &options);
                    assert_eq!(driver.features(), wanted);
                    exchange(&mut pairs[0], longest, 40);
                    drop(driver);
                    backend.join();
                }
            }
        }
    }
}

#[test]
fn prepared_frames_cycle_through_a_pool() {
    for reverse in [false, true] {
        let memory = memory();
        let script = Script { reverse, ..Script::default() };
        let (_driver, mut pairs, _backend) = start(&memory, script, &NetOptions::default());
        let pair = &mut pairs[0];
        let shape = FrameShape { layout: Layout::Split, indirect: false, capacity: 1514 };
        let mut pool = FramePool::new(&memory, shape, 50).unwrap();
        for index in 0..pool.len() {
            pool.set(index, &VirtioNetHdr::default(), &frame(60 + index, index)).unwrap();
        }
        let (mut cursor, mut received) = (0, 0);
        let total = 1000;
        let mut sent = 0;
        while received < total {
            sent += pair.tx.submit_cycle(&pool, &mut cursor, (total - sent).min(32));
            pair.tx.publish().unwrap();
            pair.rx
                .harvest(64, |got| {
                    let index = received % 50;
                    assert_eq!(got.len, 60 + index);
                    assert_eq!(got.to_vec(), frame(60 + index, index));
                    received += 1;
                })
                .unwrap();
            pair.rx.publish().unwrap();
            pair.tx.reap().unwrap();
            if !pair.rx.ring().has_used() && sent == total && received < total {
                assert!(pair.rx.wait(1, PATIENCE).unwrap());
            }
        }
        assert!(pair.tx.drain(PATIENCE).unwrap());
        assert_eq!(pair.rx.frames(), total as u64);
    }
}

#[test]
fn a_pool_fills_its_working_set() {
    let memory = memory();
    for layout in [Layout::Single, Layout::Split, Layout::Segments(3), Layout::Pages] {
        let shape = FrameShape { layout, indirect: true, capacity: 9000 };
        let bytes = frame(9000, 1);
        let pool = FramePool::filled(&memory, shape, 1 << 20, &VirtioNetHdr::default(), &bytes).unwrap();
        assert!((85..=116).contains(&pool.len()), "{layout:?}: {}", pool.len());
        let mut ranges: Vec<(u64, u64)> = (0..pool.len())
            .flat_map(|index| pool.segments(index))
            .map(|s| (s.addr.0, s.addr.0 + u64::from(s.len)))
            .collect();
        ranges.sort_unstable();
        let apart = |pair: &[(u64, u64)]| pair[0].1 <= pair[1].0;
        assert!(ranges.windows(2).all(apart), "{layout:?}: frames overlap");
    }
    let shape = FrameShape { layout: Layout::Split, indirect: false, capacity: 100 };
    let mut pool = FramePool::new(&memory, shape, 1).unwrap();
    assert!(matches!(
        pool.set(0, &VirtioNetHdr::default(), &[0; 101]),
        Err(GuestError::FrameTooLong { len: 101, capacity: 100 })
    ));
}

#[test]
fn more_receive_buffers_than_the_queue_holds_take_turns() {
    let mode = RxMode::Mergeable { buffer_len: 2048 };
    let options = NetOptions {
        queue_size: 16,
        rx: Some(RxOptions { mode, indirect: false, buffers: 100 }),
        ..NetOptions::default()
    };
    let memory = memory();
    let (_driver, mut pairs, _backend) = start(&memory, Script::default(), &options);
    let mut places = std::collections::HashSet::new();
    for number in 0..200 {
        pairs[0].tx.send(&VirtioNetHdr::default(), &frame(60, number)).unwrap();
        pairs[0].tx.publish().unwrap();
        assert!(pairs[0].rx.wait(1, PATIENCE).unwrap());
        let mut each = |got: zerowire_guest::net::RxFrame<'_>| {
            places.extend(got.segments().map(|s| s.guest_addr()));
        };
        assert_eq!(pairs[0].rx.harvest(1, &mut each).unwrap(), 1);
        pairs[0].rx.publish().unwrap();
        pairs[0].tx.reap().unwrap();
    }
    assert_eq!(places.len(), 100);
}

#[test]
fn two_pairs_run_on_threads_of_their_own() {
    let options = NetOptions { queue_pairs: 2, queue_size: 64, ..NetOptions::default() };
    let memory = memory();
    let (_driver, pairs, _backend) = start(&memory, Script::default(), &options);
    assert_eq!(pairs.len(), 2);
    std::thread::scope(|scope| {
        for mut pair in pairs {
            scope.spawn(move || exchange(&mut pair, 1514, 200));
        }
    });
}

#[test]
fn messages_come_in_the_order_of_a_vmm() {
    use Request::*;
    let memory = memory();
    let (mut driver, _pairs, backend) = start(&memory, Script::default(), &NetOptions::default());
    driver.transport().set_mtu(9000).unwrap();
    assert_eq!(driver.transport().status().unwrap(), 15);
    driver.stop().unwrap();
    driver.transport().reset().unwrap();
    let ring = [SetVringNum, SetVringBase, SetVringAddr, SetVringErr, SetVringCall, SetVringKick];
    let mut expected = vec![
        GetFeatures,
        GetProtocolFeatures,
        SetProtocolFeatures,
        GetQueueNum,
        SetOwner,
        SetStatus,
        SetFeatures,
        SetStatus,
        GetStatus,
        AddMemReg,
        AddMemReg,
    ];
    expected.extend(ring);
    expected.extend(ring);
    expected.extend([SetVringEnable, SetVringEnable, SetStatus, NetSetMtu, GetStatus]);
    expected.extend([SetVringEnable, GetVringBase, SetVringEnable, GetVringBase]);
    expected.extend([ResetDevice, SetStatus]);
    assert_eq!(backend.seen(), expected);
}

#[test]
fn a_back_end_without_protocol_features_gets_none() {
    let memory = memory();
    for offered in [features::VHOST_USER_PROTOCOL_FEATURES, 0] {
        // With no acknowledgements a closed call is the only news, so the
        // plainest back end is tested with raw rings enabled by default.
        let script = Script {
            features: features::VERSION_1 | features::NET_MRG_RXBUF | offered,
            protocol: 0,
            ..Script::default()
        };
        let (stream, backend) = Backend::start(&memory, script);
        let mut transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
        assert_eq!(transport.protocol(), 0);
        assert_eq!(transport.max_queues().unwrap(), 2);
        transport.negotiate(features::VERSION_1).unwrap();
        transport.share_memory(&memory).unwrap();
        transport.enable_queue(0, false).unwrap();
        transport.barrier().unwrap();
        let seen = backend.seen();
        assert!(seen.contains(&Request::SetMemTable));
        assert!(!seen.contains(&Request::SetStatus) && !seen.contains(&Request::AddMemReg));
        assert_eq!(seen.contains(&Request::SetVringEnable), offered != 0);
        assert!(matches!(transport.set_mtu(1500), Err(GuestError::NotNegotiated { .. })));
        drop(transport);
        backend.join();
    }
}

#[test]
fn memory_is_plugged_and_unplugged() {
    for slots in [true, false] {
        let memory = memory();
        let mut front = VhostUserOptions::default();
        if !slots {
            front.protocol &= !protocol::CONFIGURE_MEM_SLOTS;
        }
        let options = NetOptions::default();
        let (mut driver, mut pairs, backend) = start_with(&memory, Script::default(), &options, &front);
        let plugged = GuestAddr(1 << 36);
        let region = memory.add_region(plugged, 1 << 20).unwrap();
        driver.transport().add_memory(&region).unwrap();
        assert!(backend.regions.lock().unwrap().contains_key(&plugged.0));
        let shape = FrameShape { layout: Layout::Single, indirect: false, capacity: 100 };
        let mut pool = FramePool::new(&memory.only(plugged).unwrap(), shape, 8).unwrap();
        let mut cursor = 0;
        for index in 0..pool.len() {
            pool.set(index, &VirtioNetHdr::default(), &frame(100, index)).unwrap();
            assert!(pool.segments(index)[0].addr >= plugged);
            assert_eq!(pairs[0].tx.submit_cycle(&pool, &mut cursor, 1), 1);
            pairs[0].tx.publish().unwrap();
            let (_, bytes) = pairs[0].rx.recv(PATIENCE).unwrap().expect("the frame comes back");
            assert_eq!(bytes, frame(100, index));
        }
        assert!(pairs[0].tx.drain(PATIENCE).unwrap());
        drop(pool);
        driver.transport().remove_memory(&region).unwrap();
        memory.remove_region(plugged).unwrap();
        assert!(!backend.regions.lock().unwrap().contains_key(&plugged.0));
        let seen = backend.seen();
        assert_eq!(seen.contains(&Request::RemMemReg), slots);
        assert_eq!(seen.contains(&Request::SetMemTable), !slots);
    }
}

#[test]
fn queues_stop_and_resume() {
    let memory = memory();
    let (mut driver, mut pairs, _backend) = start(&memory, Script::default(), &NetOptions::default());
    for _ in 0..5 {
        exchange(&mut pairs[0], 9000, 30);
        driver.stop().unwrap();
        driver.resume(&mut pairs).unwrap();
    }
    exchange(&mut pairs[0], 9000, 30);
}

#[test]
fn the_driver_goes_on_with_a_new_back_end() {
    let memory = memory();
    let (mut driver, mut pairs, mut backend) = start(&memory, Script::default(), &NetOptions::default());
    for _ in 0..5 {
        exchange(&mut pairs[0], 9000, 30);
        assert!(driver.transport().is_alive());
        backend.kill();
        assert!(!driver.transport().is_alive());
        // A frame sent to nobody goes out when somebody is there again.
        pairs[0].tx.send(&VirtioNetHdr::default(), &frame(99, 1)).unwrap();
        pairs[0].tx.publish().unwrap();
        let (stream, next) = Backend::start(&memory, Script::default());
        backend = next;
        let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
        driver.reconnect(transport, &mut pairs).unwrap();
        let (_, bytes) = pairs[0].rx.recv(PATIENCE).unwrap().expect("the frame comes back");
        assert_eq!(bytes, frame(99, 1));
    }
    backend.kill();
    let less = Script { features: features::VERSION_1, ..Script::default() };
    let (stream, _backend) = Backend::start(&memory, less);
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let error = driver.reconnect(transport, &mut pairs).unwrap_err().to_string();
    assert!(error.contains("NET_MRG_RXBUF"), "{error}");
}

#[test]
fn refusals_are_reported_where_they_happen() {
    let memory = memory();
    let script = Script { refuse: vec![(Request::SetVringNum, 22)], ..Script::default() };
    let (stream, _backend) = Backend::start(&memory, script);
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let error = NetDriver::start(transport, &memory, &NetOptions::default()).err().unwrap();
    assert!(matches!(error, GuestError::Wire(WireError::Refused { request: 8, code: 22 })), "{error}");

    let script = Script { features_ok: false, ..Script::default() };
    let (stream, _backend) = Backend::start(&memory, script);
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let error = NetDriver::start(transport, &memory, &NetOptions::default()).err().unwrap();
    assert!(matches!(error, GuestError::FeaturesRefused { status: 3, .. }), "{error}");

    let script = Script { features: 0, ..Script::default() };
    let (stream, _backend) = Backend::start(&memory, script);
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let error = NetDriver::start(transport, &memory, &NetOptions::default()).err().unwrap();
    assert!(error.to_string().contains("VERSION_1"), "{error}");

    let (stream, _backend) = Backend::start(&memory, Script::default());
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let many = NetOptions { queue_pairs: 3, ..NetOptions::default() };
    let error = NetDriver::start(transport, &memory, &many).err().unwrap();
    assert!(error.to_string().contains("queue pairs is 3"), "{error}");
}

#[test]
fn connecting_waits_for_the_listener() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.sock");
    let error = VhostUser::connect(&path, Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("net.sock"), "{error}");
    let listen = path.clone();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        let listener = UnixListener::bind(listen).unwrap();
        drop(listener.accept().unwrap());
    });
    // It connects; the peer closes at once, which the handshake reports.
    let error = VhostUser::connect(&path, PATIENCE).unwrap_err();
    assert!(matches!(error, GuestError::Wire(_)), "{error}");
    late.join().unwrap();
}

#[test]
fn guest_memory_is_given_back_when_all_is_dropped() {
    let memory = GuestMemory::new(&[(GuestAddr(0), 8 << 20)]).unwrap();
    let options = NetOptions { tx_slots: 8, ..NetOptions::default() };
    for _ in 0..100 {
        let (driver, mut pairs, backend) = start(&memory, Script::default(), &options);
        exchange(&mut pairs[0], 1514, 2);
        drop((driver, pairs));
        backend.join();
    }
    assert!(memory.allocate(8 << 20, 1).is_ok(), "something is still allocated");
}

#[test]
fn a_back_end_that_does_not_answer_is_named_with_the_request() {
    let (front, _silent) = std::os::unix::net::UnixStream::pair().unwrap();
    let options = VhostUserOptions { reply_timeout: Duration::from_millis(5), ..VhostUserOptions::default() };
    let error = VhostUser::from_stream(front, &options).unwrap_err();
    assert!(matches!(error, GuestError::NoReply { request: "GET_FEATURES", .. }), "{error}");
}
