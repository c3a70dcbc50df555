//! What a guest may send, on its way through the transmit side of each kind of port: frames that
//! the guard refuses go nowhere, are counted by reason, and their chains come back.

use std::os::fd::OwnedFd;

use crate::support::attack::front_end;
use crate::support::frames::{self, EXPERIMENT, GUEST_MAC, HOST_MAC, frame, tcp_frame};
use crate::support::lab::Lab;
use crate::support::pair::{HEADER, Pair};
use crate::support::wire::{read_frame, receive, rx_policy, wire};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire::ledger::{Counters, Totals};
use zerowire_guest::features as f;
use zerowire_guest::net::{Layout, VirtioNetHdr};
use zerowire_guest::ring::{DESC_NEXT, DESC_WRITE, RingMemory};
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapOutlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup};
use zerowire_net::transmit::{Detour, TransmitContext};
use zerowire_net::{FrameGuard, PathMode, Policy, Transmit};
use zerowire_testkit::net::veth::veth;

/// The guest of `frames`: 10.0.0.2.
const GUARD: &str = "mac=02:00:00:00:00:01+ip=10.0.0.2+arp+nd";

fn guard(text: &str) -> FrameGuard {
    FrameGuard::parse(text, None).unwrap_or_else(|e| panic!("{e}"))
}

/// The same frame from another address: MAC, or IPv4.
fn spoofed(frame: &[u8], at: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] ^= 0x40;
    frame
}

const MAC_AT: usize = 6;
const IPV4_AT: usize = 26;

/// The peer's next frame of those that are meant, which must come.
fn next(peer: &mut Peer, is_meant: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut all = std::iter::from_fn(|| peer.recv(PATIENCE)).map(|f| f.bytes);
    all.find(|bytes| is_meant(bytes)).expect("a frame from the guest")
}

/// A driver's ring before a wire that keeps frames as they are.
struct Sender {
    side: Transmit<TapOutlet>,
    io: PortIo,
    far: OwnedFd,
    counters: Counters,
    /// Takes frames out, if it is there.
    detour: Option<Broadcasts>,
    ring: RingMemory,
    offered: u16,
    /// Where the next piece goes.
    at: u64,
    lab: Lab,
}

/// Takes frames to all hosts, and counts them.
struct Broadcasts(usize);

impl Detour for Broadcasts {
    fn wants(&self, start: &[u8]) -> bool {
        start[..6] == [0xff; 6]
    }

    fn take(&mut self, _frame: &[u8]) {
        self.0 += 1;
    }
}

impl Sender {
    fn new(policy: Policy) -> Self {
        let lab = Lab::new(&[(0, 8 << 20)]);
        let ring = lab.ring(1024);
        let (port, far) = wire();
        let outlet = TapOutlet::new(policy).expect("memory");
        let side = Transmit::new(lab.device(&ring, 1, false), outlet, f::NET_CSUM | f::VERSION_1, HEADER);
        let counters = Counters::default();
        let io = PortIo::new(port);
        Self { side, io, far, counters, detour: None, ring, offered: 0, at: 0x1_0000, lab }
    }

    /// Sends a frame in pieces of these lengths and a rest. Returns what comes out.
    fn send(
        &mut self,
        guard: &FrameGuard,
        vnet: &[u8; HEADER],
        frame: &[u8],
        cuts: &[usize],
    ) -> Option<Vec<u8>> {
        self.offer(vnet, frame, cuts);
        self.run(guard);
        read_frame(&self.far)
    }

    fn offer(&mut self, vnet: &[u8; HEADER], frame: &[u8], cuts: &[usize]) {
        let whole = [vnet.as_slice(), frame].concat();
        let head = self.offered * 8;
        let mut rest = whole.as_slice();
        for (i, cut) in cuts.iter().chain(&[usize::MAX]).enumerate() {
            let (piece, behind) = rest.split_at(rest.len().min(*cut));
            rest = behind;
            self.lab.write(self.at, piece);
            let index = head + i as u16;
            let next = if rest.is_empty() { 0 } else { DESC_NEXT };
            self.ring.write_desc(index, self.at, piece.len() as u32, next, index + 1);
            self.at += piece.len() as u64 + 5;
            if rest.is_empty() {
                break;
            }
        }
        self.ring.write_avail(self.offered, head);
        self.offered += 1;
        self.ring.publish_avail_idx(self.offered);
    }

    fn run(&mut self, guard: &FrameGuard) {
        let (memory, counters) = (&self.lab.memory, &self.counters);
        let detour = self.detour.as_mut().map(|d| d as &mut dyn Detour);
        let mut cx = TransmitContext { memory, counters, detour, guard: Some(guard) };
        self.side.run(&mut self.io, &mut cx).expect("a sound ring");
        assert_eq!(self.ring.used_idx(), self.offered, "each chain comes back");
    }

    fn totals(&self) -> Totals {
        self.counters.snapshot()
    }
}

/// Whatever the path and the pieces, also where the source lies across two of them.
#[test]
fn refused_frames_go_nowhere_and_are_counted_by_reason() {
    let guard = guard(GUARD);
    let copy = Policy::default().mode(PathMode::Copy);
    let scatter = Policy::default().gather_max_bytes(0);
    for policy in [Policy::default(), copy, scatter] {
        let mut sender = Sender::new(policy);
        let plain = [0; HEADER];
        for payload in [0, 60, 9000] {
            for cuts in [&[][..], &[12], &[12, 9], &[12, 14, 15]] {
                let good = tcp_frame(1, payload);
                let out = [plain.as_slice(), &good].concat();
                assert_eq!(
                    sender.send(&guard, &plain, &good, cuts),
                    Some(out),
                    "{policy:?}, {payload}, {cuts:?}"
                );
                for at in [MAC_AT, IPV4_AT] {
                    assert_eq!(sender.send(&guard, &plain, &spoofed(&good, at), cuts), None, "{at}");
                }
            }
        }
        let arp = frames::arp_request();
        assert!(sender.send(&guard, &plain, &arp, &[]).is_some());
        assert_eq!(sender.send(&guard, &plain, &spoofed(&arp, 28), &[]), None);
        let router = [&frames::neighbour_solicitation()[..54], &[134; 24]].concat();
        assert_eq!(sender.send(&guard, &plain, &router, &[]), None, "another link-local address");
        let t = sender.totals();
        assert_eq!((t.frames, t.dropped_total()), (13, 26));
        let by_reason = |reason| t.dropped_frames.get(reason).copied();
        assert_eq!((by_reason("guard_mac"), by_reason("guard_ip")), (Some(12), Some(13)), "{t:?}");
        assert_eq!(by_reason("guard_arp"), Some(1), "{t:?}");
    }
}

/// Frames of any length, most of them no packet.
#[test]
fn frames_of_any_length_are_decided() {
    let guard = guard(GUARD);
    let mut sender = Sender::new(Policy::default().gather_max_bytes(0));
    let (good, plain) = (tcp_frame(1, 100), [0; HEADER]);
    let mut want = 0;
    for len in (1..60).step_by(2) {
        let passes = len >= 34;
        want += u64::from(passes);
        assert_eq!(sender.send(&guard, &plain, &good[..len], &[13]).is_some(), passes, "{len} bytes");
    }
    let long = tcp_frame(1, 60_000);
    assert!(sender.send(&guard, &plain, &long, &[12]).is_some());
    let t = sender.totals();
    assert_eq!(t.frames, want + 1);
    // An Ethernet header alone is a frame, and shows no source of a packet.
    let short = t.dropped_frames["too_short"] + t.dropped_frames["guard_unseen"];
    assert_eq!(short, t.dropped_total(), "{t:?}");
}

/// The kernel stores the sum where the virtio-net header says, behind the guard's back.
#[test]
fn a_checksum_over_the_source_is_refused() {
    let guard = guard(GUARD);
    let mut sender = Sender::new(Policy::default());
    let good = tcp_frame(1, 100);
    let asks = |start: u8, offset: u8| [1, 0, 0, 0, 0, 0, start, 0, offset, 0, 0, 0];
    assert!(sender.send(&guard, &asks(34, 16), &good, &[]).is_some());
    assert_eq!(sender.send(&guard, &asks(14, 12), &good, &[]), None);
    assert_eq!(sender.totals().dropped_frames["guard_unseen"], 1);
}

/// What the metadata service takes does not reach the network, and it answers this guest alone.
#[test]
fn frames_that_are_taken_out_are_not_guarded() {
    let guard = guard(GUARD);
    let mut sender = Sender { detour: Some(Broadcasts(0)), ..Sender::new(Policy::default()) };
    sender.offer(&[0; HEADER], &spoofed(&frames::arp_request(), 28), &[]);
    sender.offer(&[0; HEADER], &spoofed(&tcp_frame(1, 60), MAC_AT), &[]);
    sender.run(&guard);
    assert_eq!((read_frame(&sender.far), sender.detour.map(|d| d.0)), (None, Some(1)));
    let dropped = sender.counters.snapshot().dropped_frames;
    assert_eq!(dropped.into_iter().collect::<Vec<_>>(), [("guard_mac", 1)]);
}

/// An AF_XDP port, also where zerowire completes checksums and cuts segments.
#[test]
fn an_xdp_port_sends_what_the_guard_lets_pass() {
    for mode in [PathMode::Auto, PathMode::Copy] {
        in_netns(move || send_on_xdp(mode));
    }
}

fn send_on_xdp(mode: PathMode) {
    veth("v0", "v1", 1, 1500);
    let mut peer = Peer::new("v1");
    let mut pair = Pair::new(false);
    let guard = guard(GUARD);
    let mut side = pair.transmit(pair.device(), mode);
    let (small, long) = (tcp_frame(1, 300), tcp_frame(2, 3000));
    let checksum = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    let segments = [1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0];
    for (vnet, frame) in [([0; HEADER], &small), (checksum, &small), (segments, &long)] {
        pair.send(&vnet, &spoofed(frame, MAC_AT));
        pair.send(&vnet, &spoofed(frame, IPV4_AT));
        pair.send(&vnet, frame);
    }
    // The sum would be the source.
    pair.send(&[1, 0, 0, 0, 0, 0, 14, 0, 12, 0, 0, 0], &small);
    wait_until("all chains are back", || {
        let (memory, counters) = (&*pair.memory, &pair.counters);
        let mut cx = TransmitContext { memory, counters, detour: None, guard: Some(&guard) };
        side.run(&mut pair.link, &mut cx).expect("a sound ring");
        pair.driver.used_idx() == 10
    });
    // One, one, and three segments. The host's stack has things to say, too.
    let is_guests = |bytes: &[u8]| bytes[7..12] == GUEST_MAC[1..];
    for n in 0..5 {
        let got = next(&mut peer, is_guests);
        assert_eq!((&got[6..12], &got[26..30]), (&GUEST_MAC[..], &[10, 0, 0, 2][..]), "frame {n}");
    }
    assert!(!peer.drain().iter().any(|f| is_guests(&f.bytes)), "nothing else goes out");
    side.release(&mut pair.link, &pair.counters);
    let dropped = pair.totals().dropped_frames.into_iter().collect::<Vec<_>>();
    assert_eq!(dropped, [("guard_ip", 3), ("guard_mac", 3), ("guard_unseen", 1)]);
}

/// A whole back end on a tap and on packet sockets; a VM without a guard sends as ever.
#[test]
fn each_vm_has_its_own_guard() {
    in_netns(|| {
        veth("zwgdv", "zwgdw", 1, 1500);
        let on_veth =
            Vm { guard: Some("mac"), mac: Some("02:00:00:00:00:01"), ..Vm::on("zwgdv", "packet:zwgdv") };
        let vms = [Vm { guard: Some(GUARD), ..Vm::new("zwgd") }, on_veth, Vm::new("zwgdfree")];
        let backend = Backend::start(&vms);
        let mut n = 0;
        for (vm, peer, guarded) in
            [("zwgd", "zwgd", true), ("zwgdv", "zwgdw", true), ("zwgdfree", "zwgdfree", false)]
        {
            let mut peer = Peer::new(peer);
            let mut guest = backend.guest(vm, &options(0, Layout::Split));
            let mut foreign = frame(1000, 200);
            foreign[MAC_AT..MAC_AT + 6].copy_from_slice(&HOST_MAC);
            n += 1;
            let own = frame(n, 300);
            for bytes in [&foreign, &own] {
                guest.send(0, &[(VirtioNetHdr::default(), bytes.clone())]);
            }
            let is_guests = |bytes: &[u8]| bytes[12..14] == EXPERIMENT;
            if !guarded {
                assert_eq!(next(&mut peer, is_guests), foreign);
            }
            assert_eq!(next(&mut peer, is_guests), own, "{vm}");
            let dropped = backend.stats(vm).transmit.totals.dropped_frames;
            assert_eq!(dropped.get("guard_mac").copied(), guarded.then_some(1), "{vm}: {dropped:?}");
        }
    });
}

#[test]
fn another_guard_holds_while_the_guest_runs_on_each_port() {
    for (port, peer) in [("tap:zwgdlive", "zwgdlive"), ("packet:v0", "v1"), ("xdp:v0,mode=copy", "v1")] {
        in_netns(move || {
            if peer == "v1" {
                veth("v0", "v1", 1, 1500);
            }
            let backend = Backend::start(&[Vm::on("zwgdlive", port)]);
            let mut peer = Peer::new(peer);
            let mut guest = backend.guest("zwgdlive", &options(0, Layout::Split));
            let foreign = spoofed(&frame(7, 200), MAC_AT);
            let passes = |peer: &mut Peer, guest: &mut Guest, n: u32| {
                let own = frame(n, 300);
                for bytes in [&foreign, &own] {
                    guest.send(0, &[(VirtioNetHdr::default(), bytes.clone())]);
                }
                let is_one = |bytes: &[u8]| bytes == foreign || bytes == own;
                let came = next(peer, is_one) == foreign;
                if came {
                    assert_eq!(next(peer, is_one), own, "{port}");
                }
                came
            };
            assert!(passes(&mut peer, &mut guest, 1), "{port}: no guard");
            let mac = "mac=02:00:00:00:00:01";
            for (n, (text, storms)) in
                [(Some(mac), false), (None, false), (Some("storm=1"), true)].iter().enumerate()
            {
                backend.server.set_guard("zwgdlive", text.map(guard)).expect("the VM");
                let mut count = 100 * (n as u32 + 1);
                wait_until("it holds", || {
                    count += 1;
                    passes(&mut peer, &mut guest, count) != (*text == Some(mac))
                });
                if *storms {
                    wait_until("groups are bounded", || {
                        let mut group = frame(9, 200);
                        group[0] |= 1;
                        peer.send(&group);
                        let dropped = backend.stats("zwgdlive").receive.totals.dropped_frames;
                        dropped.get("storm").is_some_and(|n| *n > 0)
                    });
                }
            }
            assert!(backend.server.set_guard("zwnone", None).is_err());
        });
    }
}

/// A front end has the guest announced, by whatever address it says (SEND_RARP). The rule of tags
/// holds for the announcement as for the guest's frames.
#[test]
fn a_front_end_announces_no_other_host() {
    in_netns(|| {
        let vms = [("zwgdrarp", "mac=02:00:00:00:00:01"), ("zwgdrarv", "mac=02:00:00:00:00:01+vlan=7")]
            .map(|(tap, guard)| Vm { guard: Some(guard), ..Vm::new(tap) });
        let backend = Backend::start(&vms);
        for vm in ["zwgdrarp", "zwgdrarv"] {
            let mut peer = Peer::new(vm);
            let (mut front, _memory) = front_end(&backend, vm, f::VERSION_1);
            front.send_rarp(HOST_MAC).expect("the session goes on");
            front.send_rarp(GUEST_MAC).expect("its own guest");
            assert_eq!(peer.expect().bytes[6..12], GUEST_MAC, "{vm}");
            assert!(peer.drain().is_empty(), "nothing else went out");
            assert_eq!(backend.stats(vm).connection_errors, 0);
        }
    });
}

/// Frames to groups beyond the bound are dropped, and those to the guest come all the same.
fn storm(vm: Vm, at: &str) {
    let name = vm.name;
    let backend = Backend::start(&[Vm { guard: Some("storm=1"), ..vm }]);
    let peer = Peer::new(at);
    let mut guest = backend.guest(name, &options(0, Layout::Split));
    guest.warm_up(0, &peer);
    let (sent, mut groups) = (60, 0);
    for n in 0..sent {
        let (mut group, own) = (frame(2 * n, 200), frame(2 * n + 1, 300));
        group[0] |= 1;
        peer.send(&group);
        peer.send(&own);
        loop {
            let got = guest.expect().1;
            if got == own {
                break;
            }
            // The host's stack has things to say, too.
            groups += u64::from(got == group);
        }
    }
    let dropped = backend.stats(name).receive.totals.dropped_frames;
    let storm = dropped.get("storm").copied().unwrap_or(0);
    let sent = u64::from(sent);
    assert!(groups < sent && storm >= sent - groups, "{groups} of {sent} came: {dropped:?}");
}

#[test]
fn storms_are_bounded_on_each_port() {
    let in_place = Policy::default().rx_copybreak_bytes(0);
    let copied = Policy::default().mode(PathMode::Copy);
    for policy in [Policy::default(), in_place, copied] {
        in_netns(move || storm(Vm { policy, ..Vm::new("zwstorm") }, "zwstorm"));
        for port in ["packet:v0", "packet:v0,receive=socket", "xdp:v0,mode=copy"] {
            in_netns(move || {
                veth("v0", "v1", 1, 1500);
                storm(Vm { policy, ..Vm::on("zwstorm", port) }, "v1");
            });
        }
    }
}

/// A frame that is longer than its buffers has those behind it copied. Each of them counts once
/// against the bound all the same.
#[test]
fn a_frame_to_a_group_counts_once() {
    const GROUPS: u32 = 5;
    let lab = Lab::new(&[(0, 1 << 20), (1 << 32, 1 << 20)]);
    let ring = lab.ring(64);
    for n in 0..64 {
        ring.write_desc(n, (1 << 32) + u64::from(n) * 4096, 2048, DESC_WRITE, 0);
        ring.write_avail(n, n);
    }
    ring.publish_avail_idx(64);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let setup = ReceiveSetup { mergeable: true, header_len: HEADER, clears_flags: false };
    let mut side = receive(lab.device(&ring, 0, false), setup, rx_policy());
    side.bound_groups(guard(&format!("storm={GROUPS}")).storm_bound());
    let counters = Counters::default();
    let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
    let put = |mut frame: Vec<u8>, is_group: bool| {
        frame[0] |= u8::from(is_group);
        rustix::io::write(&far, &[vec![0; HEADER], frame].concat()).expect("a frame on the wire");
    };
    // Frames that fill their turn make the next one larger.
    (0..15).for_each(|n| put(frame(n, 1500), false));
    let mut come = |frames| {
        while counters.snapshot().frames + counters.snapshot().dropped_total() < frames {
            side.run(&mut io, &cx).expect("a sound ring");
        }
    };
    come(15);
    put(frame(15, 9000), false);
    (0..GROUPS).for_each(|n| put(frame(16 + n, 1500), true));
    come(16 + u64::from(GROUPS));
    assert_eq!(counters.snapshot().dropped_total(), 0, "{:?}", counters.snapshot());
}
