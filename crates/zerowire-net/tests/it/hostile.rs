//! Guests and front ends that break the rules. Whatever they do costs them and nobody else: another
//! VM of the same process is served all the while.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::attack::{PLAIN, SIZE, attack, attack_receive, front_end, good_frame};
use crate::support::neighbour::{Neighbour, UNHARMED};
use crate::support::toggle::{Shape, changing_frame};
use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns, options, wait_until, with_metadata};
use zerowire_guest::misbehave::{RawDesc, RawQueue, RingAttack, bad_headers, malformed_messages};
use zerowire_guest::net::{Layout, VirtioNetHdr};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::{
    GuestAddr, GuestMemory, STATUS_NEEDS_RESET, Transport, VhostUser, features as f, protocol,
};
use zerowire_vhost_user::{Config, MemoryRegion, Request, SingleRegion, VringState};

/// A guest of the VM `name`, which does nothing wrong and works.
fn neighbour(backend: &Backend, name: &'static str) -> Neighbour {
    let guest = backend.guest(name, &options(0, Layout::Split));
    let mut neighbour = Neighbour::new(name, guest, Peer::new(name));
    neighbour.ping();
    neighbour
}

#[test]
fn every_ring_attack_ends_as_it_should() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwatka"), Vm::new("zwatkb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwatka"), neighbour(&backend, "zwatkb"));
        for features in [PLAIN, PLAIN | f::IN_ORDER] {
            for a in RingAttack::ALL {
                attack(&backend, "zwatka", &mut peer, features, *a);
                neighbour.ping();
            }
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn every_ring_attack_on_a_receive_queue_ends_as_it_should() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwatra"), Vm::new("zwatrb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwatra"), neighbour(&backend, "zwatrb"));
        for features in [PLAIN, PLAIN | f::IN_ORDER] {
            for a in RingAttack::ALL {
                attack_receive(&backend, "zwatra", &mut peer, features, *a);
                neighbour.ping();
            }
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn a_ring_that_is_broken_by_receive_buffers_stops_and_transmit_goes_on() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwrxaa"), Vm::new("zwrxab")]);
        let (mut peer, mut neighbour) = (Peer::new("zwrxaa"), neighbour(&backend, "zwrxab"));
        for (len, flags, word) in
            [(1530, 0, "device-readable"), (11, DESC_WRITE, "can't hold the virtio-net header")]
        {
            let (mut transport, memory) = front_end(&backend, "zwrxaa", PLAIN);
            let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
            let mut rx = RawQueue::start(&memory, &mut transport, 0, SIZE).expect("a queue");
            let buffer = rx.place(&[0; 2048]).expect("guest memory");
            rx.write_chain(3, &[RawDesc { addr: buffer.guest_addr().0, len, flags, next: 0 }]);
            rx.offer(3);
            rx.kick().expect("a kick");
            peer.send(&frames::frame(1, 60));
            assert!(rx.wait_error(PATIENCE).expect("a poll"), "{word}");
            wait_until("the error is told", || {
                backend
                    .stats("zwrxaa")
                    .last_error
                    .is_some_and(|e| e.starts_with("queue 0: ") && e.contains(word))
            });
            assert_eq!(rx.ring().used_idx(), 0);
            good_frame(&mut tx, &mut peer, 5);
            neighbour.ping();
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn wrong_offload_fields_cost_that_frame_only() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwbadhdr")]);
        let mut peer = Peer::new("zwbadhdr");
        for layout in [Layout::Single, Layout::Pages] {
            let mut guest = backend.guest("zwbadhdr", &options(0, layout));
            for payload in [100, 8000] {
                let bad = frames::tcp_frame(1, payload);
                for (what, header) in bad_headers(bad.len() as u16) {
                    let before = backend.stats("zwbadhdr").transmit.totals;
                    guest.send(0, &[(header, bad.clone())]);
                    let good = frames::frame(2, 90);
                    guest.send(0, &[(VirtioNetHdr::default(), good.clone())]);
                    assert_eq!(peer.expect().bytes, good, "{what}");
                    let after = backend.stats("zwbadhdr").transmit.totals;
                    assert_eq!(after.frames, before.frames + 1, "{what}");
                    let dropped = |t: &zerowire::ledger::Totals| {
                        t.dropped_frames.get("bad_offload").copied().unwrap_or(0)
                    };
                    assert_eq!(dropped(&after), dropped(&before) + 1, "{what}");
                    assert_eq!(after.dropped_total(), dropped(&after), "{what}");
                }
            }
            assert!(peer.drain().is_empty());
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("zwbadhdr").connected);
        }
        assert_eq!(backend.stats("zwbadhdr").ring_errors, 0);
    });
}

#[test]
fn malformed_messages_are_refused_or_end_their_connection() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmsga"), Vm::new("zwmsgb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwmsga"), neighbour(&backend, "zwmsgb"));
        let mut accepted = Vec::new();
        for message in malformed_messages(2) {
            let (mut transport, _memory) = front_end(&backend, "zwmsga", PLAIN);
            let before = backend.stats("zwmsga");
            let connection = transport.connection();
            // The back end may have ended the connection before all of it was written.
            let _ = message.send(connection);
            if message.cut {
                drop(transport);
                wait_until("the connection has ended", || !backend.stats("zwmsga").connected);
            } else {
                match connection.recv() {
                    Ok(Some(reply)) => {
                        // The back end checks addresses when the ring starts: memory may come after
                        // them.
                        let later = message.name.starts_with("addresses that are in no region")
                            || message.name.starts_with("addresses that are odd")
                            || message.name.starts_with("addresses at the end");
                        if later {
                            start_ring(&mut transport).expect_err(&message.name);
                        } else if reply.u64().unwrap_or(0) == 0 {
                            accepted.push(message.name.clone());
                        }
                        transport.barrier().unwrap_or_else(|e| panic!("after {}: {e}", message.name));
                    }
                    _ => wait_until("the error is counted", || {
                        backend.stats("zwmsga").connection_errors > before.connection_errors
                    }),
                }
                drop(transport);
            }
        }
        assert!(accepted.is_empty(), "accepted: {accepted:#?}");
        // And all is as before.
        let mut guest = backend.guest("zwmsga", &options(0, Layout::Split));
        guest.ping(&mut peer, 9);
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

/// Starts ring 0 with the addresses that were set before.
fn start_ring(transport: &mut VhostUser) -> Result<(), zerowire_guest::GuestError> {
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    transport.tell(Request::SetVringNum, &VringState { index: 0, num: 256 }.encode(), &[])?;
    transport.tell(Request::SetVringKick, &0u64.to_ne_bytes(), &[kick.as_fd()])
}

#[test]
fn a_call_descriptor_that_would_block_holds_up_nothing() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwblocka"), Vm::new("zwblockb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwblocka"), neighbour(&backend, "zwblockb"));
        let (mut transport, memory) = front_end(&backend, "zwblocka", PLAIN & !f::RING_EVENT_IDX);
        let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
        good_frame(&mut tx, &mut peer, 1);
        // Full, and in the mode in which writing waits for a reader that never comes.
        let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        for request in [Request::SetVringCall, Request::SetVringErr] {
            transport.tell(request, &1u64.to_ne_bytes(), &[full.as_fd()]).expect("an eventfd is taken");
        }
        good_frame(&mut tx, &mut peer, 2);
        RingAttack::LoopOfOne.apply(&mut tx, &[0; 60]).expect("applied");
        wait_until("the ring has stopped", || backend.stats("zwblocka").ring_errors == 1);
        transport.stop_queue(1).expect("the queue's thread answers");
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

/// The driver has to reset a device of which a ring broke (virtio 1.3 §2.1.2).
#[test]
fn a_broken_ring_is_told_in_the_device_status() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwresta"), Vm::new("zwrestb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwresta"), neighbour(&backend, "zwrestb"));
        let (mut transport, memory) = front_end(&backend, "zwresta", PLAIN);
        let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
        good_frame(&mut tx, &mut peer, 1);
        assert_eq!(transport.status().expect("a status") & STATUS_NEEDS_RESET, 0);
        RingAttack::LoopOfOne.apply(&mut tx, &[0; 60]).expect("applied");
        assert!(tx.wait_error(PATIENCE).expect("a poll"), "the error descriptor");
        wait_until("the status says so", || transport.status().expect("a status") & STATUS_NEEDS_RESET != 0);
        transport.stop_queue(1).expect("stopped");
        transport.set_status(0).expect("reset");
        assert_eq!(transport.status().expect("a status"), 0);
        let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
        good_frame(&mut tx, &mut peer, 2);
        assert_eq!(transport.status().expect("a status") & STATUS_NEEDS_RESET, 0);
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

/// A front end begins at once; a connection of which nothing comes does not keep the VM from its
/// own.
#[test]
fn a_front_end_that_says_nothing_is_let_go() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwsilenta"), Vm::new("zwsilentb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwsilenta"), neighbour(&backend, "zwsilentb"));
        let mut silent = UnixStream::connect(backend.socket("zwsilenta")).expect("connected");
        silent.set_read_timeout(Some(3 * PATIENCE)).expect("a time limit");
        assert_eq!(silent.read_to_end(&mut Vec::new()).expect("the end of it"), 0);
        backend.guest("zwsilenta", &options(0, Layout::Split)).ping(&mut peer, 1);
        let error = backend.stats("zwsilenta").last_error.expect("an error");
        assert!(error.contains("no message within 10s"), "{error}");
        // One that has begun may take its time.
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn what_goes_out_is_what_was_inspected_however_the_guest_changes_it() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::new("zwtruth"), dir.path())]);
        let mut peer = Peer::new("zwtruth");
        // Frames that are copied whole, and longer ones, whose head alone is.
        for (payload, piece, partial) in
            [(6000, 6100, false), (6000, 1, false), (3900, 4000, true), (400, 1, true)]
        {
            changing_frame(&backend, "zwtruth", &mut peer, Shape { payload, piece, partial });
        }
    });
}

#[test]
fn memory_is_not_written_after_it_was_removed() {
    const PLUGGED: GuestAddr = GuestAddr(2 << 32);
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwrema"), Vm::new("zwremb")]);
        let (peer, mut neighbour) = (Peer::new("zwrema"), neighbour(&backend, "zwremb"));
        for round in 0..5 {
            let (mut transport, memory) = front_end(&backend, "zwrema", PLAIN);
            let region = memory.add_region(PLUGGED, 1 << 20).expect("a region");
            transport.add_memory(&region).expect("plugged");
            let mut rx = RawQueue::start(&memory, &mut transport, 0, 64).expect("a queue");
            let offer = |rx: &mut RawQueue, count: u16| {
                for i in 0..count {
                    let addr = PLUGGED.0 + u64::from(i % 64) * 4096;
                    rx.write_chain(i % 64, &[RawDesc { addr, len: 2048, flags: DESC_WRITE, next: 0 }]);
                    rx.offer(i % 64);
                }
                rx.kick().expect("a kick");
            };
            offer(&mut rx, 64);
            for n in 0..40 {
                peer.send(&frames::frame(n, 1000));
            }
            assert!(rx.wait_used(40, PATIENCE), "frames land in the plugged memory");
            let errors = backend.stats("zwrema").ring_errors;
            // Traffic goes on while the region goes.
            let sent: u32 = round * 5;
            for n in 0..sent {
                peer.send(&frames::frame(100 + n, 1000));
            }
            transport.remove_memory(&region).expect("removed");
            let view = memory.at(PLUGGED, 1 << 20).expect("still mapped here");
            view.fill(0xa5);
            for n in 0..30 {
                peer.send(&frames::frame(200 + n, 1000));
            }
            offer(&mut rx, 4);
            wait_until("the ring stops: its buffers are gone", || {
                backend.stats("zwrema").ring_errors == errors + 1
            });
            let error = backend.stats("zwrema").last_error.expect("an error");
            assert!(error.starts_with("queue 0: ") && error.contains("not in the guest's memory"), "{error}");
            let mut bytes = Vec::new();
            view.append_to(0, 1 << 20, &mut bytes);
            assert!(bytes.iter().all(|b| *b == 0xa5), "memory was written after its removal, round {round}");
            drop(transport);
            wait_until("the connection has ended", || !backend.stats("zwrema").connected);
            neighbour.ping();
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn a_front_end_that_truncates_its_memory_harms_only_itself() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwtrunca"), Vm::new("zwtruncb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwtrunca"), neighbour(&backend, "zwtruncb"));
        for shared in [false, true] {
            let (mut transport, memory) = front_end(&backend, "zwtrunca", PLAIN);
            let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
            let rx = RawQueue::start(&memory, &mut transport, 0, SIZE).expect("a queue");
            good_frame(&mut tx, &mut peer, 1);
            if shared {
                // With frames on their way in both directions.
                peer.send(&frames::frame(1, 500));
            }
            rustix::fs::ftruncate(memory.regions()[0].file(), 0).expect("truncated");
            // From here on this test must not touch the memory either.
            tx.kick().expect("a kick");
            rx.kick().expect("a kick");
            peer.send(&frames::frame(2, 500));
            neighbour.ping();
            let _ = transport.barrier();
            neighbour.ping();
            drop((tx, rx, transport));
            wait_until("the connection has ended", || !backend.stats("zwtrunca").connected);
        }
        let mut guest = backend.guest("zwtrunca", &options(0, Layout::Split));
        guest.ping(&mut peer, 9);
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

/// More pages are lost than the process may have mappings (vm.max_map_count), were each to be
/// replaced alone.
#[test]
fn a_front_end_that_loses_more_pages_than_there_may_be_mappings_harms_only_itself() {
    const ENTRIES: u16 = 256;
    const KEPT: u64 = 1 << 20;
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("the limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    in_netns(move || {
        let backend = Backend::start(&[Vm::new("zwlosta"), Vm::new("zwlostb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwlosta"), neighbour(&backend, "zwlostb"));
        // Every second page makes two mappings more.
        let len = KEPT + (limit / 2 + 4 * u64::from(ENTRIES)) * 2 * 4096;
        let memory = GuestMemory::new(&[(GuestAddr(0), len as usize)]).expect("guest memory");
        let mut transport = backend.connect("zwlosta");
        transport.negotiate(PLAIN).expect("features");
        transport.share_memory(&memory).expect("shared memory");
        let mut tx = RawQueue::start(&memory, &mut transport, 1, ENTRIES).expect("a queue");
        good_frame(&mut tx, &mut peer, 1);
        rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
        let mut lost = (KEPT..len).step_by(2 * 4096).peekable();
        let mut used = 1u16;
        while lost.peek().is_some() {
            for (i, addr) in (0..ENTRIES).zip(&mut lost) {
                tx.write_desc(i, RawDesc { addr, len: 72, flags: 0, next: 0 });
                tx.offer(i);
                used = used.wrapping_add(1);
            }
            tx.kick().expect("a kick");
            assert!(tx.wait_used(used, PATIENCE), "chains come back");
            peer.drain();
        }
        neighbour.ping();
        good_frame(&mut tx, &mut peer, 2);
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn a_file_too_short_for_its_region_is_refused_with_the_lengths() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwshort")]);
        let mut transport = backend.connect("zwshort");
        assert_ne!(transport.protocol() & protocol::REPLY_ACK, 0);
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, 0x3000).expect("its length");
        let region = MemoryRegion { guest_addr: 0, size: 0x4000, user_addr: 0, mmap_offset: 0 };
        transport
            .tell(Request::AddMemReg, &SingleRegion(region).encode(), &[file.as_fd()])
            .expect_err("refused");
        let error = backend.stats("zwshort").last_error.expect("an error");
        assert!(
            error.contains("0x4000") && error.contains("0x3000") && error.contains("share=on"),
            "{error}"
        );
        transport.barrier().expect("the connection goes on");
    });
}

#[test]
fn a_front_end_that_says_nothing_holds_up_nobody() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmutea"), Vm::new("zwmuteb")]);
        let (mut peer, mut neighbour) = (Peer::new("zwmutea"), neighbour(&backend, "zwmuteb"));
        let silent: Vec<VhostUser> = vec![backend.connect("zwmutea")];
        neighbour.ping();
        drop(silent);
        let mut guest = backend.guest("zwmutea", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        assert!(guest.recv(0, Duration::ZERO).is_none());
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn a_network_devices_configuration_space_is_left_to_the_front_end() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwconf")]);
        for request in [Request::GetConfig, Request::SetConfig] {
            let mut transport = backend.connect("zwconf");
            assert_eq!(transport.protocol() & protocol::CONFIG, 0);
            let body = Config { offset: 0, flags: 0, data: vec![0; 6] }.encode();
            transport.connection().send_request(request, true, &body, &[]).expect("sent");
            assert!(matches!(transport.connection().recv(), Ok(None)), "{request:?}");
        }
        wait_until("both have ended", || backend.stats("zwconf").connection_errors == 2);
        let error = backend.stats("zwconf").last_error.expect("an error");
        assert!(error.contains("SET_CONFIG: not offered"), "{error}");
    });
}
