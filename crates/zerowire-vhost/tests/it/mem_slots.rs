//! Guests with many memory devices: as many regions as GET_MAX_MEM_SLOTS says, added one by one.

use std::sync::Arc;

use crate::support::vsock::VsockBackend;
use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::vsock::PacketHeader;
use zerowire_guest::{GuestAddr, GuestError, GuestMemory, Region, Transport, VhostUser, features as f};
use zerowire_testkit::limits::allow_descriptors;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;
use zerowire_vhost_user::{Request, WireError};

const SLOTS: u64 = 509;
/// The first region holds the rings, the others lie behind it with holes between them.
const FIRST_BYTES: usize = 4 << 20;
const BYTES: usize = 8192;

fn at(slot: u64) -> GuestAddr {
    GuestAddr(if slot == 0 { 0 } else { (1 << 32) + slot * 4 * BYTES as u64 })
}

/// A guest with all regions that it may have, which the device has as well.
struct Plugged {
    front: VhostUser,
    memory: GuestMemory,
    regions: Vec<Arc<Region>>,
}

impl Plugged {
    fn new(mut front: VhostUser) -> Self {
        // Each region is a descriptor, here and in the back end of this process.
        allow_descriptors();
        assert_eq!(front.ask(Request::GetMaxMemSlots).expect("GET_MAX_MEM_SLOTS"), SLOTS);
        let memory = GuestMemory::new(&[(at(0), FIRST_BYTES)]).expect("memory");
        front.negotiate(f::VERSION_1).expect("features");
        front.share_memory(&memory).expect("shared");
        let mut regions = Vec::new();
        for slot in 1..SLOTS {
            let region = memory.add_region(at(slot), BYTES).expect("a region");
            front.add_memory(&region).unwrap_or_else(|e| panic!("slot {slot}: {e}"));
            regions.push(region);
        }
        Self { front, memory, regions }
    }

    fn queue(&mut self, queue: u16) -> RawQueue {
        let rings = self.memory.only(at(0)).expect("the first region");
        RawQueue::start(&rings, &mut self.front, queue, 512).expect("a queue")
    }

    /// One more is refused, and the connection goes on. With one less there is room again.
    fn one_more_is_refused(&mut self) {
        let region = self.memory.add_region(at(SLOTS), BYTES).expect("a region");
        let refused = self.front.add_memory(&region);
        assert!(matches!(refused, Err(GuestError::Wire(WireError::Refused { .. }))), "{refused:?}");
        self.front.remove_memory(&self.regions[7]).expect("removed");
        self.front.add_memory(&region).expect("added");
    }
}

fn a_frame_each_way(backend: &Backend, vm: &str, peer: &mut Peer) {
    let mut guest = Plugged::new(backend.connect(vm));
    let (mut rx, mut tx) = (guest.queue(0), guest.queue(1));
    for queue in 0..2 {
        guest.front.enable_queue(queue, true).expect("enabled");
    }
    for (n, slot) in (0..).zip([1, 200, SLOTS - 1]) {
        let place = guest.memory.at(at(slot), BYTES).expect("its memory");
        let frame = frames::frame(n, 600);
        place.write(0, &[0; 12]);
        place.write(12, &frame);
        tx.write_chain(0, &[RawDesc { addr: at(slot).0, len: 612, ..RawDesc::default() }]);
        tx.offer(0);
        tx.kick().expect("a kick");
        assert_eq!(peer.expect().bytes, frame, "from slot {slot}");
        let addr = at(slot).0 + 4096;
        rx.write_chain(0, &[RawDesc { addr, len: 4096, flags: DESC_WRITE, next: 0 }]);
        rx.offer(0);
        rx.kick().expect("a kick");
        // One that comes while the device has no buffer waits for it.
        peer.send(&frame);
        assert!(rx.wait_used(n as u16 + 1, PATIENCE), "into slot {slot}");
        let mut got = vec![0; frame.len()];
        place.read(4096 + 12, &mut got);
        assert_eq!(got, frame);
    }
    // A frame with a piece in each of them.
    let frame = frames::frame(9, 100 * (SLOTS as usize - 1) - 12);
    let whole = [&[0; 12], frame.as_slice()].concat();
    let mut chain = Vec::new();
    for (slot, piece) in (1..).zip(whole.chunks(100)) {
        guest.memory.at(at(slot), 100).expect("its memory").write(0, piece);
        chain.push(RawDesc { addr: at(slot).0, len: 100, ..RawDesc::default() });
    }
    tx.write_chain(0, &chain);
    tx.offer(0);
    tx.kick().expect("a kick");
    assert_eq!(peer.expect().bytes, frame);
    guest.one_more_is_refused();
    let text = backend.stats(vm).last_error.unwrap_or_default();
    assert!(text.contains("more than 509 memory regions"), "{text}");
}

#[test]
fn a_tap_takes_509_regions() {
    own_process!();
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwslots")]);
        crate::support::ip(&["link", "set", "zwslots", "mtu", "60000"]);
        a_frame_each_way(&backend, "zwslots", &mut Peer::new("zwslots"));
    });
}

#[test]
fn a_packet_port_takes_509_regions() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 60_000);
        let backend = Backend::start(&[Vm::on("a", "packet:v0,receive=socket")]);
        a_frame_each_way(&backend, "a", &mut Peer::new("v1"));
    });
}

#[test]
fn a_vsock_device_takes_509_regions() {
    own_process!();
    let backend = VsockBackend::one();
    let mut guest = Plugged::new(backend.connect("vm"));
    let (_rx, mut tx) = (guest.queue(0), guest.queue(1));
    for queue in 0..2 {
        guest.front.enable_queue(queue, true).expect("enabled");
    }
    for (n, slot) in (0..).zip([1, 200, SLOTS - 1]) {
        // A reset of no connection, which is counted.
        let header = PacketHeader {
            src_cid: 3,
            dst_cid: 2,
            src_port: 1,
            dst_port: 1,
            op: 3,
            kind: 1,
            ..PacketHeader::default()
        };
        guest.memory.at(at(slot), 44).expect("its memory").write(0, &header.to_bytes());
        tx.write_chain(0, &[RawDesc { addr: at(slot).0, len: 44, ..RawDesc::default() }]);
        tx.offer(0);
        tx.kick().expect("a kick");
        assert!(tx.wait_used(n + 1, PATIENCE), "from slot {slot}");
        wait_until("it is counted", || backend.stats("vm").totals.control_packets == u64::from(n) + 1);
    }
    guest.one_more_is_refused();
}
