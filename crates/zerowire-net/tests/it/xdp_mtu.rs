//! The MTU of an AF_XDP port's interface, or of the other end of its wire, becomes smaller and
//! larger again while a guest runs. Longer frames are refused and counted, and all others pass. No
//! descriptor or buffer is lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::frames::{frame, number};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{Layout, NetOptions, VirtioNetHdr};
use zerowire_net::offload::testing::{Example, naive};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_wire::vnet::Gso;

/// What a frame has beyond the MTU at most: an Ethernet header and a VLAN tag (net/core/dev.c,
/// `is_skb_forwardable`).
const OVERHEAD: usize = 18;

/// Frames of a round, more than a ring has entries.
const FRAMES: u32 = 300;
/// Frames that are sent before the arrived ones are read.
const BATCH: usize = 50;

/// For a frame, before another is sent or the test looks for what is missing.
const STEP: Duration = Duration::from_millis(20);

struct Scene {
    backend: Backend,
    guest: Guest,
    peer: Peer,
    /// Number of the next frame.
    next: u32,
}

impl Scene {
    fn start(queues: usize) -> Self {
        veth("v0", "v1", queues, 1500);
        let port = format!("xdp:v0,queues={queues},mode=copy,offloads=on");
        let backend = Backend::start(&[Vm::on("a", port)]);
        let options = NetOptions { queue_pairs: queues as u16, ..options(0, Layout::Single) };
        let guest = backend.guest("a", &options);
        let mut scene = Self { backend, guest, peer: Peer::new("v1"), next: 0 };
        scene.passes(60);
        scene
    }

    fn frame(&mut self, len: usize) -> Vec<u8> {
        self.next += 1;
        frame(self.next, len)
    }

    /// Frames from the guest that were dropped for this reason.
    fn dropped(&self, why: &str) -> u64 {
        self.backend.stats("a").transmit.totals.dropped_frames.get(why).copied().unwrap_or(0)
    }

    /// The next frame to the guest, on any pair.
    fn received(&mut self, patience: Duration) -> Option<Vec<u8>> {
        let each = patience / self.guest.pairs.len() as u32;
        (0..self.guest.pairs.len()).find_map(|pair| self.guest.recv(pair, each)).map(|(_, bytes)| bytes)
    }

    /// The next frame at the other end.
    fn sent(&mut self, patience: Duration) -> Option<Vec<u8>> {
        self.peer.recv(patience).map(|f| f.bytes)
    }

    /// Waits until frames of this length pass, from each queue pair and to one.
    fn passes(&mut self, len: usize) {
        for pair in 0..self.guest.pairs.len() {
            let out = self.frame(len);
            wait_until("a frame from the guest", || {
                self.guest.send(pair, &[(VirtioNetHdr::default(), out.clone())]);
                std::iter::from_fn(|| self.sent(STEP)).any(|came| came == out)
            });
        }
        let back = self.frame(len);
        wait_until("a frame to the guest", || {
            let _ = self.peer.send_with(&[0; 10], &back);
            std::iter::from_fn(|| self.received(STEP)).any(|came| came == back)
        });
    }

    /// Waits until a frame of this length is dropped for this reason on each queue pair.
    fn is_refused(&mut self, len: usize, why: &str) {
        for pair in 0..self.guest.pairs.len() {
            let (before, out) = (self.dropped(why), self.frame(len));
            wait_until("a frame that is dropped", || {
                self.guest.send(pair, &[(VirtioNetHdr::default(), out.clone())]);
                self.dropped(why) > before
            });
        }
    }

    /// Sends frames of all lengths around `longest` both ways. Those of up to `longest` bytes come;
    /// the others are counted for the reason `why`.
    fn exchange(&mut self, longest: usize, why: &str) {
        let lengths = [60, 200, longest - 1, longest, longest + 1, 1514, 1514];
        let all: Vec<_> = (0..FRAMES).map(|n| self.frame(lengths[n as usize % lengths.len()])).collect();
        for pair in 0..self.guest.pairs.len() {
            let before = self.backend.stats("a").transmit.totals;
            let known = self.dropped(why);
            for part in all.chunks(BATCH) {
                let with: Vec<_> = part.iter().map(|f| (VirtioNetHdr::default(), f.clone())).collect();
                self.guest.send(pair, &with);
                short_ones(part, longest, |p| self.sent(p), &format!("from pair {pair}"));
            }
            let long = all.iter().filter(|f| f.len() > longest).count() as u64;
            assert_eq!(self.dropped(why) - known, long, "counted as {why}");
            let after = self.backend.stats("a").transmit.totals;
            assert_eq!(after.dropped_total() - before.dropped_total(), long);
            assert_eq!(after.frames - before.frames, u64::from(FRAMES) - long, "no frame is counted twice");
        }
        for part in all.chunks(BATCH) {
            for f in part {
                // For some the kernel answers that it has no room.
                let _ = self.peer.send_with(&[0; 10], f);
            }
            short_ones(part, longest, |p| self.received(p), "to the guest");
        }
    }

    /// Everything is as at the start.
    fn check(&mut self) {
        self.passes(1514);
        for _ in 0..FRAMES as usize / BATCH {
            let all: Vec<_> = (0..BATCH).map(|_| self.frame(1514)).collect();
            self.guest.send_plain(&all);
            short_ones(&all, 1514, |p| self.sent(p), "from the guest, at the end");
            all.iter().for_each(|f| self.peer.send(f));
            short_ones(&all, 1514, |p| self.received(p), "to the guest, at the end");
        }
        let stats = self.backend.stats("a");
        assert_eq!((stats.connections, stats.ring_errors, stats.last_error), (1, 0, None));
    }
}

/// Fails unless those of these frames come that are no longer than `longest`, and none of the
/// others.
fn short_ones(
    all: &[Vec<u8>],
    longest: usize,
    mut next: impl FnMut(Duration) -> Option<Vec<u8>>,
    what: &str,
) {
    let mut missing: BTreeSet<_> = all.iter().filter(|f| f.len() <= longest).collect();
    let start = Instant::now();
    loop {
        let patience = if missing.is_empty() { Duration::ZERO } else { STEP };
        match next(patience) {
            // One that was sent again and again before may be late.
            Some(came) => {
                missing.remove(&came);
                let long = came.len() > longest && all.contains(&came);
                assert!(!long, "{what}: a frame of {} bytes came, longer than {longest}", came.len());
            }
            None if missing.is_empty() => return,
            None => {
                let names: Vec<_> = missing.iter().map(|f| (number(f), f.len())).collect();
                assert!(start.elapsed() < PATIENCE, "{what}: frames (number, bytes) never come: {names:?}");
            }
        }
    }
}

fn mtu(name: &str, mtu: usize) {
    ip(&["link", "set", name, "mtu", &mtu.to_string()]);
}

#[test]
fn frames_longer_than_a_smaller_mtu_are_counted_and_the_others_pass() {
    for queues in [1, 2] {
        in_netns(move || {
            let mut scene = Scene::start(queues);
            for small in [1000, 576, 1400] {
                mtu("v0", small);
                scene.is_refused(1514 + 4, "too_long");
                scene.exchange(small + OVERHEAD, "too_long");
                mtu("v0", 1500);
                scene.check();
            }
        });
    }
}

/// The interface's own MTU is as before: the other end refuses what is too long for it.
#[test]
fn frames_that_the_other_end_refuses_are_counted_and_the_others_pass() {
    in_netns(|| {
        let mut scene = Scene::start(1);
        for small in [1000, 576] {
            mtu("v1", small);
            scene.is_refused(1514, "port_refused");
            let longest = small + OVERHEAD;
            let all: Vec<_> =
                (0..FRAMES).map(|n| scene.frame([60, longest, longest + 1, 1514][n as usize % 4])).collect();
            let known = scene.dropped("port_refused");
            for part in all.chunks(BATCH) {
                scene.guest.send_plain(part);
                short_ones(part, longest, |p| scene.sent(p), "from the guest");
            }
            let long = all.iter().filter(|f| f.len() > longest).count() as u64;
            wait_until("all are counted", || scene.dropped("port_refused") - known >= long);
            assert_eq!(scene.dropped("port_refused") - known, long);
            mtu("v1", 1500);
            scene.check();
        }
    });
}

/// A long frame of the guest's that is cut here makes segments by the size that it asks for.
#[test]
fn segments_longer_than_a_smaller_mtu_are_counted() {
    in_netns(|| {
        let mut scene = Scene::start(1);
        let example =
            Example { kind: Gso::TcpV4, v6: false, tags: 0, options: 0, flags: 0x10, payload: 6000, seed: 1 };
        let segments = |size: u16| {
            let mut bytes = [0; 12];
            bytes[..10].copy_from_slice(&example.header(size));
            (VirtioNetHdr::decode(&bytes), example.frame())
        };
        mtu("v0", 1000);
        scene.is_refused(1514, "too_long");
        let known = scene.dropped("too_long");
        scene.guest.send(0, &[segments(1448)]);
        assert_eq!(scene.dropped("too_long"), known + 1);
        scene.guest.send(0, &[segments(900)]);
        short_ones(&naive(&example.frame(), &example, 900), 1018, |p| scene.sent(p), "segments of 900 bytes");
        mtu("v0", 1500);
        scene.passes(1514);
        scene.guest.send(0, &[segments(1448)]);
        short_ones(
            &naive(&example.frame(), &example, 1448),
            1514,
            |p| scene.sent(p),
            "segments of 1448 bytes",
        );
        assert_eq!(scene.dropped("bad_offload"), 0);
        scene.check();
    });
}
