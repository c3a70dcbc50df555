//! Queues, devices, front ends and memory come and go while frames flow: none is lost that need not
//! be, none comes twice.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::attack::{PLAIN, front_end};
use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, frames, guest_memory, in_netns, options, send_each, wait_until,
    with_metadata,
};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::net::{Layout, NetDriver, QueuePair, RxQueue, VirtioNetHdr};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::{
    GuestAddr, Interrupt, QueueHandle, Transport, VhostUser, features as f, new_eventfd, protocol,
};
use zerowire_net::{Fleet, NetChange};
use zerowire_vhost_user::Request;

#[test]
fn queues_stop_and_go_on_where_they_were() {
    in_netns(move || {
        let backend = Backend::start(&[Vm::new("zwstop")]);
        let mut peer = Peer::new("zwstop");
        let mut guest = backend.guest("zwstop", &options(0, Layout::Split));
        for n in 0..30 {
            guest.ping(&mut peer, n);
            // As VMMs pause a VM: queues stay enabled. One that is started and disabled discards
            // what it is given.
            for queue in 0..2 {
                guest.driver.transport().stop_queue(queue).expect("stopped");
            }
            // Frames for the guest wait in the port; frames of the guest wait in its ring.
            let waits = frames::frame(1000 + n, 700);
            peer.send(&waits);
            let out = frames::frame(2000 + n, 700);
            assert!(guest.pairs[0].tx.send(&VirtioNetHdr::default(), &out).expect("room"));
            guest.pairs[0].tx.publish().expect("published");
            assert!(guest.recv(0, Duration::ZERO).is_none());
            assert!(peer.drain().is_empty());
            guest.driver.resume(&mut guest.pairs).expect("resumed");
            assert_eq!(guest.expect().1, waits);
            assert_eq!(peer.expect().bytes, out);
            assert!(guest.pairs[0].tx.drain(PATIENCE).expect("sound"));
        }
        let stats = backend.stats("zwstop");
        assert_eq!((stats.transmit.totals.frames, stats.receive.totals.frames), (60, 60));
        assert_eq!(stats.transmit.totals.dropped_total() + stats.receive.totals.dropped_total(), 0);
    });
}

/// Where a stopped queue has to go on: behind the last chain that was given back, whatever was
/// parsed ahead.
#[test]
fn the_base_of_a_stopped_queue_is_its_used_index() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwbase")]);
        let peer = Peer::new("zwbase");
        let (mut transport, memory) = front_end(&backend, "zwbase", PLAIN);
        let mut rx = RawQueue::start(&memory, &mut transport, 0, 64).expect("a queue");
        let buffer = rx.place(&[0; 2048]).expect("guest memory");
        for i in 0..64 {
            rx.write_chain(i, &[RawDesc::writable(&buffer)]);
            rx.offer(i);
        }
        rx.kick().expect("a kick");
        for n in 0..7 {
            peer.send(&frames::frame(n, 60));
        }
        assert!(rx.wait_used(7, PATIENCE));
        assert_eq!(transport.stop_queue(0).expect("stopped"), 7);
        assert_eq!(transport.stop_queue(0).expect("stopped twice is no harm"), 7);
    });
}

#[test]
fn a_disabled_transmit_queue_discards_and_a_disabled_receive_queue_gives_nothing() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwoff")]);
        let mut peer = Peer::new("zwoff");
        let mut guest = backend.guest("zwoff", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        guest.driver.transport().enable_queue(1, false).expect("disabled");
        guest.send_plain(&(0..10).map(|n| frames::frame(n, 200)).collect::<Vec<_>>());
        assert!(peer.drain().is_empty(), "a disabled queue sends nothing");
        assert_eq!(backend.stats("zwoff").transmit.totals.dropped_total(), 10);
        guest.driver.transport().enable_queue(1, true).expect("enabled");

        guest.driver.transport().enable_queue(0, false).expect("disabled");
        let waits = frames::frame(5, 300);
        peer.send(&waits);
        guest.driver.transport().barrier().expect("all handled");
        assert!(guest.recv(0, Duration::ZERO).is_none());
        assert_eq!(backend.stats("zwoff").receive.totals.frames, 1);
        guest.driver.transport().enable_queue(0, true).expect("enabled");
        assert_eq!(guest.expect().1, waits);
        guest.ping(&mut peer, 2);
    });
}

#[test]
fn a_device_that_was_reset_starts_anew_on_the_same_connection() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwreset")]);
        let mut peer = Peer::new("zwreset");
        let mut transport = backend.connect("zwreset");
        for round in 0..6 {
            let memory = guest_memory();
            // Each time with other features.
            let without = if round % 2 == 0 { 0 } else { f::NET_MRG_RXBUF | f::RING_EVENT_IDX };
            let (driver, pairs) =
                NetDriver::start(transport, &memory, &options(without, Layout::Split)).expect("a driver");
            let mut guest = Guest { driver, pairs, memory };
            guest.ping(&mut peer, round);
            transport = guest.driver.into_transport();
            match round % 3 {
                // RESET_DEVICE behind GET_VRING_BASE of all queues.
                0 => transport.reset().expect("reset"),
                // The device status alone.
                1 => {
                    transport.set_status(0).expect("status 0");
                    assert_eq!(transport.status().expect("a status"), 0);
                }
                // RESET_DEVICE alone.
                _ => transport.tell(Request::ResetDevice, &[], &[]).expect("reset"),
            }
            let used = guest.pairs[0].tx.ring().memory().used_idx();
            guest.pairs[0].tx.send(&VirtioNetHdr::default(), &frames::frame(9, 60)).expect("sound");
            guest.pairs[0].tx.publish().expect("published");
            guest.pairs[0].tx.kick().expect("a kick");
            transport.barrier().expect("all handled");
            assert_eq!(
                guest.pairs[0].tx.ring().memory().used_idx(),
                used,
                "a reset device leaves the ring alone"
            );
            assert!(peer.drain().is_empty());
        }
        assert_eq!(backend.stats("zwreset").connections, 1);
    });
}

#[test]
fn kick_and_call_descriptors_can_be_replaced_while_the_queue_runs() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwnewfd")]);
        let mut peer = Peer::new("zwnewfd");
        let (mut transport, memory) = front_end(&backend, "zwnewfd", PLAIN & !f::RING_EVENT_IDX);
        let mut queue = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
        let mut old = Vec::new();
        for n in 0..10 {
            let doorbell = new_eventfd().expect("an eventfd");
            let interrupt = Interrupt::new().expect("an eventfd");
            let body = 1u64.to_ne_bytes();
            transport.tell(Request::SetVringKick, &body, &[doorbell.as_fd()]).expect("a new kick descriptor");
            transport
                .tell(Request::SetVringCall, &body, &[interrupt.as_fd()])
                .expect("a new call descriptor");
            transport.barrier().expect("all handled");
            let handle = QueueHandle { doorbell: Box::new(doorbell), interrupt, error: None };
            let ring = queue.ring().clone();
            old.push(std::mem::replace(&mut queue, RawQueue::from_parts(&memory, ring, handle)));
            // A call comes along with the new descriptor, since one may have gone to the old one.
            assert!(queue.handle().interrupt.wait(PATIENCE).expect("a poll"));
            queue.handle().interrupt.clear().expect("cleared");
            for o in &old {
                o.handle().interrupt.clear().expect("cleared");
            }
            let frame = frames::frame(n, 90);
            let whole = queue.place(&[&[0; 12], frame.as_slice()].concat()).expect("guest memory");
            queue.write_chain(0, &[RawDesc::readable(&whole)]);
            queue.offer(0);
            queue.kick().expect("a kick");
            assert_eq!(peer.expect().bytes, frame);
            assert!(queue.handle().interrupt.wait(PATIENCE).expect("a poll"), "the new descriptor is used");
            for o in &old {
                assert_eq!(o.handle().interrupt.clear().expect("read"), 0, "the old ones are not");
            }
        }
    });
}

/// One frame each way with raw queues and a header of `header_len` bytes.
fn one_each_way(backend: &Backend, peer: &mut Peer, vm: &str, features: u64, header_len: usize) {
    let (mut transport, memory) = front_end(backend, vm, features);
    let mut tx = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
    let mut rx = RawQueue::start(&memory, &mut transport, 0, 16).expect("a queue");
    let buffer = rx.place(&[0xee; 2048]).expect("guest memory");
    rx.write_chain(0, &[RawDesc { flags: DESC_WRITE, ..RawDesc::readable(&buffer) }]);
    rx.offer(0);
    rx.kick().expect("a kick");
    let frame = frames::frame(header_len as u32, 123);
    let whole = tx.place(&[&vec![0; header_len], frame.as_slice()].concat()).expect("guest memory");
    tx.write_chain(0, &[RawDesc::readable(&whole)]);
    tx.offer(0);
    tx.kick().expect("a kick");
    assert_eq!(peer.expect().bytes, frame);
    peer.send(&frame);
    assert!(rx.wait_used(1, PATIENCE));
    assert_eq!(rx.ring().used_entry(0), (0, (header_len + frame.len()) as u32));
    let mut got = Vec::new();
    buffer.append_to(0, header_len + frame.len() + 1, &mut got);
    assert_eq!(got[header_len..header_len + frame.len()], frame);
    assert_eq!(got[header_len + frame.len()], 0xee, "nothing behind the frame is written");
    if header_len == 12 {
        assert_eq!(got[10..12], [1, 0], "num_buffers");
    }
    drop((tx, rx, transport));
    wait_until("the connection has ended", || !backend.stats(vm).connected);
}

#[test]
fn the_header_is_as_long_as_each_front_end_wants_it() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwhdrlen")]);
        let mut peer = Peer::new("zwhdrlen");
        for _ in 0..2 {
            one_each_way(&backend, &mut peer, "zwhdrlen", f::VERSION_1, 12);
            one_each_way(&backend, &mut peer, "zwhdrlen", 0, 10);
            one_each_way(&backend, &mut peer, "zwhdrlen", f::NET_MRG_RXBUF, 12);
            one_each_way(&backend, &mut peer, "zwhdrlen", f::RING_EVENT_IDX, 10);
        }
        assert_eq!(backend.stats("zwhdrlen").last_error, None);
    });
}

/// Frames that waited for a guest that is gone are not the next one's.
#[test]
fn a_new_front_end_does_not_get_frames_of_the_old_one() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwstale")]);
        let mut peer = Peer::new("zwstale");
        let mut guest = backend.guest("zwstale", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        guest.driver.stop().expect("stopped");
        (0..20).for_each(|n| peer.send(&frames::frame(n, 400)));
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("zwstale").connected);
        let mut guest = backend.guest("zwstale", &options(0, Layout::Split));
        guest.ping(&mut peer, 77);
        assert!(guest.recv(0, Duration::ZERO).is_none());
    });
}

const STREAM: u32 = 4000;

/// Receives numbered frames.
fn stream_in(rx: &mut RxQueue, received: &AtomicU32) {
    for n in 0..STREAM {
        let (_, frame) = rx.recv(PATIENCE).expect("a sound ring").expect("a frame");
        assert_eq!(frame, frames::frame(n, 18 + (n as usize * 17) % 1490));
        received.store(n + 1, Ordering::Release);
    }
}

/// Runs `change` again and again while frames flow both ways; all of them must arrive, in order,
/// once. The front end leaves out the protocol features `without`.
fn under_traffic(
    name: &'static str,
    without: u64,
    mut change: impl FnMut(&mut NetDriver<VhostUser>, u32) + Send + 'static,
) {
    in_netns(move || {
        let backend = Backend::start(&[Vm::new(name)]);
        let mut peer = Peer::new(name);
        let front = backend.connect_without(name, without);
        let Guest { mut driver, pairs, memory: _memory } = Guest::start(front, &options(0, Layout::Split));
        let received = Arc::new(AtomicU32::new(0));
        let count = received.clone();
        let Ok([QueuePair { mut rx, mut tx }]) = <[QueuePair; 1]>::try_from(pairs) else {
            panic!("one pair")
        };
        let out = std::thread::spawn(move || {
            send_each(&mut tx, (0..STREAM).map(|n| frames::frame(n, 18 + (n as usize * 31) % 6000)))
        });
        let input = std::thread::spawn(move || stream_in(&mut rx, &count));
        let host = std::thread::spawn(move || {
            let (mut sent, mut seen) = (0u32, 0u32);
            while sent < STREAM || seen < STREAM {
                // The tap keeps 500 frames at least.
                while sent < STREAM && sent - received.load(Ordering::Acquire) < 200 {
                    peer.send(&frames::frame(sent, 18 + (sent as usize * 17) % 1490));
                    sent += 1;
                }
                let wait = if sent == STREAM { PATIENCE } else { Duration::from_millis(1) };
                if seen < STREAM
                    && let Some(got) = peer.recv(wait)
                {
                    assert_eq!(
                        got.bytes,
                        frames::frame(seen, 18 + (seen as usize * 31) % 6000),
                        "frame {seen}"
                    );
                    seen += 1;
                }
            }
            assert!(peer.drain().is_empty());
        });
        let mut rounds = 0;
        while !(out.is_finished() && input.is_finished() && host.is_finished()) {
            change(&mut driver, rounds);
            rounds += 1;
        }
        for t in [out, input, host] {
            if let Err(panic) = t.join() {
                std::panic::resume_unwind(panic);
            }
        }
        assert!(rounds > 1, "nothing changed while frames flowed");
        let stats = backend.stats(name);
        assert_eq!((stats.ring_errors, stats.connection_errors), (0, 0), "{:?}", stats.last_error);
        assert_eq!(stats.transmit.totals.frames, u64::from(STREAM));
        assert_eq!(stats.receive.totals.frames, u64::from(STREAM));
    });
}

#[test]
fn memory_is_plugged_and_unplugged_under_traffic() {
    // Region by region, and with the whole table each time.
    for (name, without) in [("zwplug", 0), ("zwplugtable", protocol::CONFIGURE_MEM_SLOTS)] {
        under_traffic(name, without, |driver, round| {
            let memory = driver.memory().clone();
            let at = GuestAddr((4 + u64::from(round % 3)) << 32);
            let region = memory.add_region(at, 2 << 20).expect("a region");
            driver.transport().add_memory(&region).expect("plugged");
            memory.remove_region(at).expect("taken out");
            driver.transport().remove_memory(&region).expect("unplugged");
        });
    }
}

#[test]
fn statistics_and_messages_do_not_disturb_traffic() {
    under_traffic("zwmsgs", 0, |driver, _| {
        driver.transport().barrier().expect("answered");
        driver.transport().status().expect("answered");
    });
}

#[test]
fn requests_for_metadata_are_answered_inside_whichever_queue_they_take() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = with_metadata(Vm { queues: 2, ..Vm::new("zwmeta") }, dir.path());
        let backend = Backend::start(std::slice::from_ref(&vm));
        let mut peer = Peer::new("zwmeta");
        let options = zerowire_guest::net::NetOptions { queue_pairs: 2, ..options(0, Layout::Split) };
        let mut guest = backend.guest("zwmeta", &options);
        for pair in [0, 1, 0, 1] {
            guest.send(pair, &[(VirtioNetHdr::default(), frames::arp_request())]);
            let (header, reply) = guest.expect();
            assert_eq!(header.num_buffers, 1);
            assert_eq!(reply[12..14], [0x08, 0x06]);
            assert_eq!(reply[20..22], [0, 2], "an ARP reply");
            assert_eq!(reply[28..32], [169, 254, 169, 254]);
            assert_eq!(reply[..6], frames::GUEST_MAC);
        }
        assert!(peer.drain().is_empty(), "nothing of it reaches the port");
        guest.ping(&mut peer, 3);
        let stats = backend.stats("zwmeta");
        let arp = 12 + frames::arp_request().len() as u64;
        assert_eq!(stats.transmit.totals.copied_bytes["metadata"], 4 * arp);
        assert!(stats.receive.totals.copied_bytes["metadata"] >= 4 * arp);
        // A file that can't be read leaves all as it was.
        std::fs::write(dir.path().join("metadata.json"), "{").expect("a broken metadata file");
        let fleet: &dyn Fleet = &backend.server;
        let change = NetChange { vm: vm.name.to_owned(), metadata: vm.metadata, ..NetChange::default() };
        let errors = fleet.change(vec![change]);
        assert!(errors.len() == 1 && errors[0].to_string().contains("metadata.json"), "{errors:?}");
        guest.send(0, &[(VirtioNetHdr::default(), frames::arp_request())]);
        guest.expect();
    });
}

/// The detour takes frames for the service only: of all others as little is copied with it as
/// without.
#[test]
fn beside_the_metadata_service_frames_are_copied_as_little_as_without() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::new("zwwith"), dir.path()), Vm::new("zwwithout")]);
        let [with, without] = ["zwwith", "zwwithout"].map(|name| {
            let mut peer = Peer::new(name);
            let mut guest = backend.guest(name, &options(0, Layout::Pages));
            for (n, len) in (0..).zip([60, 1514, 4084, 4085, 9000, 30_000, 65_000]) {
                let frame = frames::udp_frame([10, 0, 0, 1], &vec![n as u8; len - 42]);
                guest.send_plain(std::slice::from_ref(&frame));
                assert_eq!(peer.expect().bytes, frame);
                peer.send(&frame[..len.min(1514)]);
                assert_eq!(guest.expect().1, frame[..len.min(1514)]);
            }
            backend.stats(name)
        });
        let sent = |t: &zerowire::ledger::Totals| (t.frames, t.zero_copied_bytes, t.copied_bytes.clone());
        assert_eq!(sent(&with.transmit.totals), sent(&without.transmit.totals));
        assert_eq!(with.transmit.totals.zero_copied_frames, 4);
        let received = with.receive.totals;
        assert!(
            received.zero_copied_frames > 0 && received.copied_bytes.keys().all(|k| *k == "overflow"),
            "{received:?}"
        );
    });
}
