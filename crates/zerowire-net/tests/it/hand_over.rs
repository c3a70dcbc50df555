//! A session goes from one server to another, or back, while its guest and its front end go on.
//!
//! The image goes through a socket as it does between processes, so that the other side has
//! descriptors of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::dirty::{Watch, without_mark};
use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, frames, in_netns, options, pass_on, send_each, wait_until,
};
use serde_json::Value;
use zerowire_guest::net::{Layout, NetOptions};
use zerowire_guest::{DirtyLog, Transport};
use zerowire_testkit::net::tap::{persistent, wait_for_carrier};
use zerowire_vhost::ring::inflight::InflightRegion;
use zerowire_vhost::session::{HandOverError, SessionImage};
use zerowire_vhost_user::{HEADER_LEN, Header, LogRegion, Request, VERSION};

const TAP: &str = "zwhand";

fn hand_over(backend: &Backend) -> SessionImage {
    pass_on(backend.server.hand_over(TAP).unwrap_or_else(|e| panic!("{e}")))
}

fn take_up(backend: &Backend, image: SessionImage) {
    backend.server.take_up(TAP, image).unwrap_or_else(|e| panic!("{e}"));
}

/// A server on the tap that stays. Frames for the guest are not lost from now on.
fn start(vms: &[Vm]) -> Backend {
    let backend = Backend::start(vms);
    wait_for_carrier(TAP);
    backend
}

/// Another server on the same port goes on. The first one is gone before it begins.
fn succeed(backend: Backend, vms: &[Vm]) -> Backend {
    let image = hand_over(&backend);
    drop(backend);
    let next = start(vms);
    take_up(&next, image);
    next
}

/// The only server hands the session over and takes it back.
fn return_to(backend: &Backend) {
    take_up(backend, hand_over(backend));
}

/// Frames with these numbers.
fn numbered(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|n| frames::frame(n, 60 + (n as usize * 37) % 1400))
}

#[test]
fn each_frame_of_the_guest_goes_out_once_through_one_server_after_the_other() {
    in_netns(|| {
        persistent(TAP, 0);
        let vms = [Vm::new(TAP)];
        let first = start(&vms);
        let mut peer = Peer::new(TAP);
        let mut guest = first.guest(TAP, &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        const FRAMES: u32 = 20_000;
        let mut backend = Some(first);
        let arrived = AtomicU32::new(0);
        let Guest { driver, pairs, .. } = &mut guest;
        std::thread::scope(|scope| {
            scope.spawn(|| send_each(&mut pairs[0].tx, numbered(FRAMES)));
            scope.spawn(|| {
                for n in 0..FRAMES {
                    assert_eq!(frames::number(&peer.expect().bytes), n, "lost, twice or out of order");
                    arrived.store(n, Ordering::Relaxed);
                }
            });
            for hop in 1..=6 {
                wait_until("frames flow", || arrived.load(Ordering::Relaxed) >= hop * 1000);
                backend = Some(succeed(backend.take().expect("a server"), &vms));
                assert!(driver.transport().is_alive(), "the front end notices nothing");
            }
        });
        assert!(peer.drain().is_empty(), "no frame comes twice");
        guest.ping(&mut peer, 2);
        let stats = backend.expect("a server").stats(TAP);
        assert_eq!((stats.ring_errors, stats.connections, stats.connection_errors), (0, 1, 0));
        assert!(stats.connected);
    });
}

/// The port stays open with the server, so that the frames that wait in it are the guest's.
#[test]
fn each_frame_for_the_guest_arrives_once_while_the_session_comes_and_goes() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new(TAP)]);
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        const FRAMES: u32 = 4000;
        let arrived = AtomicU32::new(0);
        let Guest { driver, pairs, .. } = &mut guest;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..FRAMES {
                    // The tap's own queue drops what goes beyond it.
                    wait_until("frames flow", || arrived.load(Ordering::Relaxed) + 100 > n);
                    peer.send(&frames::frame(n, 60 + (n as usize * 37) % 1400));
                }
            });
            scope.spawn(|| {
                for n in 0..FRAMES {
                    let (_, frame) = pairs[0].rx.recv(PATIENCE).expect("sound").expect("a frame");
                    assert_eq!(frames::number(&frame), n, "lost, twice or out of order");
                    arrived.store(n, Ordering::Relaxed);
                }
            });
            for hop in 1..=10 {
                wait_until("frames flow", || arrived.load(Ordering::Relaxed) >= hop * 300);
                return_to(&backend);
                assert!(driver.transport().is_alive(), "the front end notices nothing");
            }
        });
        guest.ping(&mut peer, 2);
        assert!(guest.recv(0, Duration::from_millis(20)).is_none(), "no frame comes twice");
        let stats = backend.stats(TAP);
        assert_eq!((stats.ring_errors, stats.receive.totals.dropped_total()), (0, 0));
    });
}

#[test]
fn the_front_end_goes_on_with_the_successor() {
    in_netns(|| {
        persistent(TAP, 0);
        let vms = [Vm::new(TAP)];
        let mut backend = start(&vms);
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Pages));
        let status = guest.driver.transport().status().expect("a status");
        assert_ne!(status, 0);
        // With rings that run.
        backend = succeed(backend, &vms);
        guest.ping(&mut peer, 1);
        assert_eq!(guest.driver.transport().status().expect("a status"), status);
        // With rings that have stopped.
        guest.driver.stop().expect("stopped");
        backend = succeed(backend, &vms);
        guest.driver.resume(&mut guest.pairs).expect("resumed");
        guest.ping(&mut peer, 2);
        // With a ring that is not served.
        guest.driver.transport().enable_queue(0, false).expect("disabled");
        backend = succeed(backend, &vms);
        peer.send(&frames::frame(3, 100));
        guest.driver.transport().barrier().expect("all handled");
        assert!(guest.recv(0, Duration::from_millis(20)).is_none(), "the ring is disabled");
        guest.driver.transport().enable_queue(0, true).expect("enabled");
        assert_eq!(guest.expect().1, frames::frame(3, 100));
        // What was acknowledged before may not change while rings run.
        let acked = guest.driver.features();
        let front = guest.driver.transport();
        front.tell(Request::SetFeatures, &(acked ^ 1).to_ne_bytes(), &[]).expect_err("rings run");
        drop(backend);
    });
}

/// A front end that is in the middle of a message.
#[test]
fn a_message_is_received_in_two_halves_by_two_servers() {
    in_netns(|| {
        persistent(TAP, 0);
        let vms = [Vm::new(TAP)];
        let mut backend = start(&vms);
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        for cut in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 3] {
            let call = rustix::event::eventfd(0, flags).expect("an eventfd");
            let number = Request::SetVringCall.number();
            let header = Header { request: number, flags: VERSION | 1 << 3, size: 8 };
            let bytes = [&header.encode()[..], &1u64.to_ne_bytes()].concat();
            let front = guest.driver.transport();
            front.connection().send_raw(&bytes[..cut], &[call.as_fd()]).expect("sent");
            backend = succeed(backend, &vms);
            let front = guest.driver.transport();
            front.connection().send_raw(&bytes[cut..], &[]).expect("sent");
            front.connection().recv_ack(Request::SetVringCall).expect("carried out");
            // The descriptor came through both of them: a new one is notified.
            wait_until("it is notified", || rustix::io::read(&call, &mut [0; 8]).is_ok());
        }
        peer.drain();
        assert_eq!(backend.stats(TAP).connection_errors, 0);
    });
}

#[test]
fn writes_are_noted_in_the_front_end_s_log_by_the_successor() {
    in_netns(|| {
        persistent(TAP, 0);
        let vms = [Vm::new(TAP)];
        let backend = start(&vms);
        let peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        let (rings, buffers) = guest.writable();
        let watch = Watch::new(&guest.memory, &rings, &buffers);
        let receive = |guest: &mut Guest, numbers: std::ops::Range<u32>| {
            for n in numbers {
                let frame = without_mark(frames::frame(n, 1200));
                peer.send(&frame);
                assert_eq!(guest.expect().1, frame);
            }
        };
        // Before the front end has given its log, with the log, and after that.
        guest.driver.transport().log_all(true).expect("acknowledged");
        receive(&mut guest, 0..20);
        let backend = succeed(backend, &vms);
        receive(&mut guest, 20..40);
        let end = guest.memory.regions().iter().map(|r| r.end().0).max().expect("memory");
        let log = DirtyLog::new(end).expect("a log");
        let region = LogRegion { size: log.len(), mmap_offset: 0 };
        guest.driver.transport().set_log(log.file(), region).expect("taken");
        let _backend = succeed(backend, &vms);
        receive(&mut guest, 40..60);
        guest.driver.stop().expect("stopped");
        assert!(watch.check(&guest.memory, &log.take(), "handed over") > 10);
    });
}

/// The version in the place of a queue of a region for three or fewer queues of `size` entries.
fn version(file: &OwnedFd, queue: u64, size: u64) -> u16 {
    let mut bytes = [0; 2];
    let at = queue * (16 + 16 * size).next_multiple_of(64) + 8;
    assert_eq!(rustix::io::pread(file, &mut bytes, at).expect("in the file"), 2);
    u16::from_ne_bytes(bytes)
}

#[test]
fn chains_in_flight_are_marked_where_the_image_says() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new(TAP)]);
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        let size = guest.pairs[0].rx.ring().setup().size;
        let (_, region) = &InflightRegion::create(2, size).expect("a region");
        let marked = forge(&hand_over(&backend), |json, files| {
            let area = serde_json::json!({"queues": 2, "queue_size": size, "offset": 0, "file": "file"});
            json["inflight"]["own"] = area;
            files.insert(3, region.try_clone().expect("a copy"));
        });
        take_up(&backend, marked);
        let size = u64::from(size);
        // Buffers that the guest has posted may be taken again: they are not marked.
        assert_eq!([version(region, 0, size), version(region, 1, size)], [0, 1], "rings run");
        guest.ping(&mut peer, 1);
        // It goes with the session from now on.
        return_to(&backend);
        guest.ping(&mut peer, 2);
        assert_eq!([version(region, 0, size), version(region, 1, size)], [0, 1]);
        guest.driver.stop().expect("stopped");
        assert_eq!([version(region, 0, size), version(region, 1, size)], [0, 0]);
    });
}

#[test]
fn who_can_not_hand_over_or_take_up_says_why() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new(TAP)]);
        let refused = backend.server.hand_over("nobody").err();
        assert!(matches!(refused, Some(HandOverError::UnknownVm(_))), "{refused:?}");
        let refused = backend.server.hand_over(TAP).err();
        assert!(matches!(refused, Some(HandOverError::NoFrontEnd(_))), "{refused:?}");
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        let image = hand_over(&backend);
        assert!(!backend.stats(TAP).connected && backend.server.is_alive());
        let refused = backend.server.take_up("nobody", image).expect_err("no such VM");
        assert!(refused.to_string().contains("nobody"), "{refused}");
        let image = refused.image.expect("it comes back");
        take_up(&backend, image.clone());
        let refused = backend.server.take_up(TAP, image).expect_err("it has one");
        assert!(refused.to_string().contains("a front end is connected"), "{refused}");
        drop(refused);
        guest.ping(&mut peer, 1);
        // The next front end is served as ever.
        drop(guest);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        guest.ping(&mut peer, 2);
    });
}

#[test]
fn a_session_that_the_successor_refuses_goes_back() {
    in_netns(|| {
        let two = Vm { queues: 2, ..Vm::new(TAP) };
        let first = Backend::start(&[two]);
        let other = Backend::start(&[Vm::new("zwhand2")]);
        let mut peer = Peer::new(TAP);
        let mut guest = first.guest(TAP, &NetOptions { queue_pairs: 2, ..options(0, Layout::Split) });
        guest.ping(&mut peer, 1);
        let refused = other.server.take_up("zwhand2", hand_over(&first)).expect_err("too few queues");
        assert!(refused.to_string().contains("4 queues, where this device has 2"), "{refused}");
        take_up(&first, refused.image.expect("it comes back"));
        guest.ping(&mut peer, 2);
        let mut guest = other.guest("zwhand2", &options(0, Layout::Split));
        guest.ping(&mut Peer::new("zwhand2"), 3);
    });
}

/// An image with other values, or other descriptors.
fn forge(image: &SessionImage, change: impl FnOnce(&mut Value, &mut Vec<OwnedFd>)) -> SessionImage {
    let (bytes, mut files) = image.clone().encode().expect("encoded");
    let mut json = serde_json::from_slice(&bytes[16..]).expect("JSON");
    change(&mut json, &mut files);
    let json = serde_json::to_vec(&json).expect("JSON");
    let head = [&bytes[..12], &(json.len() as u32).to_le_bytes()].concat();
    SessionImage::decode(&[head, json].concat(), files).unwrap_or_else(|e| panic!("{e}"))
}

/// A descriptor that is of no use anywhere in an image.
fn pipe() -> OwnedFd {
    rustix::pipe::pipe().expect("a pipe").0
}

/// Whoever gives an image can do no more than a front end.
#[test]
fn what_an_image_says_is_checked_as_a_front_end_s_messages_are() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new(TAP)]);
        let mut peer = Peer::new(TAP);
        let mut guest = backend.guest(TAP, &options(0, Layout::Split));
        let sound = hand_over(&backend);
        type Change = fn(&mut Value, &mut Vec<OwnedFd>);
        let changes: [(&str, Change); 11] = [
            ("were not offered", |json, _| json["driver"]["acked"] = u64::MAX.into()),
            ("were not offered", |json, _| json["front_end"]["protocol"] = u64::MAX.into()),
            ("MTU 1 is not within", |json, _| json["front_end"]["mtu"] = 1.into()),
            ("the front end's socket", |_, files| files[0] = pipe()),
            ("neither shared memory", |_, files| files[1] = pipe()),
            ("not an eventfd", |_, files| *files.last_mut().expect("a file") = pipe()),
            ("region", |json, _| json["memory"]["regions"][0]["len"] = 5.into()),
            ("queue 0", |json, _| json["rings"][0]["addresses"]["desc"] = 3.into()),
            ("queue 1", |json, _| json["rings"][1]["addresses"]["used"] = (1u64 << 50).into()),
            ("its unfinished message", |json, _| json["connection"]["received"] = vec![0xff; 12].into()),
            ("in-flight", |json, files| {
                let area = serde_json::json!({"queues": 2, "queue_size": 256, "offset": 1, "file": "file"});
                json["inflight"]["shared"] = area;
                let file = rustix::fs::memfd_create("area", rustix::fs::MemfdFlags::CLOEXEC);
                files.insert(3, file.expect("a file"));
            }),
        ];
        for (word, change) in changes {
            let refused = backend.server.take_up(TAP, forge(&sound, change)).expect_err(word).to_string();
            assert!(refused.contains(word), "{word}: {refused}");
        }
        take_up(&backend, sound);
        guest.ping(&mut peer, 1);
        assert_eq!(backend.stats(TAP).ring_errors, 0);
    });
}
