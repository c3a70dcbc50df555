//! A frame never lands outside the buffer that the guest posted. The tests compare all of the
//! guest's memory after frames of every length around the limits, at places of every kind.

use std::time::Duration;

use crate::support::frames::frame;
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::{Backend, Peer, Vm, in_netns};
use zerowire_guest::features as f;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::random::Random;

const HEADER: usize = 12;
/// The longest frame at MTU 1500, with a VLAN tag.
const LONGEST: usize = 1518;
/// The longest that the peer's socket sends: a frame with a tag needs its type.
const LONGEST_UNTAGGED: usize = 1514;

/// Frame `n` of `len` bytes, tagged if it is longer than the MTU allows otherwise.
fn sized(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = frame(n, len.max(18));
    bytes.truncate(len);
    if len > LONGEST_UNTAGGED {
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
    }
    bytes
}

fn header(buffers: u8) -> [u8; HEADER] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, buffers, 0]
}

/// Sends until the posted buffer is used: before the device has taken it, a frame is lost as on a
/// wire.
fn deliver(guest: &mut Patterned, peer: &Peer, bytes: &[u8]) -> (u16, u32) {
    for _ in 0..200 {
        peer.send(bytes);
        if let Some(used) = guest.used(Duration::from_millis(100)) {
            return used;
        }
    }
    panic!("a frame of {} bytes never comes", bytes.len());
}

/// One buffer, one frame, and a look at all memory.
fn one(guest: &mut Patterned, peer: &Peer, places: &[(u64, u32)], n: u32, len: usize) {
    let head = guest.post(places);
    let bytes = sized(n, len);
    let used = deliver(guest, peer, &bytes);
    let whole = [&header(1)[..], &bytes].concat();
    guest.expect_in(places, &whole);
    let what = format!("{len} bytes into {places:x?}");
    assert_eq!(used, (head, whole.len() as u32), "{what}");
    guest.check(&what);
}

#[test]
fn no_byte_lands_outside_a_posted_buffer() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", 0);
        let mut n = 0;
        let lengths = [14, 15, 60, 64, 1513, 1514, 1515, 1517, LONGEST];
        // At every alignment of a few bytes, over page bounds, at the first and the last byte of
        // regions and over the edge of two.
        let least = (HEADER + LONGEST) as u64;
        let mut places: Vec<u64> = (0..8).map(|i| DATA + 0x1000 - 6 + i).collect();
        places.extend([1 << 32, (1 << 32) + (1 << 20) - least, (2 << 20) - least, 1 << 20]);
        for place in places {
            for len in lengths {
                for room in [least, least + 1, 4096] {
                    if (place + room) & 0xfffff >= room || (place + room) & 0xfffff == 0 {
                        n += 1;
                        one(&mut guest, &peer, &[(place, room as u32)], n, len);
                    }
                }
            }
        }
        // The header apart, and pieces without a gap.
        for len in lengths {
            n += 1;
            one(&mut guest, &peer, &[(DATA + 5, 12), (DATA + 0x2001, LONGEST as u32)], n, len);
            one(&mut guest, &peer, &[(DATA + 7, 700), (DATA + 707, 830)], n + 1, len);
            n += 1;
        }
        assert_eq!(backend.stats("a").receive.totals.copied_total(), 0);
        // Too small, or in pieces that don't touch: over private memory, and still to the byte.
        for len in [14, 60, 700, 1514] {
            for places in [
                vec![(DATA + 3, (HEADER + len) as u32)],
                vec![(DATA + 9, 13), (DATA + 0x3000, 1517)],
                vec![(DATA + 9, 500), (DATA + 0x3000, 600), (DATA + 0x5000, 900)],
            ] {
                n += 1;
                one(&mut guest, &peer, &places, n, len);
            }
        }
        let copied = backend.stats("a").receive.totals.copied_bytes;
        assert_eq!(
            copied.keys().copied().collect::<Vec<_>>(),
            ["bounce_scattered_buffer", "bounce_small_buffer"]
        );
    });
}

#[test]
fn longer_frames_than_the_buffers_take_are_dropped_by_the_kernel() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", 0);
        let place = [(DATA + 0x123, 1530)];
        one(&mut guest, &peer, &place, 1, 100);
        // The memory was registered for frames of MTU 1500; the interface takes longer ones now.
        for name in ["v0", "v1"] {
            ip(&["link", "set", name, "mtu", "3000"]);
        }
        let head = guest.post(&place);
        let mut n = 10;
        for round in 0..20 {
            for len in [1519, 1520, 1600, 2000, 3000, 3014] {
                n += 1;
                peer.send(&frame(n, len));
            }
            guest.check(&format!("long frames, round {round}"));
        }
        let last = frame(7, LONGEST);
        assert_eq!(deliver(&mut guest, &peer, &last), (head, 1530));
        guest.expect_in(&place, &[&header(1)[..], &last].concat());
        guest.check("the frame behind the long ones");
    });
}

#[test]
fn random_places_and_lengths() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", f::NET_MRG_RXBUF);
        let mut random = Random::new(88_172_645_463_325_252);
        let mut number = 0;
        for round in 0..60 {
            // Places that don't overlap: a lane of 8 KiB each.
            let posted: Vec<_> = (0..24u64)
                .map(|lane| {
                    let region = [DATA, 1 << 20, 1 << 32][random.below(3)];
                    let place = (
                        region + lane * 0x2000 + random.below(0x1900) as u64,
                        1530 + random.below(20) as u32,
                    );
                    (guest.post(&[place]), place)
                })
                .collect();
            // The first ones find out when the device has taken them.
            let mut posted = posted.iter();
            guest.go_live(&peer, |_| posted.next().expect("a buffer for each probe").1);
            for (head, place) in posted {
                number += 1;
                let bytes = sized(number, 14 + random.below(LONGEST - 13));
                peer.send(&bytes);
                let used = guest.used(crate::support::PATIENCE).expect("a frame for a posted buffer");
                assert_eq!(used, (*head, (HEADER + bytes.len()) as u32));
                guest.expect_in(&[*place], &[&header(1)[..], &bytes].concat());
            }
            guest.check(&format!("round {round}"));
        }
    });
}
