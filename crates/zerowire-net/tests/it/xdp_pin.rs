//! How much of guests' memory an AF_XDP port pins, and what happens at the bound, which is the
//! process's.

use std::time::{Duration, Instant};

use crate::support::frames::{frame, number};
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use rustix::fs::{FallocateFlags, fallocate};
use zerowire_guest::net::{Layout, NetDriver, NetOptions};
use zerowire_guest::{GuestAddr, GuestMemory, Transport};
use zerowire_sys::xdp::{Socket, SocketOptions, Umem, UmemOptions};
use zerowire_testkit::SetAtEnd;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;
use zerowire_vhost::memory::PinBudget;

/// Bytes of a guest's memory, and what is registered beside it for a queue pair at most.
const RAM: u64 = 48 << 20;
const BESIDE: u64 = 3 << 20;

/// With two queue pairs, and a bound that has room for one registration only.
#[test]
fn memory_changes_under_traffic_within_the_bound() {
    own_process!();
    PinBudget::of_process().limit(RAM + (4 << 20) + 3 * BESIDE);
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,queues=2,mode=copy")]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &NetOptions { queue_pairs: 2, ..options(0, Layout::Single) });
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = SetAtEnd(&stop);
            let noise = Peer::new("v1");
            scope.spawn(|| {
                let noise = noise;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    (0..20).for_each(|n| noise.send(&frame(n, 300)));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for n in 0..6u32 {
                let region = guest.memory.add_region(GuestAddr(2 << 32), 4 << 20).expect("a region");
                guest.driver.transport().add_memory(&region).expect("plugged");
                for pair in 0..2 {
                    let out = frame(1000 + 2 * n + pair as u32, 700);
                    guest.send(pair, &[(Default::default(), out.clone())]);
                    assert_eq!(peer.expect().bytes, out, "pair {pair} after plugging");
                }
                guest.driver.transport().remove_memory(&region).expect("unplugged");
                guest.memory.remove_region(GuestAddr(2 << 32)).expect("removed");
            }
        });
        let stats = backend.stats("a");
        assert_eq!((stats.ring_errors, stats.connection_errors), (0, 0), "{:?}", stats.last_error);
        drop(guest);
        wait_until("nothing is pinned any more", || PinBudget::of_process().used() == 0);
    });
}

/// Frames of both kinds of memory pass, each VM has its share, and nobody has more.
#[test]
fn two_vms_share_the_bound_and_frames_beyond_it_are_copied() {
    own_process!();
    let share = 24 << 20;
    PinBudget::of_process().limit(2 * share);
    in_netns(move || {
        veth("v0", "v1", 1, 1500);
        veth("w0", "w1", 1, 1500);
        let vms = [("a", "v0"), ("b", "w0")];
        let vms = vms.map(|(name, veth)| Vm::on(name, format!("xdp:{veth},mode=copy,pin=partial")));
        let backend = Backend::start(&vms);
        let mut peers = [Peer::new("v1"), Peer::new("w1")];
        let mut guests = ["a", "b"].map(|vm| backend.guest(vm, &options(0, Layout::Single)));
        assert!(PinBudget::of_process().used() <= 2 * share);
        for (i, vm) in ["a", "b"].into_iter().enumerate() {
            let (guest, peer) = (&mut guests[i], &mut peers[i]);
            guest.warm_up(0, peer);
            for n in 0..600u32 {
                let bytes = frame(n, 60 + n as usize);
                guest.send_plain(std::slice::from_ref(&bytes));
                assert_eq!(peer.expect().bytes, bytes, "{vm}: out, {n}");
                peer.send(&bytes);
                assert!(guest.expect().1 == bytes, "{vm}: in, {n}");
            }
            let stats = backend.stats(vm);
            assert!(stats.path.contains("of 48 MiB of the guest's memory are pinned"), "{}", stats.path);
            assert_eq!(stats.transmit.totals.dropped_total() + stats.receive.totals.dropped_total(), 0);
        }
        // Each has what is left for it, whoever came first.
        let pinned = ["a", "b"].map(|vm| backend.stats(vm).path.split("; ").nth(1).map(str::to_owned));
        assert_eq!(pinned[0], pinned[1]);
    });
}

/// Where each buffer lies on either side of the bound, frames come out right and the ledger tells
/// which were copied.
#[test]
fn buffers_on_both_sides_of_the_bound() {
    own_process!();
    // The first region of the patterned guest and half of the second one.
    let pinned = (1 << 20) + (512 << 10);
    let least = (128 << 10) + 2 * (1 << 20) + 2048 * 256 + 4096;
    PinBudget::of_process().limit(least + pinned);
    in_netns(move || {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy,pin=partial")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", 0);
        let place = |i: u64| ((1 << 20) + (480 << 10) + i * 0x1000 + 77, 1600);
        for n in 0..40u32 {
            let head = guest.post(&[place(n.into())]);
            let bytes = frame(n, 1000);
            let used = (0..200).find_map(|_| {
                peer.send(&bytes);
                guest.used(Duration::from_millis(100))
            });
            assert_eq!(used, Some((head, 1012)), "buffer {n}");
            let whole = [&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &bytes].concat();
            guest.expect_in(&[place(n.into())], &whole);
            guest.check(&format!("buffer {n}"));
        }
        let totals = backend.stats("a").receive.totals;
        let copied: Vec<_> = totals.copied_bytes.keys().copied().collect();
        assert_eq!(copied, ["bounce_not_pinned"], "{}", backend.stats("a").path);
        assert!(totals.zero_copied_frames >= 7 && totals.zero_copied_frames < 33, "{totals:?}");
    });
}

#[test]
fn less_than_what_a_queue_needs_is_an_error_with_the_figure() {
    own_process!();
    PinBudget::of_process().limit(1 << 20);
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy,pin=partial")]);
        let guest = NetDriver::start(
            backend.connect("a"),
            &crate::support::guest_memory(),
            &options(0, Layout::Single),
        );
        assert!(guest.is_err());
        let error = backend.stats("a").last_error.unwrap_or_default();
        assert!(error.contains("can't be pinned") && error.contains("1048576"), "{error}");
    });
}

/// With `pin=off` nothing of the guest's is registered, so that there is nothing to be discarded,
/// and all frames pass.
#[test]
fn nothing_of_a_guest_is_pinned_where_that_is_not_wanted() {
    own_process!();
    PinBudget::of_process().limit(BESIDE);
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy,pin=off")]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up_peer(&mut peer);
        guest.warm_up(0, &peer);
        let mut look = |n: u32| {
            let bytes = frame(n, 60 + n as usize);
            guest.send_plain(std::slice::from_ref(&bytes));
            assert_eq!(peer.expect().bytes, bytes, "out, {n}");
            peer.send(&bytes);
            assert!(guest.expect().1 == bytes, "in, {n}");
        };
        (0..300).for_each(&mut look);
        assert!(PinBudget::of_process().used() <= BESIDE);
        let stats = backend.stats("a");
        assert!(stats.path.contains("; 0 of 48 MiB of the guest's memory are pinned"), "{}", stats.path);
        for totals in [&stats.transmit.totals, &stats.receive.totals] {
            assert_eq!((totals.zero_copied_frames, totals.zero_copied_bytes), (0, 0), "{totals:?}");
            assert!(totals.copied_bytes.contains_key("bounce_not_pinned"), "{totals:?}");
        }
        assert_eq!((stats.ring_errors, &stats.last_error), (0, &None));
    });
}

/// Nothing is registered for an interface that is down. Whether that could be done doesn't matter
/// yet.
#[test]
fn nothing_is_pinned_while_the_interface_is_down() {
    own_process!();
    PinBudget::of_process().limit(1);
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        ip(&["link", "set", "v0", "down"]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        assert!(backend.stats("a").path.contains("not bound"), "{}", backend.stats("a").path);
        assert_eq!(PinBudget::of_process().used(), 0);
        PinBudget::of_process().limit(u64::MAX);
        ip(&["link", "set", "v0", "up"]);
        let mut peer = Peer::new("v1");
        guest.warm_up_peer(&mut peer);
        guest.warm_up(0, &peer);
        guest.ping(&mut peer, 1);
        assert!(PinBudget::of_process().used() > RAM);
    });
}

/// Memory is registered once, however often the queue is found busy.
#[test]
fn memory_stays_pinned_while_the_queue_is_busy() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let small = Umem::new(1 << 20, UmemOptions::default(), false).expect("memory");
        let other = Socket::bind(&small, &SocketOptions::new("v0")).expect("a free queue");
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        wait_until("the queue is found busy", || backend.stats("a").path.contains("not bound"));
        // For some tries: each waits for the queue half a second, and the next one comes as long
        // after that.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2500) {
            assert!(PinBudget::of_process().used() > RAM, "it was let go of between two tries");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(other);
        let mut peer = Peer::new("v1");
        guest.warm_up_peer(&mut peer);
        guest.warm_up(0, &peer);
        guest.ping(&mut peer, 1);
        drop(guest);
        wait_until("nothing is pinned any more", || PinBudget::of_process().used() == 0);
    });
}

/// Takes the pages behind a part of guest memory away, as a balloon does.
fn discard(memory: &GuestMemory, at: u64, len: u64) {
    let region = memory.regions().into_iter().find(|r| r.guest_addr().0 <= at && at + len <= r.end().0);
    let region = region.expect("a region");
    let offset = region.file_offset() + at - region.guest_addr().0;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.file(), flags, offset, len).expect("punched");
}

/// Buffers in pages that were discarded and are there again: noticed, and right from then on; also
/// when it happens again and again.
#[test]
fn discarded_memory_is_noticed_and_frames_are_right_again() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", 0);
        let place = |i: u64| (DATA + 0x1_0000 + i * 0x1000 + 5, 1600);
        let mut n = 0u32;
        let mut deliver = |guest: &mut Patterned, exact: bool| {
            n += 1;
            let at = place(u64::from(n % 16));
            guest.post(&[at]);
            let bytes = frame(n, 900);
            let used = (0..200).find_map(|_| {
                peer.send(&bytes);
                guest.used(Duration::from_millis(100))
            });
            assert!(used.is_some(), "frame {n} never comes");
            if exact {
                let mut got = vec![0; 912];
                guest.memory.at(GuestAddr(at.0), 912).expect("memory").read(0, &mut got);
                // One that was sent again may come late.
                let k = number(&got[12..]);
                assert!(
                    k <= n && n - k < 5 && got[12..] == frame(k, 900),
                    "frame {n} is not what was sent: {k:#x}"
                );
            }
        };
        for round in 0..3 {
            (0..40).for_each(|_| deliver(&mut guest, true));
            // Each time another length, by which the notice is known.
            let pages = 16 - round;
            discard(&guest.memory, DATA + 0x1_0000, pages * 4096);
            // The guest uses its pages again: others are there now.
            for i in 0..pages {
                guest.memory.at(GuestAddr(DATA + 0x1_0000 + i * 4096), 1).expect("memory").write(0, &[7]);
            }
            wait_until("it is noticed", || {
                deliver(&mut guest, false);
                let said = backend.stats("a").last_error.unwrap_or_default();
                let next = if round < 2 { "registered anew" } else { "not registered any more" };
                let what = format!("{} KiB of the guest's memory were discarded", 4 * pages);
                said.contains(&what) && said.contains(next)
            });
            wait_until("the queue pairs have moved", || {
                let path = backend.stats("a").path;
                path.contains("pinned") == (round == 2) && path.contains("copy mode")
            });
            (0..40).for_each(|_| deliver(&mut guest, true));
        }
        let totals = backend.stats("a").receive.totals;
        assert!(totals.copied_bytes.contains_key("bounce_not_pinned"), "{totals:?}");
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}
