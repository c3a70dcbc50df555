//! A frame that its guest changes while it is sent: what was inspected is what goes out.

use std::time::{Duration, Instant};

use zerowire_guest::features as f;
use zerowire_guest::misbehave::{RawDesc, RawQueue, Toggler};
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4};
use zerowire_guest::ring::DESC_NEXT;

use super::attack::{PLAIN, front_end};
use super::{Backend, PATIENCE, Peer, frames};

/// Entries of the ring.
const SIZE: u16 = 512;

/// Time for all of it: how many of the frames are sound is left to chance, and to what else the
/// machine does.
const LIMIT: Duration = PATIENCE.saturating_mul(10);

/// Bytes of a virtio-net header, and of Ethernet, IPv4 and TCP headers behind it.
const HEADERS: usize = 12 + frames::TCP_HEADERS;

/// Bytes that may lie in short descriptors; everything that the back end inspects is among them.
const CUT: usize = 192;

/// The frame and its descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of TCP payload.
    pub payload: usize,
    /// Bytes of each of the first descriptors. Many short ones are read slowly: what was read first
    /// has changed by the time that a second look would come.
    pub piece: usize,
    /// The frame asks for a checksum.
    pub partial: bool,
}

/// Sends such a frame again and again by queue 1 of `vm`, which is
/// [`with_metadata`](super::with_metadata). Its headers change all the while. They are those of a
/// sound frame, of one for the metadata service, or have wrong or unnegotiated offloads. Only the
/// sound one may reach the peer.
pub fn changing_frame(backend: &Backend, vm: &str, peer: &mut Peer, shape: Shape) {
    let (mut transport, memory) = front_end(backend, vm, PLAIN | f::NET_CSUM);
    let mut queue = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
    let header: [u8; 12] = match shape.partial {
        true => [FLAG_NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0],
        false => [0; 12],
    };
    let sound = [header.as_slice(), &frames::tcp_frame(1, shape.payload)].concat();
    let head = |vnet: &[u8], to: [u8; 4]| {
        let mut head = sound[..HEADERS].to_vec();
        head[..vnet.len()].copy_from_slice(vnet);
        head[12 + 30..12 + 34].copy_from_slice(&to);
        head
    };
    let (wire, service) = ([10, 0, 0, 1], [169, 254, 169, 254]);
    let others = [
        head(&header, service),
        head(&[FLAG_NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0xff, 16, 0], wire),
        // Segments, but HOST_TSO4 was not negotiated.
        head(&[FLAG_NEEDS_CSUM, GSO_TCPV4, 54, 0, 100, 0, 34, 0, 16, 0], wire),
    ];
    let memory = queue.place(&sound).expect("guest memory");
    let at = memory.guest_addr().0;
    let cut = if shape.piece < CUT { CUT.min(sound.len()) } else { 0 };
    let mut chain: Vec<_> = (0..cut).step_by(shape.piece).map(|i| (i, shape.piece.min(cut - i))).collect();
    chain.push((cut, sound.len() - cut));
    let last = chain.len() - 1;
    for (i, (offset, len)) in chain.into_iter().enumerate() {
        let (flags, next) = if i < last { (DESC_NEXT, i as u16 + 1) } else { (0, 0) };
        queue.write_desc(i as u16, RawDesc { addr: at + offset as u64, len: len as u32, flags, next });
    }
    let before = backend.stats(vm).transmit.totals;
    let togglers: Vec<_> = others
        .into_iter()
        .map(|other| Toggler::start(memory.part(0, HEADERS), [sound[..HEADERS].to_vec(), other]))
        .collect();
    let start = Instant::now();
    let (mut sent, mut seen) = (0u16, 0u64);
    loop {
        for _ in 0..64 {
            queue.offer(0);
            sent = sent.wrapping_add(1);
        }
        queue.kick().expect("a kick");
        assert!(queue.wait_used(sent, PATIENCE), "chains come back");
        for got in peer.drain() {
            seen += 1;
            assert!(!zerowire_metadata::wants(&got.bytes), "a frame for the service came: {got:?}");
            assert_eq!((got.gso_type(), got.bytes.len()), (0, sound.len() - 12), "{got:?}");
            let start = u16::from_le_bytes([got.header[6], got.header[7]]);
            assert!(!got.needs_csum() || start == 34, "{got:?}");
            assert_eq!(got.bytes[HEADERS - 12..], sound[HEADERS..], "the payload");
        }
        let now = backend.stats(vm).transmit.totals;
        let dropped = |reason| {
            now.dropped_frames.get(reason).unwrap_or(&0) - before.dropped_frames.get(reason).unwrap_or(&0)
        };
        let metadata = now.copied_bytes.get("metadata").unwrap_or(&0)
            - before.copied_bytes.get("metadata").unwrap_or(&0);
        // The kernel refuses headers that make no sense: none may ever get that far.
        assert_eq!(dropped("port_refused"), 0, "{shape:?}");
        // On a busy machine one of the writers may not have run before the others did all of it.
        let all_wrote = togglers.iter().all(|t| t.writes() > 0);
        if all_wrote && seen >= 1000 && dropped("bad_offload") >= 30 && metadata >= 30 * sound.len() as u64 {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "the memory did not change as it should: {shape:?}, {seen} came, {now:?}"
        );
    }
}
