//! Guests on packet ports that make frames as bad as they can. Chains have more pieces than one
//! system call takes, for frames that a transmit ring can't take.

use crate::support::attack::{PLAIN, front_end, good_frame};
use crate::support::toggle::{Shape, changing_frame};
use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns, tso, with_metadata};
use zerowire_guest::features as f;
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::net::VirtioNetHdr;
use zerowire_guest::net::header::{GSO_ECN, GSO_TCPV4};
use zerowire_testkit::net::veth::veth;

const FEATURES: u64 = PLAIN | f::NET_CSUM | f::NET_HOST_TSO4 | f::NET_HOST_ECN;

/// A frame to be segmented in a way that a ring's header can't say, its virtio-net header in front.
fn beside_the_ring(n: u32, payload: usize) -> Vec<u8> {
    let header = VirtioNetHdr { gso_type: GSO_TCPV4 | GSO_ECN, ..tso() };
    [header.encode().as_slice(), &frames::tcp_frame(n, payload)].concat()
}

/// The bytes in `count` descriptors: one too long to be all headers, and short ones.
fn pieces(queue: &mut RawQueue, bytes: &[u8], count: usize) -> Vec<RawDesc> {
    let whole = queue.place(bytes).expect("guest memory");
    let at = whole.guest_addr().0;
    let first = bytes.len() - 8 * (count - 1);
    assert!(first > 512, "{first} bytes");
    let piece = |at, len: usize| RawDesc { addr: at, len: len as u32, ..RawDesc::default() };
    let rest = (0..count - 1).map(|i| piece(at + (first + 8 * i) as u64, 8));
    std::iter::once(piece(at, first)).chain(rest).collect()
}

/// Puts a chain into an indirect table, linked.
fn table(queue: &mut RawQueue, mut chain: Vec<RawDesc>) -> RawDesc {
    let last = chain.len() - 1;
    for (i, d) in chain[..last].iter_mut().enumerate() {
        (d.flags, d.next) = (zerowire_guest::ring::DESC_NEXT, i as u16 + 1);
    }
    RawDesc::indirect(&queue.place_table(&chain).expect("guest memory"))
}

fn with(size: u16, attack: fn(&Backend, &mut RawQueue, &mut Peer)) {
    in_netns(move || {
        veth("v0", "v1", 1, 1500);
        for port in ["packet:v0,rings=on", "packet:v0,rings=off"] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            let (mut transport, memory) = front_end(&backend, "a", FEATURES);
            let mut queue = RawQueue::start(&memory, &mut transport, 1, size).expect("a queue");
            good_frame(&mut queue, &mut peer, 1);
            attack(&backend, &mut queue, &mut peer);
            good_frame(&mut queue, &mut peer, 2);
            let stats = backend.stats("a");
            assert_eq!((stats.ring_errors, stats.last_error), (0, None));
        }
    });
}

/// Offers the chains at once, waits for all of them, and finds these frames at the peer.
fn all_arrive(queue: &mut RawQueue, peer: &mut Peer, heads: &[u16], whole: &[Vec<u8>]) {
    let before = queue.ring().used_idx();
    heads.iter().for_each(|head| queue.offer(*head));
    queue.kick().expect("a kick");
    assert!(queue.wait_used(before.wrapping_add(heads.len() as u16), PATIENCE), "the chains come back");
    for (i, want) in whole.iter().enumerate() {
        let got = peer.expect().bytes;
        assert!(got == want[12..], "frame {i} of {} bytes, came {}", want.len() - 12, got.len());
    }
}

/// Eight frames of about 1024 pieces each: their scatter lists would be longer than a batch has
/// room for.
fn tables_of_the_longest_kind(backend: &Backend, queue: &mut RawQueue, peer: &mut Peer) {
    let counts = [1024, 1024, 1021, 1024, 1024, 1024, 1024, 1024];
    let whole: Vec<_> = (0..8).map(|n| beside_the_ring(n, 9000 + 100 * n as usize)).collect();
    for (i, (bytes, count)) in whole.iter().zip(counts).enumerate() {
        let chain = pieces(queue, bytes, count);
        let table = table(queue, chain);
        queue.write_desc(i as u16, table);
    }
    let before = backend.stats("a").transmit.totals;
    all_arrive(queue, peer, &[0, 1, 2, 3, 4, 5, 6, 7], &whole);
    let after = backend.stats("a").transmit.totals;
    assert_eq!((after.frames - before.frames, after.dropped_total()), (8, 0));
    let all: usize = whole.iter().map(Vec::len).sum();
    assert_eq!(after.copied_bytes["scattered"] as usize, all);
}

#[test]
fn frames_in_more_pieces_than_a_call_takes_are_gathered() {
    with(16, tables_of_the_longest_kind);
}

/// A chain without a table may be as long as the ring.
#[test]
fn a_chain_as_long_as_a_large_ring_is_gathered() {
    with(8192, |backend, queue, peer| {
        let counts = [4000, 4000];
        let whole: Vec<_> = (0..2).map(|n| beside_the_ring(n, 40_000 + 100 * n as usize)).collect();
        let mut at = 0u16;
        let mut heads = Vec::new();
        for (bytes, count) in whole.iter().zip(counts) {
            let chain = pieces(queue, bytes, count);
            queue.write_chain(at, &chain);
            heads.push(at);
            at += count as u16;
        }
        all_arrive(queue, peer, &heads, &whole);
        let totals = backend.stats("a").transmit.totals;
        assert_eq!((totals.frames, totals.dropped_total()), (3, 0));
        assert!(totals.copied_bytes.contains_key("scattered"), "{:?}", totals.copied_bytes);
    });
}

/// What goes beside the ring is counted by the rules of what goes by the socket.
#[test]
fn short_and_long_frames_beside_the_ring_are_counted_as_what_they_are() {
    with(16, |backend, queue, peer| {
        let short = beside_the_ring(1, 3000);
        let long = beside_the_ring(2, 30_000);
        for (i, bytes) in [&short, &long].into_iter().enumerate() {
            let whole = queue.place(bytes).expect("guest memory");
            queue.write_desc(i as u16, RawDesc::readable(&whole));
        }
        let before = backend.stats("a").transmit.totals.copied_bytes.get("small").copied().unwrap_or(0);
        all_arrive(queue, peer, &[0, 1], &[short.clone(), long.clone()]);
        let totals = backend.stats("a").transmit.totals;
        assert_eq!((totals.frames, totals.dropped_total()), (3, 0));
        assert_eq!(totals.copied_bytes["small"], before + short.len() as u64);
        assert_eq!(totals.zero_copied_bytes + totals.copied_bytes["header"], long.len() as u64);
    });
}

/// The ring's slot is filled from the inspected head, and what goes by the socket begins with it.
#[test]
fn what_goes_out_is_what_was_inspected_however_the_guest_changes_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let dir = tempfile::tempdir().expect("a directory");
        for port in ["packet:v0,rings=on", "packet:v0,rings=off"] {
            let backend = Backend::start(&[with_metadata(Vm::on("a", port), dir.path())]);
            let mut peer = Peer::new("v1");
            for (payload, piece, partial) in
                [(6000, 6100, false), (6000, 1, true), (3900, 4000, true), (400, 1, false)]
            {
                changing_frame(&backend, "a", &mut peer, Shape { payload, piece, partial });
            }
        }
    });
}
