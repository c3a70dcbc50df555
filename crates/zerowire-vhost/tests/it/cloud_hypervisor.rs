//! cloud-hypervisor as front end: it reconnects to a back end that was started again, restores a
//! snapshot, and migrates. Where it did not stop a ring itself it begins at the available index.
//! There the back end would pass over all buffers that the guest posted before.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::cloud_hypervisor::{Device, Net, RX, TX};
use crate::support::vsock::{Vm as VsockVm, VsockBackend};
use crate::support::{Backend, Peer, Vm, in_netns, wait_until};
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use zerowire_guest::misbehave::RawDesc;
use zerowire_guest::{GuestSlice, features as f};

const SIZE: u16 = 16;
/// Buffers that the guest posts, once: a Linux guest posts no more until some are used.
const POSTED: u16 = 8;

fn guest() -> Net {
    Net::new(SIZE, POSTED, 0)
}

fn guest_without_state() -> Net {
    let mut net = guest();
    net.device.protocol.remove(Protocol::DEVICE_STATE);
    net
}

fn backend() -> (Backend, Peer) {
    let backend = Backend::start(&[Vm::new("zwch")]);
    (backend, Peer::new("zwch"))
}

/// The connection of a guest that has exchanged a frame each way.
fn started(net: &mut Net, backend: &Backend, peer: &mut Peer, with_region: bool) -> Frontend {
    let vu = net.device.start(&backend.socket("zwch"), with_region, Some(&[0, 0]));
    net.ping(peer);
    vu
}

#[test]
fn a_front_end_that_reconnects_goes_on_behind_what_was_used() {
    in_netns(|| {
        for with_region in [false, true] {
            let mut net = guest();
            let (first, mut peer) = backend();
            let vu = started(&mut net, &first, &mut peer, with_region);
            drop((first, peer));
            drop(vu);
            // The guest sends while no back end is there.
            let waits = net.post();
            let (second, mut peer) = backend();
            let _vu = net.device.start(&second.socket("zwch"), with_region, None);
            assert_eq!(peer.expect().bytes, waits);
            for _ in 1..POSTED {
                net.ping(&mut peer);
            }
        }
    });
}

#[test]
fn a_snapshot_stops_the_rings_and_both_sides_of_it_go_on() {
    in_netns(|| {
        let mut net = guest();
        let (first, mut peer) = backend();
        let mut vu = started(&mut net, &first, &mut peer, true);
        net.device.enable(&mut vu, false);
        let (bases, state) = net.device.save(&mut vu);
        assert_eq!((bases.as_slice(), state.as_slice()), ([1, 1].as_slice(), [].as_slice()));
        // Resumed behind the snapshot.
        net.device.set_up(&mut vu, true, Some(&bases));
        net.ping(&mut peer);
        let (bases, state) = net.device.save(&mut vu);
        drop((first, peer));
        drop(vu);
        // Restored elsewhere, with a region of that back end.
        net.device.inflight = None;
        let (second, mut peer) = backend();
        let mut vu = net.device.connect(&second.socket("zwch"));
        assert!(net.device.load(&mut vu, &state));
        net.device.set_up(&mut vu, true, Some(&bases));
        net.ping(&mut peer);
    });
}

/// One that was made before cloud-hypervisor knew of a back end's state stops no ring: it pauses
/// the device.
#[test]
fn a_snapshot_of_a_front_end_without_the_state_goes_on_behind_what_was_used() {
    in_netns(|| {
        let mut net = guest_without_state();
        let (first, mut peer) = backend();
        let mut vu = started(&mut net, &first, &mut peer, true);
        net.device.enable(&mut vu, false);
        drop((first, peer));
        drop(vu);
        net.device.inflight = None;
        let (second, mut peer) = backend();
        let _vu = net.device.start(&second.socket("zwch"), true, None);
        for _ in 1..POSTED {
            net.ping(&mut peer);
        }
    });
}

#[test]
fn a_guest_that_migrates_goes_on_at_the_other_back_end() {
    in_netns(|| {
        for state in [true, false] {
            let mut net = if state { guest() } else { guest_without_state() };
            let (first, mut peer) = backend();
            let mut vu = started(&mut net, &first, &mut peer, true);
            let log = memfd(1 << 20);
            net.device.start_log(&mut vu, &log);
            net.ping(&mut peer);
            net.device.enable(&mut vu, false);
            let saved = state.then(|| net.device.save(&mut vu));
            drop((first, peer));
            drop(vu);
            net.device.inflight = None;
            let (second, mut peer) = backend();
            let mut vu = net.device.connect(&second.socket("zwch"));
            if let Some((_, state)) = &saved {
                assert!(net.device.load(&mut vu, state));
            }
            net.device.set_up(&mut vu, true, saved.as_ref().map(|(bases, _)| bases.as_slice()));
            net.ping(&mut peer);
        }
    });
}

#[test]
fn a_state_of_another_device_is_refused_with_the_reason() {
    in_netns(|| {
        let mut net = guest();
        let (first, mut peer) = backend();
        let mut vu = net.device.connect(&first.socket("zwch"));
        assert!(!net.device.load(&mut vu, b"something"));
        let text = first.stats("zwch").last_error.unwrap_or_default();
        assert!(text.contains("CHECK_DEVICE_STATE: the front end has a state to load"), "{text}");
        assert!(net.device.load(&mut vu, b""), "an empty one is taken after that");
        net.device.set_up(&mut vu, false, Some(&[0, 0]));
        net.ping(&mut peer);
    });
}

/// A process that the front end forks holds its descriptors until it executes another program.
#[test]
fn the_end_of_a_state_is_waited_for_and_not_for_ever() {
    in_netns(|| {
        let mut net = guest();
        let (backend, _peer) = backend();
        let mut vu = net.device.connect(&backend.socket("zwch"));
        let held = net.device.start_load(&mut vu, b"");
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        vu.check_device_state().expect("taken when the last descriptor is closed");
        child.join().expect("closed");

        let held = net.device.start_load(&mut vu, b"");
        vu.check_device_state().expect_err("it stays open");
        let text = backend.stats("zwch").last_error.unwrap_or_default();
        assert!(text.contains("CHECK_DEVICE_STATE: the front end asks"), "{text}");
        drop(held);
        assert!(net.device.load(&mut vu, b""), "the connection goes on");
    });
}

/// A vsock device with buffers posted, and its connection.
fn vsock(backend: &VsockBackend, with_region: bool) -> (Device, Frontend, Vec<GuestSlice>) {
    let mut device = Device::new(SIZE, f::VERSION_1 | f::RING_EVENT_IDX);
    let buffers = device.post_buffers(POSTED, 4096);
    let vu = device.start(&backend.vhost_path("vm"), with_region, Some(&[0, 0]));
    (device, vu, buffers)
}

/// A host program asks for a connection, which reaches the guest in a receive buffer.
fn dial(backend: &VsockBackend) -> UnixStream {
    let mut stream = UnixStream::connect(backend.uds("vm")).expect("a connection");
    stream.write_all(b"CONNECT 1234\n").expect("a request");
    stream
}

/// Sends a packet that the device answers or drops, and in either case uses: all zeros.
fn send_packet(device: &Device, head: u16) -> GuestSlice {
    let slice = device.memory.allocate(44, 16).expect("guest memory");
    slice.write(0, &[0; 44]);
    device.queues[TX].offer(head, RawDesc::readable(&slice));
    slice
}

#[test]
fn a_vsock_device_goes_on_behind_what_was_used() {
    for (shared, with_region) in [(false, false), (false, true), (true, true)] {
        let vms = [if shared { VsockVm::new("vm", 3).shared() } else { VsockVm::new("vm", 3) }];
        let backend = VsockBackend::start(&vms);
        let (mut device, vu, _buffers) = vsock(&backend, with_region);
        let _first = dial(&backend);
        device.queues[RX].wait_used(1);
        let _a = send_packet(&device, 0);
        device.queues[TX].wait_used(1);
        let backend = backend.restart(&vms);
        drop(vu);
        let _b = send_packet(&device, 1);
        let _vu = device.start(&backend.vhost_path("vm"), with_region, None);
        let used = device.queues[RX].ring.used_idx();
        let _second = dial(&backend);
        wait_until("a request in a buffer posted before", || device.queues[RX].ring.used_idx() > used);
        device.queues[TX].wait_used(2);
    }
}

/// Where payload is lent to programs, descriptors come back in another order: how many are back
/// does not say which.
#[test]
fn a_transmit_queue_that_lends_begins_where_the_front_end_says() {
    let vms = [VsockVm::new("vm", 3).shared()];
    let backend = VsockBackend::start(&vms);
    let (mut device, vu, _buffers) = vsock(&backend, false);
    let backend = backend.restart(&vms);
    drop(vu);
    let _passed_over = send_packet(&device, 0);
    let vu = device.start(&backend.vhost_path("vm"), false, None);
    let _b = send_packet(&device, 1);
    device.queues[TX].wait_used(1);
    assert_eq!(device.queues[TX].ring.used_entry(0).0, 1);
    assert_eq!(vu.get_vring_base(1).expect("GET_VRING_BASE"), 2);
}

fn memfd(len: u64) -> File {
    let file = File::from(rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(len).expect("its size");
    file
}
