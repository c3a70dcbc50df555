//! The vsock device without its thread, and a guest that says what its test wants.

use std::path::Path;

use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::packet::Header;
use zerowire_vsock::testing::{Guest, Harness, Layout};
use zerowire_vsock::{RX_QUEUE, VsockLimits};

/// A device with one VM, whose guest has room and answers nothing by itself.
pub fn one_guest(dir: &Path, limits: VsockLimits) -> (Harness, Guest) {
    one_guest_with(dir, limits, &MapPolicy::default())
}

/// As [`one_guest`], with other rules for mapped connections.
pub fn one_guest_with(dir: &Path, limits: VsockLimits, map: &MapPolicy) -> (Harness, Guest) {
    let mut harness = Harness::with_map(dir, &[3], limits, map).expect("a device");
    let guest = start(&mut harness, 0);
    (harness, guest)
}

/// Starts the guest of a VM; it has posted all its buffers.
pub fn start(harness: &mut Harness, vm: usize) -> Guest {
    let mut guest = Guest::new().expect("memory");
    harness.set_memory(vm, guest.memory());
    harness.start(vm, &guest).expect("rings");
    while guest.post(4096, Layout(0)) {}
    guest
}

/// What the guest has received, headers and payload.
pub fn received(guest: &mut Guest) -> Vec<(Header, Vec<u8>)> {
    let mut packets = Vec::new();
    guest.reap(RX_QUEUE, |p| {
        let (head, payload) = p.split_first_chunk().expect("a header");
        packets.push((Header::from_bytes(head), payload.to_vec()));
    });
    while guest.post(4096, Layout(0)) {}
    packets
}
