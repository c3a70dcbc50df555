//! How far the device reads a guest's receive buffers, and how often. Descriptors that it must not
//! read are wrong: reading one stops the ring.

use crate::support::frames;
use crate::support::lab::Lab;
use crate::support::wire::{receive, rx_policy, wire};
use zerowire::ledger::Counters;
use zerowire_guest::ring::{DESC_NEXT, DESC_WRITE, RingMemory};
use zerowire_net::Receive;
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapInlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup, RxPort};

const SIZE: u16 = 256;
const BUFFERS: u64 = 0x10_0000;

fn tap_frame(n: u32, len: usize) -> Vec<u8> {
    [vec![0; 12], frames::frame(n, len)].concat()
}

/// The frame lies there, with a header that says that it is in one buffer.
fn assert_received(lab: &Lab, at: u64, frame: &[u8]) {
    let got = lab.bytes(at, frame.len());
    assert_eq!(got[10..12], [1, 0], "num_buffers");
    assert!(got[12..] == frame[12..], "the frame");
}

/// A receive side on `ring`, for a guest without mergeable buffers.
fn plain_side(lab: &Lab, ring: &RingMemory, clears_flags: bool) -> Receive<TapInlet> {
    let setup = ReceiveSetup { mergeable: false, header_len: 12, clears_flags };
    receive(lab.device(ring, 0, false), setup, rx_policy())
}

/// A tap says DATA_VALID whatever its offloads are. A guest without GUEST_CSUM is due no flag
/// (virtio 1.3 §5.1.6.4.1).
#[test]
fn a_guest_without_guest_csum_gets_no_flags() {
    const DATA_VALID: u8 = 2;
    for clears in [true, false] {
        let lab = Lab::new(&[(0, 0x10_0000), (BUFFERS, 0x10_0000)]);
        let ring = lab.ring(SIZE);
        let (port, far) = wire();
        let mut io = PortIo::new(port);
        let mut side = plain_side(&lab, &ring, clears);
        // Each other one has a header in two pieces, the first of a byte.
        for chain in 0..16 {
            let (head, at) = (chain * 2, BUFFERS + u64::from(chain) * 4096);
            let more = if chain % 2 == 0 { 0 } else { DESC_NEXT };
            ring.write_desc(head, at, if more == 0 { 1530 } else { 1 }, DESC_WRITE | more, head + 1);
            ring.write_desc(head + 1, at + 1, 1529, DESC_WRITE, 0);
            ring.write_avail(chain, head);
        }
        ring.publish_avail_idx(16);
        let counters = Counters::default();
        let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
        for n in 0..16u16 {
            // In place, and copied.
            let mut frame = tap_frame(n.into(), if n % 4 < 2 { 1514 } else { 60 });
            frame[0] = DATA_VALID;
            rustix::io::write(&far, &frame).expect("a frame on the wire");
            while counters.snapshot().frames <= n.into() {
                side.run(&mut io, &cx).expect("a sound ring");
            }
            let at = BUFFERS + u64::from(n) * 4096;
            assert_eq!(lab.bytes(at, 1), [if clears { 0 } else { DATA_VALID }], "frame {n}");
            assert_received(&lab, at, &frame);
        }
    }
}

/// The device doesn't read behind the buffers that a frame takes. So a short frame costs the same
/// however long its chain is. A frame that reaches there meets the mistake.
#[test]
fn chains_are_read_no_further_than_frames_reach() {
    const DESCRIPTORS: u16 = 16;
    let lab = Lab::new(&[(0, 0x10_0000), (BUFFERS, 0x10_0000)]);
    let ring = lab.ring(SIZE);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let mut side = plain_side(&lab, &ring, false);
    for chain in 0..SIZE / DESCRIPTORS {
        let (head, at) = (chain * DESCRIPTORS, BUFFERS + u64::from(chain) * 4096);
        for i in 0..DESCRIPTORS {
            let (addr, len) =
                [(at, 12), (at + 12, 1536)].get(usize::from(i)).copied().unwrap_or((u64::MAX / 2, 4096));
            let more = if i + 1 < DESCRIPTORS { DESC_NEXT } else { 0 };
            ring.write_desc(head + i, addr, len, DESC_WRITE | more, head + i + 1);
        }
        ring.write_avail(chain, head);
    }
    ring.publish_avail_idx(SIZE / DESCRIPTORS);
    let counters = Counters::default();
    let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
    for n in 0..8 {
        let frame = tap_frame(n, if n % 2 == 0 { 60 } else { 1514 });
        rustix::io::write(&far, &frame).expect("a frame on the wire");
        while counters.snapshot().frames <= u64::from(n) {
            side.run(&mut io, &cx).expect("a sound ring as far as it is read");
        }
        assert_received(&lab, BUFFERS + u64::from(n) * 4096, &frame);
    }
    rustix::io::write(&far, &tap_frame(9, 9000)).expect("a frame on the wire");
    let error = (0..10).find_map(|_| side.run(&mut io, &cx).err()).expect("an error").to_string();
    assert!(error.contains("are not in the guest's memory"), "{error}");
}

/// Buffers that were parsed for frames that did not come, or did not need them, serve the next ones
/// as they were parsed.
#[test]
fn buffers_that_a_frame_did_not_use_serve_the_next_one() {
    let lab = Lab::new(&[(0, 0x10_0000), (BUFFERS, 0x10_0000)]);
    let ring = lab.ring(SIZE);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let mut side = plain_side(&lab, &ring, false);
    let at = |head: u16| BUFFERS + u64::from(head) * 4096;
    for head in 0..8 {
        ring.write_desc(head, at(head), 2048, DESC_WRITE, 0);
        ring.write_avail(head, head);
    }
    ring.publish_avail_idx(8);
    let counters = Counters::default();
    let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
    for n in 0..5u16 {
        let frame = tap_frame(n.into(), 700);
        rustix::io::write(&far, &frame).expect("a frame on the wire");
        while side.run(&mut io, &cx).expect("a sound ring").port != RxPort::Empty {}
        assert_eq!(ring.used_entry(n), (n.into(), frame.len() as u32));
        assert_received(&lab, at(n), &frame);
        // Whoever read these descriptors again would stop the ring.
        let parsed = n + 1..side.host_mut().ring.next_avail();
        assert!(!parsed.is_empty(), "buffers for the frame that did not come");
        parsed.for_each(|head| ring.write_desc(head, u64::MAX / 2, 2048, 0, 0));
    }
}
