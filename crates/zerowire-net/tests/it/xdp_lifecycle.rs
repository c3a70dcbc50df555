//! Rings on an AF_XDP port stop and go on, memory comes and goes, guests come and go.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::attack::front_end;
use crate::support::frames::{EXPERIMENT, GUEST_MAC, frame, number, udp_frame};
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{Layout, NetOptions};
use zerowire_guest::{GuestAddr, Transport, features as f};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{slow_peer, veth};

fn one_queue() -> (Backend, Peer) {
    veth("v0", "v1", 1, 1500);
    (Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]), Peer::new("v1"))
}

#[test]
fn stopped_queues_go_on_where_they_were() {
    in_netns(|| {
        let (backend, mut peer) = one_queue();
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &peer);
        for n in 0..20 {
            guest.ping(&mut peer, n);
            guest.driver.stop().expect("stopped");
            let Guest { driver, pairs, .. } = &mut guest;
            driver.resume(pairs).expect("resumed");
            guest.warm_up(0, &peer);
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}

#[test]
fn nothing_is_written_to_buffers_of_a_stopped_queue_and_all_come_back() {
    in_netns(|| {
        let (backend, peer) = one_queue();
        let mut guest = Patterned::start(&backend, "a", 0);
        let place = |i: u64| (DATA + i * 0x1000 + 77, 1530);
        const BUFFERS: usize = 40;
        let heads: Vec<u16> = (0..BUFFERS as u64).map(|i| guest.post(&[place(i)])).collect();
        let mut next = 0;
        let go_live = |guest: &mut Patterned, next: &mut usize| {
            guest.go_live(&peer, |_| {
                *next += 1;
                place(*next as u64 - 1)
            });
        };
        let deliver = |guest: &mut Patterned, i: usize| {
            let bytes = frame(i as u32, 500);
            peer.send(&bytes);
            assert_eq!(guest.used(PATIENCE), Some((heads[i], 512)), "frame {i}");
            guest
                .expect_in(&[place(i as u64)], &[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &bytes].concat());
        };
        go_live(&mut guest, &mut next);
        (next..next + 4).for_each(|i| deliver(&mut guest, i));
        next += 4;
        let base = guest.transport.stop_queue(0).expect("stopped");
        assert_eq!(usize::from(base), next, "the buffers that no frame came for are to be taken again");
        for n in 0..200 {
            peer.send(&frame(1000 + n, 1000));
        }
        assert_eq!(usize::from(guest.rx.ring().used_idx()), next);
        guest.check("frames for a stopped queue");
        // The same ring goes on.
        let setup = guest.rx.ring().setup(base);
        let handle = guest.transport.start_queue(0, &setup).expect("started");
        guest.transport.enable_queue(0, true).expect("enabled");
        handle.doorbell.ring().expect("a kick");
        go_live(&mut guest, &mut next);
        (next..BUFFERS).for_each(|i| deliver(&mut guest, i));
        guest.check("after the queue went on");
    });
}

#[test]
fn memory_is_plugged_and_unplugged() {
    in_netns(|| {
        let (backend, mut peer) = one_queue();
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &peer);
        for n in 0..8u32 {
            let region = guest.memory.add_region(GuestAddr(2 << 32), 4 << 20).expect("a region");
            guest.driver.transport().add_memory(&region).expect("plugged");
            guest.warm_up(0, &peer);
            guest.ping(&mut peer, n);
            guest.driver.transport().remove_memory(&region).expect("unplugged");
            guest.memory.remove_region(GuestAddr(2 << 32)).expect("removed");
            guest.warm_up(0, &peer);
            guest.ping(&mut peer, 100 + n);
        }
        assert_eq!((backend.stats("a").ring_errors, backend.stats("a").connection_errors), (0, 0));
    });
}

/// Frames of many flows, which the kernel spreads over the queues of the interface.
fn flows(n: u8) -> Vec<Vec<u8>> {
    (0..n)
        .map(|i| {
            let mut f = udp_frame([10, 0, 0, i], &[i; 64]);
            f[34] = i;
            f
        })
        .collect()
}

/// Takes `total` frames, each once, and what else comes for a while, of `N` queues.
fn collect<const N: usize, H>(
    total: usize,
    mut received: impl FnMut(usize) -> Option<(H, Vec<u8>)>,
) -> [BTreeSet<Vec<u8>>; N] {
    let (begin, mut all) = (Instant::now(), [const { BTreeSet::new() }; N]);
    loop {
        let mut is_quiet = true;
        for (i, all) in all.iter_mut().enumerate() {
            while let Some((_, bytes)) = received(i) {
                is_quiet = false;
                all.insert(bytes);
            }
        }
        let count: usize = all.iter().map(BTreeSet::len).sum();
        if is_quiet && (count >= total || begin.elapsed() > PATIENCE) {
            return all;
        }
    }
}

/// How long it is quiet behind the last frame.
const QUIET: Duration = Duration::from_millis(100);

/// Sends until both have received something.
fn warm_up_both(peer: &Peer, mut received: impl FnMut(usize) -> bool) {
    let (mut ready, mut tries) = ([false; 2], 0);
    while ready != [true; 2] {
        tries += 1;
        assert!(tries < 200, "frames reach {ready:?}");
        flows(32).iter().for_each(|f| peer.send(f));
        for (i, ready) in ready.iter_mut().enumerate() {
            while received(i) {
                *ready = true;
            }
        }
    }
}

#[test]
fn a_larger_mtu_counts_while_the_interface_is_up() {
    for queues in [1, 2] {
        in_netns(move || {
            veth("v0", "v1", queues, 1500);
            let backend = Backend::start(&[Vm::on("a", format!("xdp:v0,queues={queues},mode=copy"))]);
            let mut peer = Peer::new("v1");
            let options = NetOptions { queue_pairs: queues as u16, ..options(0, Layout::Single) };
            let mut guest = backend.guest("a", &options);
            for mtu in [2000, 1500, 3000] {
                for name in ["v0", "v1"] {
                    ip(&["link", "set", name, "mtu", &mtu.to_string()]);
                }
                let longest = frame(mtu, mtu as usize + 14);
                for pair in 0..queues {
                    let mut came = false;
                    wait_until("a frame of the new length from the guest", || {
                        guest.send(pair, &[(Default::default(), longest.clone())]);
                        came |= peer.recv(Duration::from_millis(20)).is_some_and(|f| f.bytes == longest);
                        came
                    });
                }
                wait_until("a frame of the new length to the guest", || {
                    peer.send(&longest);
                    (0..queues).any(|pair| {
                        guest.recv(pair, Duration::from_millis(20)).is_some_and(|f| f.1 == longest)
                    })
                });
                peer.drain();
            }
            let stats = backend.stats("a");
            assert_eq!((stats.connections, stats.ring_errors, stats.last_error), (1, 0, None));
        });
    }
}

#[test]
fn another_name_takes_nothing_away() {
    in_netns(|| {
        let (backend, mut peer) = one_queue();
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &peer);
        ip(&["link", "set", "v0", "name", "other"]);
        for n in 0..20 {
            guest.ping(&mut peer, n);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(backend.stats("a").path.contains("copy mode"), "{}", backend.stats("a").path);
    });
}

/// The queue stays bound to its interface, and switches behind that are to learn where the guest
/// is.
#[test]
fn announcements_go_to_the_interface_that_is_bound_whatever_its_name() {
    in_netns(|| {
        let (backend, mut peer) = one_queue();
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &peer);
        for taken in [false, true] {
            if taken {
                veth("v0", "v2", 1, 1500);
            } else {
                ip(&["link", "set", "v0", "name", "other"]);
            }
            guest.driver.transport().send_rarp(GUEST_MAC).expect("sent");
            assert_eq!(peer.recv(PATIENCE).expect("an announcement").bytes[12..14], [0x80, 0x35], "{taken}");
        }
        let mut stranger = Peer::new("v2");
        guest.ping(&mut peer, 1);
        guest.driver.transport().send_rarp(GUEST_MAC).expect("sent");
        assert_eq!(peer.recv(PATIENCE).expect("an announcement").bytes[12..14], [0x80, 0x35]);
        assert!(stranger.drain().is_empty(), "nothing goes to the interface that has the name now");
        // Another connection goes by the name again, also before any queue is bound.
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let (mut front, _memory) = front_end(&backend, "a", f::VERSION_1);
        front.send_rarp(GUEST_MAC).expect("sent");
        assert_eq!(stranger.recv(PATIENCE).expect("an announcement").bytes[12..14], [0x80, 0x35]);
        drop(front);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &stranger);
        guest.driver.transport().send_rarp(GUEST_MAC).expect("sent");
        assert_eq!(stranger.recv(PATIENCE).expect("an announcement").bytes[12..14], [0x80, 0x35]);
        assert!(peer.drain().is_empty());
    });
}

#[test]
fn two_queue_pairs_share_the_memory() {
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,queues=2,mode=copy")]);
        let mut peer = Peer::new("v1");
        let options = NetOptions { queue_pairs: 2, ..options(0, Layout::Single) };
        for _ in 0..5 {
            let mut guest = backend.guest("a", &options);
            for pair in 0..2 {
                let out = frame(pair as u32, 700);
                guest.send(pair, &[(Default::default(), out.clone())]);
                assert_eq!(peer.expect().bytes, out, "pair {pair}");
            }
            warm_up_both(&peer, |pair| guest.recv(pair, Duration::from_millis(20)).is_some());
            let sent = flows(100);
            sent.iter().for_each(|f| peer.send(f));
            let [a, b] = collect(100, |pair| guest.recv(pair, QUIET));
            assert!(!a.is_empty() && !b.is_empty(), "{} and {} frames", a.len(), b.len());
            assert_eq!(a.len() + b.len(), 100);
            assert!(sent.iter().all(|f| a.contains(f) || b.contains(f)));
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}

#[test]
fn two_vms_on_two_queues_of_one_interface() {
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let backend = Backend::start(&[
            Vm::on("a", "xdp:v0,queue=0,mode=copy"),
            Vm::on("b", "xdp:v0,queue=1,mode=copy"),
        ]);
        let mut peer = Peer::new("v1");
        let mut guests = ["a", "b"].map(|vm| backend.guest(vm, &options(0, Layout::Single)));
        for (i, guest) in guests.iter_mut().enumerate() {
            let out = frame(i as u32, 900);
            guest.send_plain(std::slice::from_ref(&out));
            assert_eq!(peer.expect().bytes, out);
        }
        warm_up_both(&peer, |i| guests[i].recv(0, Duration::from_millis(20)).is_some());
        let sent = flows(100);
        sent.iter().for_each(|f| peer.send(f));
        let [a, b] = collect(100, |i| guests[i].recv(0, QUIET));
        assert!(!a.is_empty() && !b.is_empty() && a.is_disjoint(&b));
        assert_eq!(a.len() + b.len(), 100);
        // The one goes, the other stays.
        let [gone, mut stays] = guests;
        drop(gone);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let out = frame(9, 900);
        stays.send_plain(std::slice::from_ref(&out));
        assert_eq!(peer.expect().bytes, out);
        flows(100).iter().for_each(|f| peer.send(f));
        assert_eq!(collect(b.len(), |_| stays.recv(0, QUIET)), [b]);
    });
}

/// The next frame of the guest's; the bridge sends some of its own.
fn guests_frame(peer: &mut Peer) -> Option<Vec<u8>> {
    std::iter::from_fn(|| peer.recv(PATIENCE)).map(|f| f.bytes).find(|b| b[12..14] == EXPERIMENT)
}

#[test]
fn a_slow_driver_holds_half_of_the_ring_and_no_more() {
    in_netns(|| {
        let (backend, _) = one_queue();
        let mut peer = slow_peer("v1", "w0", "w1");
        let mut guest = backend.guest("a", &NetOptions { tx_slots: 256, ..options(0, Layout::Single) });
        let all: Vec<_> = (0..1500).map(|n| frame(n, 1500)).collect();
        guest.send_plain(&all);
        // Frames that the kernel sends on two CPUs may pass each other in its backlogs.
        let mut missing: BTreeSet<u32> = (0..1500).collect();
        while let Some(n) = missing.first().copied() {
            let Some(got) = guests_frame(&mut peer) else {
                let links = Command::new("ip").args(["-statistics", "link"]).output().expect("ip is there");
                let links = String::from_utf8_lossy(&links.stdout).into_owned();
                panic!("frames {missing:?} never come; {:?}\n{links}", backend.stats("a"));
            };
            let at = number(&got);
            assert!(missing.remove(&at), "frame {at} comes twice, or is none; {n} is the first one missing");
            assert!(got == all[at as usize], "frame {at} is not what was sent");
        }
        // A frame that was copied is counted when the kernel has taken it, which may be after its
        // chain is back.
        wait_until("all frames are counted", || backend.stats("a").transmit.totals.frames == 1500);
        let totals = backend.stats("a").transmit.totals;
        assert_eq!(totals.dropped_total(), 0);
        assert!(totals.copied_bytes.contains_key("held"), "{:?}", totals.copied_bytes);
        assert!(totals.zero_copied_frames > 0);
        // At rest everything is as before.
        guest.send_plain(&all[..1]);
        assert!(guests_frame(&mut peer).is_some_and(|got| got == all[0]));
    });
}
