//! Interfaces under a packet port come and go, rings stop and go on, guests and front ends come and
//! go, a port is full.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::support::attack::{PLAIN, attack, front_end};
use crate::support::dirty::without_mark;
use crate::support::frames::{self, frame, number};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, guest_memory, in_netns, options, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use zerowire_guest::misbehave::{RawDesc, RawQueue, RingAttack};
use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, VhostUserOptions, protocol};
use zerowire_net::port::PortSpec;
use zerowire_net::port::packet::PacketSpec;
use zerowire_net::{Server, VmConfig};
use zerowire_testkit::net::veth::{promiscuity, veth};
use zerowire_testkit::net::{ip, run};
use zerowire_testkit::own_process;
use zerowire_vhost::serve::Endpoint;

/// The kernel copies frames, or they are copied into a ring and out of one.
const PORTS: [&str; 2] = ["packet:v0,receive=socket", "packet:v0,rings=on,receive=ring"];

fn with(port: &str) -> (Backend, Peer) {
    veth("v0", "v1", 1, 1500);
    (Backend::start(&[Vm::on("a", port)]), Peer::new("v1"))
}

fn in_netns_each(test: fn(&'static str)) {
    PORTS.into_iter().for_each(|port| in_netns(move || test(port)));
}

/// Frames of both ends until one has come through each way, and no other is under way.
fn until_both_ways(guest: &mut Guest, peer: &mut Peer) {
    guest.warm_up_peer(peer);
    guest.warm_up(0, peer);
}

fn path_is(backend: &Backend, word: &str) {
    wait_until(word, || backend.stats("a").path.contains(word));
}

#[test]
fn an_interface_that_goes_down_and_up_carries_frames_again() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        for n in 0..3 {
            ip(&["link", "set", "v0", "down"]);
            path_is(&backend, "which is down: 'ip link set v0 up'");
            guest.send_plain(&[frame(1, 100)]);
            let dropped = backend.stats("a").transmit.totals.dropped_frames;
            assert_eq!(dropped["port_refused"], n + 1);
            ip(&["link", "set", "v0", "up"]);
            path_is(&backend, "sendmmsg");
            until_both_ways(&mut guest, &mut peer);
            guest.ping(&mut peer, 2);
        }
    });
}

#[test]
fn an_interface_that_is_deleted_and_made_again_carries_frames_again() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        for _ in 0..3 {
            drop(peer);
            ip(&["link", "del", "v0"]);
            guest.send_plain(&[frame(1, 100)]);
            path_is(&backend, "no interface v0 in this network namespace");
            guest.send_plain(&[frame(1, 100)]);
            veth("v0", "v1", 1, 1500);
            peer = Peer::new("v1");
            until_both_ways(&mut guest, &mut peer);
            guest.ping(&mut peer, 2);
            path_is(&backend, "sendmmsg");
        }
        // Only the transmit ring is used, and nothing is received.
        drop(peer);
        ip(&["link", "del", "v0"]);
        veth("v0", "v1", 1, 1500);
        peer = Peer::new("v1");
        let mut came = false;
        wait_until("a frame passes", || {
            guest.send_plain(&[frame(7, 100)]);
            came |= peer.recv(Duration::from_millis(20)).is_some();
            came
        });
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}

#[test]
fn an_interface_that_is_not_there_when_the_guest_comes_is_waited_for() {
    in_netns_each(|port| {
        let (backend, peer) = with(port);
        drop(peer);
        ip(&["link", "del", "v0"]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        path_is(&backend, "no interface v0");
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        until_both_ways(&mut guest, &mut peer);
        drop(guest);
        ip(&["link", "set", "v0", "down"]);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        path_is(&backend, "which is down");
        ip(&["link", "set", "v0", "up"]);
        until_both_ways(&mut guest, &mut peer);
    });
}

#[test]
fn a_new_name_and_another_mtu_change_nothing_else() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        ip(&["link", "set", "v0", "name", "other"]);
        guest.ping(&mut peer, 2);
        ip(&["link", "set", "other", "name", "v0"]);
        for mtu in ["9000", "1000"] {
            for name in ["v0", "v1"] {
                ip(&["link", "set", name, "mtu", mtu]);
            }
            let longest = frame(3, mtu.parse::<usize>().expect("a number") + 14);
            let refused = || {
                let dropped = backend.stats("a").transmit.totals.dropped_frames;
                dropped.get("port_refused").copied().unwrap_or(0)
            };
            // A ring learns of it a little later.
            let before = refused();
            wait_until("a longer frame is refused", || {
                guest.send_plain(&[frame(4, longest.len() + 1)]);
                refused() > before
            });
            peer.drain();
            guest.send_plain(std::slice::from_ref(&longest));
            assert_eq!(peer.expect().bytes, longest);
            peer.send(&longest);
            assert!(guest.expect().1 == longest, "MTU {mtu}");
        }
    });
}

/// A guest whose first frame comes when the process may open nothing, so that it goes without a
/// ring; and after that it may. A ring that is there before is another try's.
fn without_descriptors(port: &str, says: &str) -> (Backend, Guest) {
    let usual = getrlimit(Resource::Nofile);
    for _ in 0..20 {
        let backend = Backend::start(&[Vm::on("a", port)]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let mut peer = Peer::new("v1");
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..usual }).expect("a lower limit");
        guest.send_plain(&[frame(1, 100)]);
        assert_eq!(peer.expect().bytes, frame(1, 100));
        let path_says = |word| backend.stats("a").path.contains(word);
        wait_until(says, || path_says(says) || path_says("frames out by a "));
        let is_without = path_says(says);
        setrlimit(Resource::Nofile, usual).expect("the former limit");
        if is_without {
            return (backend, guest);
        }
    }
    panic!("a worker looked at its port before its first frame, each time");
}

#[test]
fn a_ring_that_was_asked_for_is_tried_again_until_it_is_there() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let (backend, mut guest) = without_descriptors("packet:v0,rings=on", "tried again");
        wait_until("a ring", || {
            guest.send_plain(&[frame(2, 100)]);
            backend.stats("a").path.contains("frames out by a ")
        });
        let outside = || backend.stats("a").transmit.totals.copied_bytes.get("outside").copied();
        let before = outside();
        guest.send_plain(&[frame(3, 100)]);
        wait_until("a frame is copied to the ring", || outside() > before);
    });
}

#[test]
fn a_ring_that_was_not_asked_for_is_given_up_with_a_word() {
    own_process!();
    in_netns(|| {
        // A bridge, since a veth would have no ring by default.
        veth("v0", "v1", 1, 1500);
        ip(&["link", "add", "br0", "type", "bridge"]);
        ip(&["link", "set", "v0", "master", "br0"]);
        ip(&["link", "set", "br0", "up"]);
        let (backend, mut guest) = without_descriptors("packet:br0", "not tried again (rings=auto)");
        std::thread::sleep(Duration::from_secs(1));
        guest.send_plain(&[frame(2, 100)]);
        path_is(&backend, "not tried again (rings=auto)");
        assert_eq!(backend.stats("a").transmit.totals.copied_bytes.get("outside"), None);
    });
}

#[test]
fn stopped_queues_go_on_where_they_were() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        for n in 0..20 {
            guest.ping(&mut peer, n);
            guest.driver.stop().expect("stopped");
            let Guest { driver, pairs, .. } = &mut guest;
            driver.resume(pairs).expect("resumed");
        }
        guest.ping(&mut peer, 99);
        for n in 0..8 {
            let region = guest.memory.add_region(GuestAddr(2 << 32), 4 << 20).expect("a region");
            guest.driver.transport().add_memory(&region).expect("plugged");
            guest.ping(&mut peer, n);
            guest.driver.transport().remove_memory(&region).expect("unplugged");
            guest.memory.remove_region(GuestAddr(2 << 32)).expect("removed");
            guest.ping(&mut peer, 100 + n);
        }
        assert_eq!((backend.stats("a").ring_errors, backend.stats("a").connection_errors), (0, 0));
    });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn guests_come_and_go_and_leave_nothing() {
    own_process!();
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        assert_eq!(promiscuity("v0"), 0, "no guest, no frames");
        let shape = FrameShape { layout: Layout::Single, indirect: false, capacity: 1600 };
        let options = NetOptions { tx: shape, queue_size: 64, ..options(0, Layout::Single) };
        let memory = GuestMemory::new(&[(GuestAddr(0), 1 << 20)]).expect("guest memory");
        for n in 0..300u32 {
            let (driver, pairs) = NetDriver::start(backend.connect("a"), &memory, &options).expect("a guest");
            let mut guest = Guest { driver, pairs, memory: memory.clone() };
            guest.ping(&mut peer, n);
            assert!(n > 0 || promiscuity("v0") > 0);
            drop(guest);
            // Frames that come without a guest don't reach the next one.
            wait_until("the connection has ended", || !backend.stats("a").connected);
            peer.send(&frame(9999, 100));
        }
        let stats = backend.stats("a");
        assert_eq!((stats.connections, stats.connection_errors, stats.ring_errors), (300, 0, 0));
        assert_eq!((stats.transmit.totals.frames, stats.receive.totals.frames), (300, 300));
        wait_until("the interface is as it was", || promiscuity("v0") == 0);
        drop(backend);
        // One that each guest had left would be hundreds.
        assert!(descriptors() < 200, "{} descriptors", descriptors());
    });
}

#[test]
fn every_write_to_memory_is_noted_and_no_other() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        for without in [0, zerowire_guest::net::OFFLOADS] {
            let mut guest = backend.guest("a", &options(without, Layout::Split));
            guest.ping(&mut peer, 1);
            for round in 0..3 {
                let migration = guest.migrate();
                let tag = |f: Vec<u8>| [&f[..12], &[0x81, 0, 0, 5], &f[12..]].concat();
                for (n, len) in [18, 60, 1000, 1514, 60, 1514].into_iter().enumerate() {
                    let bytes = without_mark(frame(n as u32, len));
                    for bytes in [bytes.clone(), tag(bytes)] {
                        peer.send(&bytes);
                        assert_eq!(guest.expect().1, bytes);
                    }
                }
                let mut segment = without_mark(frames::tcp_frame(7, 20_000));
                segment.truncate(20_054);
                let header = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0];
                peer.send_with(&header, &segment).expect("sent");
                let mut got = 0;
                while got < 20_000 {
                    got += guest.expect().1.len() - 54;
                }
                guest.send_plain(&[frame(1, 60), frame(2, 1500)]);
                assert_eq!([peer.expect().bytes.len(), peer.expect().bytes.len()], [60, 1500]);
                guest.driver.stop().expect("stopped");
                migration.check(&guest.memory, &format!("round {round}"));
                guest.driver.resume(&mut guest.pairs).expect("resumed");
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}

/// A front end with a region for marks of chains in flight.
fn tracked(backend: &Backend) -> VhostUser {
    let options = VhostUserOptions::default();
    let options = VhostUserOptions { protocol: options.protocol | protocol::INFLIGHT_SHMFD, ..options };
    VhostUser::connect_with(backend.stats("a").socket, PATIENCE, &options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_full_interface_holds_frames_in_the_ring_and_loses_none() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        let queue = ["root", "tbf", "rate", "100mbit", "burst", "3000", "limit", "40000000"];
        run("tc", &[&["qdisc", "add", "dev", "v0"][..], &queue].concat());
        for port in [PORTS[0], PORTS[1]] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let memory = guest_memory();
            let options = NetOptions { tx_slots: 256, ..options(0, Layout::Single) };
            let (driver, pairs) = NetDriver::start(tracked(&backend), &memory, &options).expect("a guest");
            let mut guest = Guest { driver, pairs, memory };
            // More than the kernel lets a socket have under way.
            let before = backend.stats("a").transmit.totals;
            let all: Vec<_> = (0..5000).map(|n| frame(n, 1500)).collect();
            guest.send_plain(&all);
            // The shaper sends from the CPU of whoever is there, and a veth has a queue a CPU:
            // their order is not kept.
            let mut missing: HashSet<_> = all.iter().collect();
            while !missing.is_empty() {
                let got = peer.expect().bytes;
                assert!(missing.remove(&got), "frame {} came twice, or was never sent", number(&got));
            }
            let after = backend.stats("a").transmit.totals;
            assert_eq!((after.frames - before.frames, after.dropped_total()), (5000, 0));
            // Queues stop while frames are held, and nothing is sent twice.
            for f in &all[..3000] {
                assert!(guest.pairs[0].tx.send(&Default::default(), f).is_ok());
                guest.pairs[0].tx.publish().expect("published");
                guest.pairs[0].tx.reap().expect("reaped");
            }
            guest.driver.stop().expect("stopped");
            let Guest { driver, pairs, .. } = &mut guest;
            driver.resume(pairs).expect("resumed");
            assert!(guest.pairs[0].tx.drain(PATIENCE).expect("drained"));
            let mut came = HashSet::new();
            while let Some(f) = peer.recv(Duration::from_millis(200)) {
                assert!(came.insert(number(&f.bytes)), "frame {} came twice", number(&f.bytes));
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
    });
}

/// How often the thread of this name has gone to sleep.
fn sleeps(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let read = |task: &std::fs::DirEntry, file| std::fs::read_to_string(task.path().join(file));
    let ours = tasks.filter(|t| read(t, "comm").is_ok_and(|name| name.trim() == thread));
    let status = ours.map(|t| read(&t, "status").expect("its status")).next().expect("the thread");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|n| n.trim().parse().ok()).expect("a count")
}

/// The guest's ring has more frames, and the interface takes none: its worker looks at it again
/// ever less often.
#[test]
fn a_full_interface_is_looked_at_ever_less_often() {
    own_process!();
    const MOST_PER_SECOND: f64 = 200.0;
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let queue = ["root", "tbf", "rate", "8bit", "burst", "3000", "limit", "40000000"];
        run("tc", &[&["qdisc", "add", "dev", "v0"][..], &queue].concat());
        for port in PORTS {
            let backend = Backend::start(&[Vm::on("zwlook", port)]);
            let (mut transport, memory) = front_end(&backend, "zwlook", PLAIN);
            let mut tx = RawQueue::start(&memory, &mut transport, 1, 8192).expect("a queue");
            let whole = tx.place(&[&[0; 12][..], &frame(1, 1500)].concat()).expect("guest memory");
            tx.write_chain(0, &[RawDesc::readable(&whole)]);
            (0..8192).for_each(|_| tx.offer(0));
            tx.kick().expect("a kick");
            let mut taken = 0;
            wait_until("the interface takes no more", || {
                std::thread::sleep(Duration::from_millis(300));
                std::mem::replace(&mut taken, tx.ring().used_idx()) == tx.ring().used_idx() && taken > 0
            });
            assert!(taken < 8192, "{port}: it takes all");
            let (before, begin) = (sleeps("zwlook-q0"), Instant::now());
            std::thread::sleep(Duration::from_secs(1));
            let (looks, most) =
                (sleeps("zwlook-q0") - before, MOST_PER_SECOND * begin.elapsed().as_secs_f64());
            assert!((looks as f64) < most, "{port}: {looks} times in {:?}", begin.elapsed());
        }
    });
}

#[test]
fn a_front_end_that_went_without_a_word_is_followed_by_another() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        let memory = guest_memory();
        let (driver, pairs) =
            NetDriver::start(tracked(&backend), &memory, &options(0, Layout::Single)).expect("a guest");
        let mut guest = Guest { driver, pairs, memory };
        guest.ping(&mut peer, 1);
        for n in 0..10 {
            let area = guest.driver.transport().inflight().cloned().expect("a region");
            let stream = guest.driver.transport().connection().stream().try_clone().expect("a socket");
            stream.shutdown(std::net::Shutdown::Both).expect("shut down");
            wait_until("the connection has ended", || !backend.stats("a").connected);
            let mut next = tracked(&backend);
            next.set_inflight(Some(area));
            guest.driver.reconnect(next, &mut guest.pairs).unwrap_or_else(|e| panic!("{e}"));
            guest.ping(&mut peer, 2 + n);
        }
        let stats = backend.stats("a");
        assert_eq!((stats.ring_errors, stats.unsure_frames), (0, 0));
    });
}

#[test]
fn hostile_guests_get_nowhere() {
    in_netns_each(|port| {
        let (backend, mut peer) = with(port);
        for a in RingAttack::ALL {
            attack(&backend, "a", &mut peer, PLAIN, *a);
        }
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
    });
}

/// Why the server does not start with this port.
fn refused(port: PortSpec) -> String {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let config = VmConfig::new("a", Endpoint::Path(dir.path().join("a")), port.clone());
    match Server::start(vec![config]) {
        Ok(_) => panic!("{port} was taken"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn what_is_wrong_is_named_with_the_remedy() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        ip(&["link", "set", "lo", "up"]);
        ip(&["tuntap", "add", "tun0", "mode", "tun"]);
        let packet = |interface: &str| PortSpec::Packet(PacketSpec::new(interface));
        for (interface, words) in [
            ("nowhere", ["no interface nowhere", "'ip link'"]),
            ("a-name-of-far-too-many-bytes", ["no interface a-name-of", "'ip link'"]),
            ("lo", ["lo is a loopback interface", "veth"]),
            ("tun0", ["tun0 is no Ethernet interface (ARPHRD type 65534)", "a tap"]),
        ] {
            let text = refused(packet(interface));
            assert!(words.iter().all(|w| text.contains(w)), "{interface}: {text}");
        }
        let mut sets = capabilities(None).expect("this thread's capabilities");
        sets.effective -= CapabilitySet::NET_RAW;
        set_capabilities(None, sets).expect("fewer of them");
        let text = refused(packet("v0"));
        assert!(text.contains("interface v0") && text.contains("CAP_NET_RAW"), "{text}");
    });
}
