//! GET_VRING_BASE of a receive ring whose guest broke a rule, on each port. It shows what the
//! answer is, and that the ring goes on at its used index once the guest has repaired it.

use crate::support::attack::{PLAIN, SIZE, front_end};
use crate::support::frames::frame;
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::{GuestSlice, Transport};
use zerowire_testkit::net::veth::veth;

/// Sound chains in front of the one that breaks a rule.
const SOUND: u16 = 4;

/// A frame that needs more than the sound chains where those are [`SHORT`].
const FRAME: usize = 1400;

/// Bytes of a chain of which a frame needs several.
const SHORT: usize = 300;

/// Has the guest of `vm` break its receive ring by the last of several chains of `len` bytes, and
/// returns what GET_VRING_BASE answers then. The interface `peer` is the port's other side.
fn base_after_a_broken_chain(vm: Vm, peer: &str, len: usize) -> u16 {
    let name = vm.name;
    let backend = Backend::start(&[vm]);
    let peer = Peer::new(peer);
    let (mut transport, memory) = front_end(&backend, name, PLAIN);
    let mut rx = RawQueue::start(&memory, &mut transport, 0, SIZE).expect("a queue");
    let buffers: Vec<GuestSlice> =
        (0..=SOUND).map(|_| rx.place(&vec![0; len]).expect("guest memory")).collect();
    for (head, buffer) in (0..).zip(&buffers) {
        rx.write_desc(head, RawDesc::writable(buffer));
    }
    rx.write_desc(SOUND, RawDesc::readable(&buffers[usize::from(SOUND)]));
    (0..=SOUND).for_each(|head| rx.offer(head));
    rx.kick().expect("a kick");
    if len == SHORT {
        peer.send(&frame(1, FRAME));
    }
    assert!(rx.wait_error(PATIENCE).expect("a poll"), "the error descriptor");
    let base = transport.stop_queue(0).expect("stopped");
    assert_eq!(rx.ring().used_idx(), 0, "nothing was used");
    let error = backend.stats(name).last_error.expect("an error");
    assert!(error.contains("device-readable descriptor in a receive queue"), "{error}");

    // The same ring, with the answer as its base, and without the mistake.
    rx.write_desc(SOUND, RawDesc::writable(&buffers[usize::from(SOUND)]));
    let handle = transport.start_queue(0, &rx.ring().setup(base)).expect("started");
    transport.enable_queue(0, true).expect("enabled");
    let rx = RawQueue::from_parts(&memory, rx.ring().clone(), handle);
    rx.kick().expect("a kick");
    wait_until("a frame comes", || {
        peer.send(&frame(2, 100));
        rx.ring().used_idx() > 0
    });
    assert_eq!(rx.ring().used_entry(0).0, 0, "the first chain is the first that is used");
    base
}

/// What was parsed and not used is given back, the broken chain with it.
#[test]
fn a_tap_answers_the_used_index() {
    in_netns(|| {
        assert_eq!(base_after_a_broken_chain(Vm::new("zwbase"), "zwbase", SHORT), 0);
    });
}

/// As on a tap, by whichever way frames come.
#[test]
fn a_packet_port_answers_the_used_index() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for port in ["packet:v0,receive=socket", "packet:v0,receive=ring"] {
            let base = base_after_a_broken_chain(Vm::on("a", port), "v1", SHORT);
            assert_eq!(base, 0, "{port}");
        }
    });
}

/// Chains are with the kernel before frames come. A broken ring is not looked at again, so that
/// nothing of it is given back.
#[test]
fn an_xdp_port_answers_what_it_has_taken() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let base = base_after_a_broken_chain(Vm::on("a", "xdp:v0,mode=copy"), "v1", 2048);
        assert_eq!(base, SOUND + 1);
    });
}
