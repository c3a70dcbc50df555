//! An AF_XDP port has its interface promiscuous while a guest runs, and leaves nothing of that behind.

mod common;

use common::frames::frame;
use common::netns::in_own_process;
use common::veth::{ip, promiscuity, veth};
use common::{Backend, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{Layout, NetOptions};

#[test]
fn the_interface_is_promiscuous_while_a_guest_runs_and_only_then() {
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,queues=2,mode=copy")]);
        let mut peer = Peer::new("v1");
        let options = NetOptions { queue_pairs: 2, ..options(0, Layout::Single) };
        for n in 0..5 {
            assert_eq!(promiscuity("v0"), 0, "no guest, no frames");
            let mut guest = backend.guest("a", &options);
            guest.send_plain(&[frame(n, 100)]);
            assert_eq!(peer.expect().bytes, frame(n, 100));
            assert_eq!(promiscuity("v0"), 2, "each queue pair for itself");
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
        assert_eq!(promiscuity("v0"), 0);
    });
}

#[test]
fn who_does_not_want_it_does_not_get_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for (port, want) in [
            ("xdp:v0,mode=copy", 1),
            ("xdp:v0,mode=copy,promisc=on", 1),
            ("xdp:v0,mode=copy,promisc=off", 0),
            ("xdp:v0,mode=copy,match=mac:02:00:00:00:00:01", 1),
            ("xdp:v0,mode=copy,match=mac:02:00:00:00:00:01,promisc=off", 0),
        ] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.send_plain(&[frame(1, 100)]);
            assert_eq!(peer.expect().bytes, frame(1, 100), "{port}");
            assert_eq!(promiscuity("v0"), want, "{port}");
            drop((guest, backend));
            assert_eq!(promiscuity("v0"), 0, "{port}");
        }
    });
}

/// The interface is made anew, and another one gets the name.
#[test]
fn it_follows_the_interface_of_the_name() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &Peer::new("v1"));
        assert_eq!(promiscuity("v0"), 1);
        for n in 0..3 {
            ip(&["link", "del", "v0"]);
            wait_until("the loss is noticed", || backend.stats("a").path.contains("not bound"));
            veth("v0", "v1", 1, 1500);
            let mut peer = Peer::new("v1");
            guest.warm_up(0, &peer);
            guest.ping(&mut peer, n);
            assert_eq!(promiscuity("v0"), 1, "made anew");
        }
        // The one that is bound goes on under another name.
        ip(&["link", "set", "v0", "name", "other"]);
        guest.ping(&mut Peer::new("v1"), 7);
        assert_eq!(promiscuity("other"), 1);
        drop(guest);
        wait_until("it is as it was", || promiscuity("other") == 0);
    });
}

/// Into another network namespace, where the port does not look: promiscuous there it must not stay.
#[test]
fn an_interface_that_is_moved_away_is_left_as_it_was() {
    in_own_process("an_interface_that_is_moved_away_is_left_as_it_was", || {
        in_netns(|| {
            let (tell, told) = std::sync::mpsc::channel();
            let (done, until) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                in_netns(move || {
                    // SAFETY: takes nothing.
                    tell.send(unsafe { libc::gettid() }).expect("the test waits");
                    let _ = until.recv();
                    promiscuity("v0")
                })
            });
            let there = told.recv().expect("a namespace").to_string();
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.warm_up(0, &Peer::new("v1"));
            assert_eq!(promiscuity("v0"), 1);
            ip(&["link", "set", "v0", "netns", &there]);
            wait_until("the loss is noticed", || backend.stats("a").path.contains("not bound"));
            // Its other end stays, or it would be gone there.
            ip(&["link", "set", "v1", "name", "old"]);
            veth("v0", "v1", 1, 1500);
            guest.warm_up(0, &Peer::new("v1"));
            assert_eq!(promiscuity("v0"), 1, "the next one of that name");
            drop(done);
            assert_eq!(other.join().expect("no panic"), 0, "where it was moved to");
        });
    });
}
