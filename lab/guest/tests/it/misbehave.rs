//! The hostile tools write what they promise.

use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::Device;
use crate::support::backend::{Backend, Script};
use zerowire_guest::misbehave::{
    Answer, Expect, Malformed, RawDesc, RawQueue, RingAttack, Toggler, bad_headers, bad_packets,
    malformed_messages,
};
use zerowire_guest::vsock::{Op, PacketHeader, SocketType};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, VhostUserOptions, features};
use zerowire_vhost_user::{MessageSocket, Request, WireError};

fn memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0), 1 << 20), (GuestAddr(1 << 32), 1 << 20)]).unwrap()
}

fn queue(memory: &GuestMemory) -> (RawQueue, VhostUser, Backend) {
    let (stream, backend) = Backend::start(memory, Script::default());
    let mut transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).unwrap();
    transport.negotiate(features::VERSION_1 | features::RING_INDIRECT_DESC).unwrap();
    transport.share_memory(memory).unwrap();
    // Ring 1 alone: the echoing back end does nothing with half a pair, so
    // the chains stay for the test to look at.
    let queue = RawQueue::start(memory, &mut transport, 1, 64).unwrap();
    (queue, transport, backend)
}

#[test]
fn allowed_chains_carry_header_and_frame() {
    let frame: Vec<u8> = (0..60).collect();
    let expected = [vec![0; 12], frame.clone()].concat();
    for attack in RingAttack::ALL.iter().filter(|a| a.expect() == Expect::FrameSent) {
        let memory = memory();
        let (mut queue, _transport, _backend) = queue(&memory);
        attack.apply(&mut queue, &frame).unwrap();
        let mut device = Device::new(&memory, queue.ring().setup(0), false);
        let chain = device.pop().expect("one chain");
        assert_eq!(chain.readable(&memory), expected, "{attack:?}");
        assert!(device.pop().is_none());
    }
}

#[test]
fn dropped_frames_are_sound_chains_without_a_whole_frame() {
    for attack in RingAttack::ALL.iter().filter(|a| a.expect() == Expect::FrameDropped) {
        let memory = memory();
        let (mut queue, _transport, _backend) = queue(&memory);
        attack.apply(&mut queue, &[0; 60]).unwrap();
        let mut device = Device::new(&memory, queue.ring().setup(0), false);
        let chain = device.pop().expect("one chain");
        assert!(chain.readable(&memory).len() < 12 + 14, "{attack:?}");
    }
}

/// The tests' own device panics on broken rings; each attack must make it.
#[test]
fn broken_rings_are_broken() {
    for attack in RingAttack::ALL.iter().filter(|a| a.expect() == Expect::RingStops) {
        let memory = memory();
        let (mut queue, _transport, _backend) = queue(&memory);
        attack.apply(&mut queue, &[0; 60]).unwrap();
        let setup = queue.ring().setup(0);
        let jump = queue.ring().avail_idx() > setup.size;
        let walk = std::panic::catch_unwind(|| {
            let mut device = Device::new(&memory, setup, false);
            let chain = device.pop().expect("one chain");
            assert!(chain.pieces.len() <= usize::from(setup.size), "too long");
            assert!(chain.pieces.iter().all(|p| !p.writable), "writable");
            chain.readable(&memory);
        });
        assert!(jump || walk.is_err(), "{attack:?} is no attack");
        assert_eq!(jump, *attack == RingAttack::AvailIdxJump);
    }
}

#[test]
fn malformed_messages_are_distinct_and_go_out_as_written() {
    let all = malformed_messages(4);
    let names: HashSet<&str> = all.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    assert!(all.len() > 100, "{}", all.len());
    for message in &all {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut front, mut back) = (MessageSocket::new(a), MessageSocket::new(b));
        message.send(&mut front).unwrap();
        drop(front);
        match back.recv() {
            Ok(Some(got)) => {
                assert!(!message.cut, "{}", message.name);
                assert_eq!(&message.bytes[12..], got.body(), "{}", message.name);
                assert_eq!(message.fds.len(), got.fd_count(), "{}", message.name);
            }
            Ok(None) => panic!("{}: nothing came", message.name),
            Err(WireError::CutOff { .. }) => assert!(message.cut, "{}", message.name),
            Err(WireError::TooManyFds) => assert!(message.fds.len() > 8, "{}", message.name),
            Err(WireError::BadVersion { .. } | WireError::TooLong { .. }) => {}
            Err(error) => panic!("{}: {error}", message.name),
        }
    }
    let own = Malformed::new("x", Request::SetStatus.number(), &[1, 2], &[]);
    assert_eq!(own.bytes.len(), 14);
}

#[test]
fn bad_headers_differ_and_have_names() {
    let headers = bad_headers(1000);
    let names: HashSet<_> = headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), headers.len());
    let bytes: HashSet<_> = headers.iter().map(|(_, header)| header.encode()).collect();
    assert_eq!(bytes.len(), headers.len());
}

#[test]
fn bad_packets_differ_and_have_names() {
    let sound = PacketHeader {
        src_cid: 5,
        dst_cid: 2,
        src_port: 50_000,
        dst_port: 9,
        kind: SocketType::Stream as u16,
        buf_alloc: 65536,
        ..PacketHeader::default()
    };
    let all: Vec<_> = bad_packets(&sound).collect();
    let names: HashSet<_> = all.iter().map(|packet| packet.name).collect();
    assert_eq!(names.len(), all.len());
    let contents: HashSet<_> = all.iter().map(|p| (p.header.to_bytes(), p.payload_len)).collect();
    assert_eq!(contents.len(), all.len());
    let address = |h: &PacketHeader| (h.src_cid, h.dst_cid, h.src_port, h.dst_port);
    for packet in all {
        assert_eq!(packet.on_connection, address(&packet.header) == address(&sound), "{}", packet.name);
        // Nothing answers a reset (virtio 1.3 §5.10.6.4).
        let reset = packet.header.op() == Some(Op::Rst);
        assert!(!reset || packet.answer == Answer::Nothing, "{}", packet.name);
    }
}

#[test]
fn attacks_carry_the_header_of_another_device() {
    let header = PacketHeader { src_cid: 5, dst_cid: 2, len: 60, ..PacketHeader::default() }.to_bytes();
    let frame: Vec<u8> = (0..60).collect();
    for attack in RingAttack::ALL.iter().filter(|a| a.expect() == Expect::FrameSent) {
        let memory = memory();
        let (mut queue, _transport, _backend) = queue(&memory);
        attack.apply_with_header(&mut queue, &header, &frame).unwrap();
        let mut device = Device::new(&memory, queue.ring().setup(0), false);
        let chain = device.pop().expect("one chain");
        assert_eq!(chain.readable(&memory), [&header[..], &frame].concat(), "{attack:?}");
    }
}

#[test]
fn a_toggler_changes_memory_until_it_is_dropped() {
    let memory = memory();
    let slice = memory.allocate(16, 16).unwrap();
    let toggler = Toggler::start(slice.clone(), [vec![1; 4], vec![2; 4]]);
    let mut seen = HashSet::new();
    while seen.len() < 2 {
        let mut byte = [0];
        slice.read(0, &mut byte);
        if byte[0] != 0 {
            seen.insert(byte[0]);
        }
        std::thread::sleep(Duration::from_micros(10));
    }
    assert!(toggler.writes() > 0);
    drop(toggler);
    slice.fill(9);
    let mut bytes = [0; 4];
    slice.read(0, &mut bytes);
    assert_eq!(bytes, [9; 4]);
}

#[test]
fn raw_chains_are_written_as_given() {
    let memory = memory();
    let (mut queue, _transport, _backend) = queue(&memory);
    let out = queue.place(b"out").unwrap();
    let back = queue.place(&[0; 4]).unwrap();
    queue.write_chain(62, &[RawDesc::readable(&out), RawDesc::writable(&back)]);
    queue.offer(62);
    let mut device = Device::new(&memory, queue.ring().setup(0), false);
    let chain = device.pop().unwrap();
    assert_eq!(chain.readable(&memory), b"out");
    assert_eq!(chain.capacity(), 4);
    device.push(62, 4);
    device.publish();
    assert!(queue.wait_used(1, Duration::from_secs(5)));
    assert_eq!(queue.ring().used_entry(0), (62, 4));
    assert!(!queue.wait_error(Duration::ZERO).unwrap());
}
