//! Frames of other kinds and lengths over AF_XDP: with VLAN tags, at larger MTUs; and what a guest
//! at rest costs.

use std::time::Duration;

use crate::support::frames::{EXPERIMENT, frame};
use crate::support::{Backend, Guest, Peer, Vm, in_netns, options, wait_until};
use zerowire::ledger::Totals;
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions};
use zerowire_net::port::xdp::geometry::MAX_MTU;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;

/// Frame `n` of `len` bytes with these tags in front of its type.
fn tagged(n: u32, len: usize, tags: &[[u8; 4]]) -> Vec<u8> {
    let plain = frame(n, len - 4 * tags.len());
    let (addresses, rest) = plain.split_at(12);
    [addresses, &tags.concat(), rest].concat()
}

/// What the peer's socket shows of a frame: a tag that the kernel took out is put in again.
fn expect(peer: &mut Peer, want: &[u8], what: &str) {
    let got = std::iter::from_fn(|| peer.recv(crate::support::PATIENCE)).map(|f| f.bytes).find(|b| {
        // The host's own stack has things to say, too.
        b.windows(2).take(24).any(|w| w == EXPERIMENT)
    });
    let got = got.unwrap_or_else(|| panic!("{what}: never comes"));
    assert!(got == *want, "{what}: {} bytes, came {:02x?}", want.len(), &got[..24]);
}

#[test]
fn tags_of_vlans_pass_as_they_are() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        // Another guest at the other end: a packet socket would have tags apart.
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy"), Vm::on("b", "xdp:v1,mode=copy")]);
        let mut a = backend.guest("a", &options(0, Layout::Split));
        let mut b = backend.guest("b", &options(0, Layout::Single));
        // Until frames pass both ways.
        let probe = frame(u32::MAX, 64);
        for _ in 0..200 {
            a.send_plain(std::slice::from_ref(&probe));
            b.send_plain(std::slice::from_ref(&probe));
            let both = [&mut a, &mut b].map(|g| g.recv(0, Duration::from_millis(20)).is_some());
            if both == [true; 2] {
                break;
            }
        }
        let (vlan, service) = ([0x81, 0x00, 0x20, 0x05], [0x88, 0xa8, 0x00, 0x64]);
        let mut n = 0;
        for tags in [&[vlan][..], &[service, vlan]] {
            for len in [46 + 4 * tags.len(), 64, 68, 100, 1000, 1514, 1515, 1517, 1518] {
                n += 1;
                let want = tagged(n, len, tags);
                let pass = |from: &mut Guest, to: &mut Guest, way: &str| {
                    from.send_plain(std::slice::from_ref(&want));
                    let mut came = std::iter::from_fn(|| to.recv(0, crate::support::PATIENCE));
                    // Probes may come late.
                    let got = came.find(|(_, frame)| *frame != probe);
                    let got =
                        got.unwrap_or_else(|| panic!("{way}: {len} bytes, {} tags: never comes", tags.len()));
                    assert!(
                        got.1 == want,
                        "{way}: {len} bytes, {} tags: came {:02x?}",
                        tags.len(),
                        &got.1[..24]
                    );
                };
                pass(&mut a, &mut b, "a to b");
                pass(&mut b, &mut a, "b to a");
            }
        }
        for vm in ["a", "b"] {
            let stats = backend.stats(vm);
            assert_eq!(stats.transmit.totals.dropped_total() + stats.receive.totals.dropped_total(), 0);
            assert_eq!(stats.receive.totals.copied_total(), 0);
        }
    });
}

#[test]
fn larger_mtus_pass_whole() {
    in_netns(|| {
        for mtu in [1500usize, 1501, 2000, 2500, 3000, MAX_MTU] {
            veth("v0", "v1", 1, mtu);
            {
                let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
                let mut peer = Peer::new("v1");
                for (buffer_len, direct) in [(4096, true), (mtu as u32 + 30, true), (1536, mtu + 30 <= 1536)]
                {
                    let mode = RxMode::Mergeable { buffer_len };
                    let rx = Some(RxOptions { mode, indirect: false, buffers: 0 });
                    let mut guest = backend.guest("a", &NetOptions { rx, ..options(0, Layout::Split) });
                    guest.warm_up(0, &peer);
                    let before = backend.stats("a").receive.totals.copied_total();
                    for (n, len) in [60, 1000, 1514, mtu - 1, mtu + 13, mtu + 14].into_iter().enumerate() {
                        let bytes = frame(n as u32, len);
                        guest.send_plain(std::slice::from_ref(&bytes));
                        expect(&mut peer, &bytes, &format!("MTU {mtu}, {len} bytes out"));
                        peer.send(&bytes);
                        assert!(guest.expect().1 == bytes, "MTU {mtu}, {len} bytes in");
                    }
                    // A byte too many, without a tag.
                    let drops = backend.stats("a").transmit.totals.dropped_total();
                    guest.send_plain(&[frame(0, mtu + 19)]);
                    let stats = backend.stats("a");
                    assert_eq!(stats.transmit.totals.dropped_total(), drops + 1);
                    let copied = stats.receive.totals.copied_total() - before;
                    assert_eq!(
                        copied == 0,
                        direct,
                        "MTU {mtu}, buffers of {buffer_len} bytes: {copied} copied"
                    );
                }
            }
            ip(&["link", "del", "v0"]);
        }
    });
}

/// Statistics of a guest's receive side when it has gone: what the kernel dropped is known by then.
fn after(backend: &Backend, guest: Guest) -> Totals {
    drop(guest);
    wait_until("the connection has ended", || !backend.stats("a").connected);
    backend.stats("a").receive.totals
}

/// Those for which no buffer is there, and those that are too long: none of them is ever seen by
/// the port.
#[test]
fn frames_that_the_kernel_drops_are_counted() {
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mode = RxMode::Mergeable { buffer_len: 4096 };
        let rx = Some(RxOptions { mode, indirect: false, buffers: 16 });
        let ring = NetOptions { rx, ..options(0, Layout::Single) };
        let mut guest = backend.guest("a", &ring);
        guest.warm_up(0, &peer);
        let longest = MAX_MTU + 18;
        for n in 0..20 {
            peer.send(&frame(n, longest + 1 + 100 * n as usize));
            peer.send(&frame(n, longest - 4));
            assert!(guest.expect().1 == frame(n, longest - 4), "frame {n}");
        }
        let long = after(&backend, guest);
        assert_eq!(long.dropped_frames.get("too_long"), Some(&20), "{long:?}");

        let mut guest = backend.guest("a", &ring);
        guest.warm_up(0, &peer);
        let dropped = |totals: &Totals| totals.dropped_frames.get("no_room").copied().unwrap_or(0);
        let (sent, before) = (200, dropped(&backend.stats("a").receive.totals));
        for n in 0..sent {
            peer.send(&frame(n, 700));
        }
        // The guest gave no buffer back meanwhile.
        guest.expect();
        let came = 1 + std::iter::from_fn(|| guest.recv(0, Duration::from_millis(200))).count() as u64;
        assert!((1..=16).contains(&came), "{came} frames in 16 buffers");
        let lost = dropped(&after(&backend, guest)) - before;
        // The host's own stack has things to say, too; and the interface may have lost some before.
        let most = 2 * (u64::from(sent) - came);
        assert!((1..most).contains(&lost), "{came} came and {lost} were lost of {sent}");
    });
}

/// Times that a thread of this process with this name went to sleep of its own will.
fn sleeps(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    tasks
        .filter_map(|t| {
            let path = t.ok()?.path();
            let comm = std::fs::read_to_string(path.join("comm")).ok()?;
            let status = std::fs::read_to_string(path.join("status")).ok()?;
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
            (comm.trim() == name).then(|| line.trim().parse::<u64>().ok())?
        })
        .sum()
}

#[test]
fn a_guest_at_rest_wakes_nobody() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let backend = Backend::start(&[Vm::on("idle", "xdp:v0,queues=2,mode=copy")]);
        let mut peer = Peer::new("v1");
        let options = NetOptions { queue_pairs: 2, ..options(0, Layout::Single) };
        let mut guest = backend.guest("idle", &options);
        for n in 0..100 {
            let out = frame(n, 100);
            guest.send(n as usize % 2, &[(Default::default(), out.clone())]);
            assert_eq!(peer.expect().bytes, out);
        }
        // A second after the last frame the back end frees the memory of bursts, and may check the
        // guest's memory.
        std::thread::sleep(Duration::from_millis(2500));
        let now = || ["idle-q0", "idle-q1", "idle-ctl"].map(sleeps);
        let before = now();
        assert!(before.iter().all(|n| *n > 0), "the threads are there: {before:?}");
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(now(), before, "they sleep");
        // Nor do others' interfaces wake them, whose coming and going the kernel tells everybody
        // about.
        veth("other0", "other1", 1, 1500);
        ip(&["link", "del", "other0"]);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(now(), before, "they still sleep");
    });
}
