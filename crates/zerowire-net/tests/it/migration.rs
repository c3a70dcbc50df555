//! Live migration of a network device: each write to the guest's memory is noted in the dirty log,
//! and nothing else is.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use crate::support::attack::front_end;
use crate::support::dirty::{Watch, pages, without_mark};
use crate::support::lab::Lab;
use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, frames, in_netns, options, peer_header, tso, with_metadata,
};
use rustix::event::{EventfdFlags, eventfd};
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions};
use zerowire_guest::{DirtyLog, GuestAddr, LOG_PAGE, Transport, features as f};
use zerowire_net::{PathMode, Policy};
use zerowire_vhost_user::{LogRegion, Request, VringAddr};

fn frame(n: u32, len: usize) -> Vec<u8> {
    without_mark(frames::frame(n, len))
}

/// Frames to the guest, one after the other or `at_once`.
fn receive(guest: &mut Guest, peer: &Peer, lens: &[usize], at_once: bool) {
    let sent: Vec<_> = lens.iter().enumerate().map(|(n, len)| frame(n as u32, *len)).collect();
    if at_once {
        sent.iter().for_each(|f| peer.send(f));
    }
    for f in &sent {
        if !at_once {
            peer.send(f);
        }
        assert_eq!(guest.expect().1, *f);
    }
}

/// A TCP segment of `payload` bytes that the guest segments.
fn receive_segment(guest: &mut Guest, peer: &Peer, payload: usize) {
    let segment = without_mark(frames::tcp_frame(7, payload));
    peer.send_with(&peer_header(tso()), &segment).expect("sent");
    assert_eq!(guest.expect().1, segment);
}

fn traffic(guest: &mut Guest, peer: &mut Peer) {
    receive(guest, peer, &[18, 60, 1000, 1514, 100, 1514], false);
    // Runs of a length change what is offered: short ones, and long ones among them that are longer
    // than their offer.
    receive(guest, peer, &[60; 100], true);
    receive(guest, peer, &[60, 1514, 61, 1500, 62], true);
    receive(guest, peer, &[1514; 60], true);
    if guest.driver.features() & f::NET_GUEST_TSO4 != 0 {
        for payload in [3000, 20_000, 60_000, 200, 60_000, 60_000] {
            receive_segment(guest, peer, payload);
            receive(guest, peer, &[60, 1514], true);
        }
    }
    for n in 0..40 {
        guest.send_plain(&[frame(n, 60), frame(n, 1500)]);
        peer.expect();
        peer.expect();
    }
}

/// Settings of the device and of its guest, each with the name of what it tests.
fn settings() -> Vec<(&'static str, Vm, NetOptions)> {
    let vm = || Vm::new("zwmig");
    let buffers = |mode, indirect| Some(RxOptions { mode, indirect, buffers: 0 });
    let small = options(f::NET_MRG_RXBUF | zerowire_guest::net::OFFLOADS, Layout::Split);
    let merged = |buffer_len| buffers(RxMode::Mergeable { buffer_len }, false);
    vec![
        ("merged buffers", vm(), options(0, Layout::Split)),
        ("pages", vm(), options(0, Layout::Pages)),
        ("copies", Vm { policy: Policy::default().mode(PathMode::Copy), ..vm() }, options(0, Layout::Split)),
        ("short buffers", vm(), NetOptions { rx: merged(1536), ..options(0, Layout::Split) }),
        ("very short ones", vm(), NetOptions { rx: merged(700), ..options(0, Layout::Single) }),
        ("big chains", vm(), options(f::NET_MRG_RXBUF, Layout::Split)),
        (
            "big chains, indirect",
            vm(),
            NetOptions {
                rx: buffers(RxMode::Big { descriptors: 17, header_apart: true }, true),
                ..options(f::NET_MRG_RXBUF, Layout::Split)
            },
        ),
        ("small chains", vm(), small),
        ("no event index", vm(), options(f::RING_EVENT_IDX, Layout::Split)),
    ]
}

#[test]
fn every_write_is_noted_and_no_other() {
    for (what, vm, options) in settings() {
        in_netns(move || {
            let backend = Backend::start(&[vm]);
            let mut peer = Peer::new("zwmig");
            let mut guest = backend.guest("zwmig", &options);
            guest.ping(&mut peer, 1);
            // Each round has a log of its own, which takes the place of the one before.
            for round in 0..3 {
                let migration = guest.migrate();
                traffic(&mut guest, &mut peer);
                guest.driver.stop().expect("stopped");
                migration.check(&guest.memory, &format!("{what}, round {round}"));
                guest.driver.resume(&mut guest.pairs).expect("resumed");
            }
            let stats = backend.stats("zwmig");
            assert_eq!(stats.ring_errors, 0, "{:?}", stats.last_error);
        });
    }
}

#[test]
fn only_what_the_kernel_wrote_of_a_buffer_is_noted() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwexact")]);
        let peer = Peer::new("zwexact");
        let rx = RxOptions { mode: RxMode::Mergeable { buffer_len: 32 << 10 }, indirect: false, buffers: 0 };
        let mut guest = backend.guest("zwexact", &NetOptions { rx: Some(rx), ..options(0, Layout::Split) });
        receive(&mut guest, &peer, &[200], false);
        let (_, buffers) = guest.writable();
        let migration = guest.migrate();
        receive(&mut guest, &peer, &[60], false);
        receive_segment(&mut guest, &peer, 9000);
        guest.driver.stop().expect("stopped");
        let noted: BTreeSet<_> = migration.log.take();
        let of_buffers = |p: &&u64| {
            buffers.iter().any(|(at, len)| (at / LOG_PAGE..(at + len).div_ceil(LOG_PAGE)).contains(p))
        };
        // One page for the short frame, and three for 12 + 54 + 9000 bytes.
        assert_eq!(noted.iter().filter(of_buffers).count(), 4, "{noted:x?}");
    });
}

/// A used ring of nine pages: each part of it is noted by itself.
#[test]
fn of_a_long_used_ring_only_what_was_written_is_noted() {
    const SIZE: u16 = 4096;
    for event_idx in [true, false] {
        let lab = Lab::new(&[(0, 1 << 20)]).logging();
        let log = lab.log.as_ref().expect("a log");
        let memory = lab.ring(SIZE);
        let at = memory.setup(0).used.guest.0;
        let mut ring = lab.device(&memory, 0, event_idx);
        (0..SIZE).for_each(|i| memory.write_avail(i, i));
        let index = pages(at + 2, 2);
        let (mut avail, mut used) = (0u16, 0u16);
        for n in [1u16, 1000, 600, 2000, 1500, 4000] {
            avail = avail.wrapping_add(n);
            memory.publish_avail_idx(avail);
            let mut elements = BTreeSet::new();
            for _ in 0..n {
                let head = ring.take().expect("sound").expect("an entry");
                ring.push_used(head, 1);
                elements.extend(pages(at + 4 + 8 * u64::from(used % SIZE), 8));
                used = used.wrapping_add(1);
            }
            assert!(log.take().is_empty(), "nothing is shown yet");
            ring.publish();
            assert_eq!(log.take(), &elements | &index.clone().collect(), "{n} elements");
            assert!(!ring.arm().expect("sound"));
            let event = if event_idx { pages(at + 4 + 8 * u64::from(SIZE), 2) } else { pages(at, 2) };
            assert_eq!(log.take(), event.collect());
        }
        // A ring that ends between the two, as on an error.
        memory.publish_avail_idx(avail.wrapping_add(1));
        let head = ring.take().expect("sound").expect("an entry");
        ring.push_used(head, 1);
        drop(ring);
        assert_eq!(log.take(), pages(at + 4 + 8 * u64::from(used % SIZE), 8).collect());
    }
}

#[test]
fn answers_of_the_metadata_service_are_noted() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::new("zwmigmeta"), dir.path())]);
        let mut guest = backend.guest("zwmigmeta", &options(0, Layout::Split));
        let arp = frames::arp_request();
        let migration = guest.migrate();
        for _ in 0..3 {
            guest.send_plain(std::slice::from_ref(&arp));
            assert_eq!(guest.expect().1[28..32], [169, 254, 169, 254]);
        }
        guest.driver.stop().expect("stopped");
        migration.check(&guest.memory, "metadata");
    });
}

#[test]
fn nothing_is_missed_before_the_log_comes_and_while_it_changes() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmiglate")]);
        let mut peer = Peer::new("zwmiglate");
        let mut guest = backend.guest("zwmiglate", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        let (rings, buffers) = guest.writable();
        let watch = Watch::new(&guest.memory, &rings, &buffers);
        let end = guest.memory.regions().iter().map(|r| r.end().0).max().expect("memory");
        let logs: Vec<_> = (0..3).map(|_| DirtyLog::new(end).expect("a log")).collect();
        guest.driver.transport().log_all(true).expect("acknowledged");
        for log in &logs {
            receive(&mut guest, &peer, &[100, 1000, 1514], true);
            let region = LogRegion { size: log.len(), mmap_offset: 0 };
            guest.driver.transport().set_log(log.file(), region).expect("taken");
            traffic(&mut guest, &mut peer);
        }
        guest.driver.stop().expect("stopped");
        // What the front end did not take out of a log goes over to the next one.
        let noted = logs[2].take();
        assert!(watch.check(&guest.memory, &noted, "late") > 10);
        guest.driver.resume(&mut guest.pairs).expect("resumed");
        guest.driver.transport().log_all(false).expect("acknowledged");
        logs.iter().for_each(|log| drop(log.take()));
        traffic(&mut guest, &mut peer);
        guest.driver.stop().expect("stopped");
        assert!(logs.iter().all(|log| log.take().is_empty()), "nothing is noted when it is off");
    });
}

#[test]
fn queues_that_start_while_writes_are_noted_are_part_of_it() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmigstart")]);
        let mut peer = Peer::new("zwmigstart");
        let mut guest = backend.guest("zwmigstart", &options(f::RING_EVENT_IDX, Layout::Split));
        guest.ping(&mut peer, 1);
        guest.driver.stop().expect("stopped");
        let migration = guest.migrate();
        guest.driver.resume(&mut guest.pairs).expect("resumed");
        traffic(&mut guest, &mut peer);
        // A front end that is cut off: the device has stopped when it is gone.
        let memory = guest.memory.clone();
        drop(guest.driver.into_transport());
        crate::support::wait_until("the device is idle", || !backend.stats("zwmigstart").connected);
        migration.check(&memory, "started later");
    });
}

#[test]
fn a_signal_tells_of_changes() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmigfd")]);
        let peer = Peer::new("zwmigfd");
        let mut guest = backend.guest("zwmigfd", &options(0, Layout::Split));
        let signal = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        guest.driver.transport().tell(Request::SetLogFd, &[], &[signal.as_fd()]).expect("taken");
        receive(&mut guest, &peer, &[100], false);
        let mut n = [0; 8];
        assert_eq!(rustix::io::read(&signal, &mut n), Err(rustix::io::Errno::AGAIN), "nothing is noted yet");
        let migration = guest.migrate();
        receive(&mut guest, &peer, &[100], false);
        guest.driver.stop().expect("stopped");
        assert_eq!(rustix::io::read(&signal, &mut n), Ok(8));
        migration.check(&guest.memory, "with a signal");
        let file = std::fs::File::open("/dev/null").expect("a file");
        let refused = guest.driver.transport().tell(Request::SetLogFd, &[], &[file.as_fd()]);
        assert!(refused.is_err(), "only an eventfd will do");
    });
}

#[test]
fn logs_that_do_not_cover_what_is_noted_are_refused() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmigbad")]);
        let mut peer = Peer::new("zwmigbad");
        let mut guest = backend.guest("zwmigbad", &options(0, Layout::Split));
        // Memory ends at 4 GiB + 16 MiB.
        let needed = ((4u64 << 30) + (16 << 20)) / (8 * LOG_PAGE);
        let log = DirtyLog::new((4 << 30) + (16 << 20)).expect("a log");
        assert_eq!(log.len(), needed);
        let front = guest.driver.transport();
        for (size, mmap_offset, why) in [
            (needed - 1, 0, "guest memory ends at 0x101000000"),
            (1, 0, "a log of 131584 bytes is needed"),
            (0, 0, "empty"),
            (needed, 1, "its file, which has"),
            (needed, 1 << 40, "its file, which has"),
            (1 << 40, 0, "its file, which has"),
            (needed, i64::MAX as u64 - needed + 1, "no range"),
        ] {
            let error =
                front.set_log(log.file(), LogRegion { size, mmap_offset }).expect_err(why).to_string();
            assert!(error.contains("refused"), "{error}");
            let said = backend.stats("zwmigbad").last_error.unwrap_or_default();
            assert!(
                said.starts_with("SET_LOG_BASE: ") && said.contains(why),
                "{size:#x} {mmap_offset:#x}: {said}"
            );
        }
        front.set_log(log.file(), LogRegion { size: needed, mmap_offset: 0 }).expect("it is large enough");
        front.log_all(true).expect("acknowledged");
        // Memory that it does not cover, while it is in use; and a used ring.
        let region = guest.memory.add_region(GuestAddr(8 << 30), 2 << 20).expect("a region");
        let front = guest.driver.transport();
        front.add_memory(&region).expect_err("refused");
        let said = backend.stats("zwmigbad").last_error.unwrap_or_default();
        assert!(
            said.starts_with("ADD_MEM_REG: ") && said.contains("guest memory ends at 0x200200000"),
            "{said}"
        );
        let addr = *front.queue_addresses().first().expect("a queue");
        for at in [(4 << 30) + (16 << 20) - 6, u64::MAX - 2, u64::MAX - 100_000] {
            let addr = VringAddr { flags: 1, log: at, ..addr };
            front.tell(Request::SetVringAddr, &addr.encode(), &[]).expect_err("refused");
            let said = backend.stats("zwmigbad").last_error.unwrap_or_default();
            assert!(said.contains("the used ring of queue 0 ends at"), "{said}");
        }
        guest.ping(&mut peer, 1);
        assert!(!log.take().is_empty(), "the log in use stays in use");
        // Without a log of writes, more memory does no harm.
        let front = guest.driver.transport();
        front.log_all(false).expect("acknowledged");
        front.add_memory(&region).expect("added");
        // With a log that is too small now it can't be turned on.
        front.set_log(log.file(), LogRegion { size: needed, mmap_offset: 0 }).expect_err("too small");
        guest.ping(&mut peer, 2);
    });
}

/// Nothing but logging may change while queues run.
#[test]
fn other_features_stay_as_they_are_while_queues_run() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmigfeat")]);
        let mut peer = Peer::new("zwmigfeat");
        let mut guest = backend.guest("zwmigfeat", &options(0, Layout::Split));
        let acked = guest.driver.features() | f::VHOST_USER_PROTOCOL_FEATURES;
        let front = guest.driver.transport();
        for bits in [acked | f::VHOST_LOG_ALL, acked, acked | f::VHOST_LOG_ALL] {
            front.tell(Request::SetFeatures, &bits.to_ne_bytes(), &[]).expect("logging may change");
        }
        guest.ping(&mut peer, 1);
        let bits = (acked | f::VHOST_LOG_ALL) & !f::NET_MRG_RXBUF;
        let front = guest.driver.transport();
        assert!(front.tell(Request::SetFeatures, &bits.to_ne_bytes(), &[]).is_err());
    });
}

#[test]
fn the_guest_is_announced_where_it_is_now() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwrarp")]);
        let mut peer = Peer::new("zwrarp");
        // With the short header and with the long one.
        for features in [0, f::VERSION_1] {
            let (mut front, _memory) = front_end(&backend, "zwrarp", features);
            front.send_rarp(frames::GUEST_MAC).expect("sent");
            let got = peer.recv(PATIENCE).expect("a frame").bytes;
            assert_eq!(got.len(), 60);
            assert_eq!(got[..14], [[0xff; 6].as_slice(), &frames::GUEST_MAC, &[0x80, 0x35]].concat());
        }
        assert!(peer.drain().is_empty(), "once each");
        let mut guest = backend.guest("zwrarp", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
    });
}
