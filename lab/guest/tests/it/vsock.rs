//! The vsock queues, packet by packet, against a device that the tests work.

use std::time::Duration;

use crate::support::backend::{Backend, PATIENCE, Script};
use crate::support::vsock::{from_host, guest, memory};
use zerowire_guest::ring::BufferPiece;
use zerowire_guest::vsock::{HEADER_LEN, Layout, Op, PacketHeader, SUPPORTED, VsockDriver, VsockOptions};
use zerowire_guest::{GuestError, VhostUser, VhostUserOptions, features, protocol};
use zerowire_vhost_user::Request;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13 + at / 251) as u8).collect()
}

fn header(len: usize, seed: u32) -> PacketHeader {
    PacketHeader { len: len as u32, dst_port: seed, buf_alloc: seed ^ 0xffff, ..from_host(9, 1, 2, Op::Rw) }
}

#[test]
fn every_layout_carries_header_and_payload() {
    let pieces = [Layout::Segments(3), Layout::Pieces(4096), Layout::Pieces(1000), Layout::Pages];
    let layouts = [Layout::Single, Layout::Split].into_iter().chain(pieces);
    for layout in layouts {
        for indirect in [false, true] {
            for without in [0, features::RING_EVENT_IDX] {
                let wanted = SUPPORTED & !without;
                let options = VsockOptions { layout, indirect, wanted, ..VsockOptions::default() };
                let (_driver, mut queues, direct) = guest(5, &options);
                assert_eq!(queues.cid, 5);
                for (seed, len) in
                    [0, 1, 43, 44, 999, 1000, 4096, 4097, 20_000, 65_536].into_iter().enumerate()
                {
                    let (sent, payload) = (header(len, seed as u32), bytes(len, seed));
                    assert!(queues.tx.send(&sent, &payload).unwrap());
                    queues.tx.publish().unwrap();
                    let (chain, got) = direct.ports().pop_chain().expect("a packet");
                    assert_eq!(got[..HEADER_LEN], sent.to_bytes());
                    assert_eq!(got[HEADER_LEN..], payload, "{layout:?} {len}");
                    assert_eq!(chain.indirect, indirect);
                    let pieces = match layout {
                        Layout::Single => 1,
                        Layout::Split => 1 + usize::from(len > 0),
                        Layout::Segments(count) => 1 + len.min(count.into()),
                        Layout::Pieces(piece) => 1 + len.div_ceil(piece as usize),
                        Layout::Pages => 1 + len.div_ceil(4096),
                    };
                    assert_eq!(chain.pieces.len(), pieces);
                    assert!(queues.tx.drain(PATIENCE).unwrap());
                }
            }
        }
    }
}

#[test]
fn slices_are_submitted_in_place_and_a_full_queue_says_so() {
    let options = VsockOptions { queue_size: 8, tx_slots: 2, ..VsockOptions::default() };
    let (driver, mut queues, direct) = guest(5, &options);
    let slice = driver.memory().allocate(3000, 64).unwrap();
    slice.write(0, &bytes(3000, 1));
    let parts = [BufferPiece::readable(&slice, 0, 1000), BufferPiece::readable(&slice, 2000, 1000)];
    let head = header(2000, 3);
    assert!(queues.tx.submit(&head, parts));
    assert!(queues.tx.submit(&head, parts));
    assert!(!queues.tx.submit(&head, parts), "six of eight descriptors are taken");
    assert!(queues.tx.send(&head, &[]).unwrap());
    queues.tx.publish().unwrap();
    let (chain, got) = direct.ports().pop_chain().unwrap();
    assert_eq!(chain.pieces[1].addr, parts[0].addr.0);
    assert_eq!(got[HEADER_LEN..], [&bytes(3000, 1)[..1000], &bytes(3000, 1)[2000..]].concat());
    assert_eq!(queues.tx.reap().unwrap(), 1);
    assert!(queues.tx.submit(&head, parts));
    for _ in 0..3 {
        queues.tx.publish().unwrap();
        assert!(direct.ports().pop_chain().is_some());
    }
    assert!(queues.tx.drain(PATIENCE).unwrap());
    assert!(queues.tx.send(&head, &[0; 65537]).is_err());
    let small = [[1; 10], [2; 10]].map(|payload| queues.tx.send(&head, &payload).unwrap());
    assert_eq!(small, [true, true]);
    assert!(!queues.tx.send(&head, &[3]).unwrap(), "both slots are taken");
    assert!(queues.tx.send(&head, &[]).unwrap(), "a packet without payload needs none");
}

#[test]
fn buffers_are_cut_withheld_and_posted_again() {
    for (rx_descriptors, indirect) in [(1, false), (3, false), (3, true), (7, false)] {
        let options = VsockOptions { rx_descriptors, indirect, rx_limit: 2, ..VsockOptions::default() };
        let (_driver, mut queues, direct) = guest(5, &options);
        assert_eq!(direct.ports().room(), Some(4096 - HEADER_LEN));
        for seed in 0..2 {
            assert!(direct.ports().push(&header(0, seed), &bytes(4052, seed as usize)));
        }
        assert!(!direct.ports().push(&header(0, 0), &[]), "the third buffer is withheld");
        queues.rx.set_limit(0);
        for seed in 0..2 {
            let (got, payload) = queues.rx.recv(PATIENCE).unwrap().expect("a packet");
            assert_eq!(got, PacketHeader { len: 4052, ..header(0, seed) });
            assert_eq!(payload, bytes(4052, seed as usize));
        }
        assert_eq!(queues.rx.posted(), 0);
        assert!(!direct.ports().push(&header(0, 0), &[]), "all are withheld");
        assert!(queues.rx.recv(Duration::ZERO).unwrap().is_none());
        queues.rx.set_limit(usize::MAX);
        queues.rx.publish().unwrap();
        let posted = queues.rx.posted();
        assert!(posted > 2);
        for round in 0..3 * posted {
            assert!(direct.ports().push(&header(0, round as u32), &[round as u8]));
            let mut count = 0;
            queues.rx.harvest(9, |packet| count += packet.len()).unwrap();
            assert_eq!(count, 1);
            queues.rx.publish().unwrap();
        }
    }
}

#[test]
fn wrong_lengths_are_noticed() {
    let head = header(10, 1);
    for (len, written) in [(10, 43), (10, 44), (10, 53), (10, 55), (0, 45)] {
        let (_driver, mut queues, direct) = guest(5, &VsockOptions::default());
        let head = PacketHeader { len, ..head };
        assert!(direct.ports().push_bytes(&[&head.to_bytes()[..], &[0; 20]].concat(), written));
        let error = queues.rx.recv(PATIENCE).unwrap_err();
        assert!(matches!(error, GuestError::DeviceBrokeRule(_)), "{len} {written}: {error}");
    }
}

#[test]
fn an_error_that_the_device_reports_ends_the_wait_for_a_queue() {
    let (_driver, mut queues, direct) = guest(5, &VsockOptions::default());
    direct.ports().report_error();
    let result = queues.tx.wait(1, PATIENCE);
    assert!(matches!(result, Err(GuestError::DeviceBrokeRule(_))), "{result:?}");
}

#[test]
fn settings_are_checked() {
    let default = VsockOptions::default();
    for options in [
        VsockOptions { rx_buffer_len: 44, ..default },
        VsockOptions { rx_descriptors: 0, ..default },
        VsockOptions { rx_descriptors: 129, ..default },
        VsockOptions { layout: Layout::Pieces(0), ..default },
        VsockOptions { layout: Layout::Pieces(512), ..default },
        VsockOptions { tx_slots: 0, ..default },
        VsockOptions { queue_size: 100, ..default },
    ] {
        let memory = memory();
        let direct = crate::support::vsock::Direct::new(&memory, 5);
        let result = VsockDriver::start(direct, &memory, &options);
        assert!(matches!(result.err(), Some(GuestError::BadSetting { .. })), "{options:?}");
    }
}

#[test]
fn the_cid_comes_by_get_config_and_packets_by_vhost_user() {
    let memory = memory();
    let (stream, backend) = Backend::start(&memory, Script::default());
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let (mut driver, mut queues) = VsockDriver::start(transport, &memory, &VsockOptions::default()).unwrap();
    assert_eq!(queues.cid, 77);
    assert_eq!(driver.features(), SUPPORTED);
    assert!(backend.seen().contains(&Request::GetConfig));
    for round in 0..3 {
        if round == 1 {
            driver.stop().unwrap();
            driver.resume(&mut queues).unwrap();
        }
        if round == 2 {
            queues = driver.reset(&VsockOptions::default()).unwrap();
        }
        for seed in 0..300 {
            // The back end echoes what it takes for a frame, and writes a
            // number to bytes 10 and 11.
            let sent = header(100, seed);
            assert!(queues.tx.send(&sent, &bytes(100, seed as usize)).unwrap());
            queues.tx.publish().unwrap();
            let (got, payload) = queues.rx.recv(PATIENCE).unwrap().expect("an echo");
            assert_eq!(PacketHeader { dst_cid: sent.dst_cid, ..got }, sent);
            assert_eq!(payload, bytes(100, seed as usize));
            queues.tx.reap().unwrap();
        }
    }
    drop(driver);
    backend.join();
}

#[test]
fn without_config_there_is_no_cid() {
    let memory = memory();
    let script = Script { protocol: !protocol::CONFIG, ..Script::default() };
    let (stream, _backend) = Backend::start(&memory, script);
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    let started = VsockDriver::start(transport, &memory, &VsockOptions::default());
    assert!(matches!(started.err(), Some(GuestError::NotNegotiated { .. })));
}
