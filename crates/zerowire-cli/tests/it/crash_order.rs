//! `zerowire net` on an AF_XDP port, killed under load. Like QEMU, the front end keeps no in-flight
//! region: the used index alone says which chains are out.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Guest, PATIENCE, Program, connect, frames, in_netns};
use zerowire_guest::net::{TxQueue, VirtioNetHdr};
use zerowire_testkit::net::{run, veth};
use zerowire_testkit::random::Random;

/// How often the program is killed.
const DEATHS: u64 = 30;

/// Numbered frames that have come.
#[derive(Default)]
struct Seen(BTreeSet<u32>);

impl Seen {
    /// Each comes whole, and at most once.
    fn take(&mut self, bytes: &[u8], len: impl Fn(u32) -> usize) {
        if bytes[12..14] != frames::EXPERIMENT {
            // The kernel has things to say, too.
            return;
        }
        let n = frames::number(bytes);
        assert!(self.0.insert(n), "frame {n} comes twice");
        assert_eq!(bytes, frames::frame(n, len(n)), "frame {n} is whole");
    }
}

fn tc(arguments: &[&str]) {
    run("tc", &[&["qdisc"], arguments].concat());
}

/// What QEMU does when the connection breaks: it gives back what is in the ring behind the used
/// index. See hw/virtio/virtio.c, `virtio_queue_restore_last_avail_idx`, and hw/net/virtio-net.c
/// for a link that is down.
fn give_back_the_rest(tx: &mut TxQueue) {
    let ring = tx.ring().memory();
    let (size, mut used, avail) = (ring.size(), ring.used_idx(), ring.avail_idx());
    while used != avail {
        let slot = usize::from(used % size);
        let head: u16 = ring.avail().read_int(4 + 2 * slot);
        ring.used().write_int(4 + 8 * slot, u32::from(head));
        ring.used().write_int(8 + 8 * slot, 0u32);
        used = used.wrapping_add(1);
    }
    ring.used().atomic_u16(2).store(used, Ordering::Release);
    tx.reap().expect("no chain is given back that is not out");
    assert_eq!(tx.in_flight(), 0, "none is lost");
}

#[test]
fn a_back_end_that_is_killed_while_frames_are_held_up_repeats_none_and_loses_no_descriptor() {
    in_netns(|| {
        veth::veth("v0", "v1", 1, 1500);
        let mut peer = veth::slow_peer("v1", "w0", "w1");
        let dir = tempfile::tempdir().expect("a directory");
        let (socket, file) = (dir.path().join("net"), dir.path().join("metadata.json"));
        std::fs::write(&file, "{}").expect("a metadata file");
        let start = || {
            let (socket, file) = (socket.display().to_string(), file.display().to_string());
            // With a metadata service short frames are copied, and long ones lent.
            let port = ["--port", "xdp:v0,mode=copy", "--metadata", &file, "--json"];
            Program::net(&[&["--sandbox", "off", "--socket", &socket], &port[..]].concat())
        };
        let mut program = start();
        let mut guest = Guest::start(connect(&socket));
        let mut random = Random::new(5);
        let out_len = |n: u32| 60 + (n as usize * 37) % if n.is_multiple_of(3) { 1400 } else { 80 };
        let back_len = |n: u32| 60 + (n as usize * 13) % 1400;
        let (mut out, mut back, mut seen, mut got) = (0, 0, Seen::default(), Seen::default());
        for round in 0..DEATHS {
            // Nothing passes behind the first frames, little does, or all.
            let rate = ["8bit", "1mbit", "1gbit"][round as usize % 3];
            tc(&["replace", "dev", "w0", "root", "tbf", "rate", rate, "burst", "3000", "limit", "10000000"]);
            let wait = Duration::from_micros(random.below(30_000) as u64);
            let killer = std::thread::spawn(move || {
                std::thread::sleep(wait);
                program.kill();
            });
            while !killer.is_finished() {
                let tx = &mut guest.pairs[0].tx;
                tx.reap().expect("a sound ring");
                for _ in 0..random.below(48) {
                    let frame = frames::frame(out, out_len(out));
                    if !tx.send(&VirtioNetHdr::default(), &frame).expect("a frame that fits") {
                        break;
                    }
                    out += 1;
                }
                tx.publish().expect("published");
                for _ in 0..random.below(4) {
                    peer.send(&frames::frame(back, back_len(back)));
                    back += 1;
                }
                harvest(&mut guest, &mut got, back_len);
                peer.drain().iter().for_each(|f| seen.take(&f.bytes, out_len));
            }
            killer.join().expect("it was killed");
            give_back_the_rest(&mut guest.pairs[0].tx);
            // The queue is the dead socket's as long as frames of it are held.
            tc(&["del", "dev", "w0", "root"]);
            program = start();
            let reconnected = guest.driver.reconnect(connect(&socket), &mut guest.pairs);
            reconnected.unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        // All buffers are there: more frames than the ring has entries pass.
        guest.wait_for_frames(&mut peer);
        peer.drain().iter().for_each(|f| seen.take(&f.bytes, out_len));
        for n in 0..600 {
            let bytes = frames::frame(n, 60 + n as usize);
            peer.send(&bytes);
            assert_eq!(guest.expect_numbered(), bytes);
            guest.send(&bytes);
            let came =
                std::iter::from_fn(|| peer.recv(PATIENCE)).find(|f| f.bytes[12..14] == frames::EXPERIMENT);
            assert!(came.is_some_and(|f| f.bytes == bytes), "frame {n}");
        }
        println!("{} of {out} frames came out, {} of {back} in", seen.0.len(), got.0.len());
        assert!(!seen.0.is_empty() && !got.0.is_empty(), "frames moved");
        program.signal(libc::SIGUSR1);
        let line = program.wait_line(1);
        let stats: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let vm = &stats["vms"][0];
        for key in ["ring_errors", "connection_errors", "unsure_frames", "out_of_order_frames"] {
            assert_eq!(vm[key], 0, "{key}: {vm}");
        }
        program.stop();
    });
}

fn harvest(guest: &mut Guest, got: &mut Seen, len: impl Fn(u32) -> usize) {
    let rx = &mut guest.pairs[0].rx;
    rx.harvest(usize::MAX, |f| got.take(&f.to_vec(), &len)).expect("a sound ring");
    rx.publish().expect("published");
}
