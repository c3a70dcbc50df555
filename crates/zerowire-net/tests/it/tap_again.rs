//! A tap that somebody deletes, and one of its name that comes in its place.

use std::time::Duration;

use zerowire_guest::net::{Layout, NetOptions, VirtioNetHdr};
use zerowire_guest::{Transport, features as f};
use zerowire_net::LinkState;
use zerowire_testkit::net::{interface, ip, tap};

use crate::support::frames::frame;
use crate::support::{Backend, Guest, Peer, Vm, in_netns, options, wait_until};

/// A VM on a tap that was there before.
fn served(queues: usize) -> Backend {
    make(queues);
    Backend::start(&[Vm { queues, ..Vm::new("zwback") }])
}

fn make(queues: usize) {
    let flags = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    tap::persistent("zwback", flags);
}

fn delete() {
    ip(&["link", "del", "zwback"]);
}

/// The statistics say that the tap is gone, and what to do.
fn tells_of_the_end(backend: &Backend) {
    wait_until("it is told", || {
        let stats = backend.stats("zwback");
        [stats.path, stats.last_error.unwrap_or_default()].iter().all(|text| {
            text.contains("tap 'zwback' is gone") && text.contains("'ip tuntap add zwback mode tap")
        })
    });
    assert_eq!(backend.stats("zwback").port_state.interface_state, LinkState::Gone);
}

fn pings(guest: &mut Guest) {
    let mut peer = Peer::new("zwback");
    guest.warm_up_peer(&mut peer);
    guest.warm_up(0, &peer);
    guest.ping(&mut peer, 1);
}

#[test]
fn a_tap_that_is_deleted_and_made_again_carries_frames_again() {
    // With a header of 12 bytes, and with one of 10, as an old guest has it.
    for (queues, without) in [(1, 0), (1, f::VERSION_1 | f::NET_MRG_RXBUF), (2, 0)] {
        in_netns(move || {
            let backend = served(queues);
            let mut guest = backend.guest("zwback", &options(without, Layout::Split));
            pings(&mut guest);
            for _ in 0..3 {
                delete();
                tells_of_the_end(&backend);
                let dropped = || backend.stats("zwback").transmit.totals.dropped_total();
                let before = dropped();
                guest.send_plain(&[frame(1, 100), frame(2, 100)]);
                assert_eq!(dropped(), before + 2);
                make(queues);
                pings(&mut guest);
            }
            assert!(guest.driver.transport().is_alive(), "it was never disconnected");
            assert_eq!(backend.stats("zwback").ring_errors, 0);
        });
    }
}

/// Queue pairs that are in use, and no others, have flows of the new tap.
#[test]
fn all_queue_pairs_go_on() {
    in_netns(|| {
        let backend = served(3);
        let wanted = NetOptions { queue_pairs: 2, ..options(0, Layout::Split) };
        let mut guest = backend.guest("zwback", &wanted);
        pings(&mut guest);
        delete();
        tells_of_the_end(&backend);
        make(3);
        pings(&mut guest);
        let mut peer = Peer::new("zwback");
        guest.send(1, &[(VirtioNetHdr::default(), frame(7, 100))]);
        assert_eq!(peer.expect().bytes, frame(7, 100));
        // Each flow has a queue of its own, and none is lost.
        for n in 0..64 {
            let mut flow = frame(n, 100);
            flow[6..12].copy_from_slice(&[2, 0, 0, 0, 1, n as u8]);
            peer.send(&flow);
            wait_until("it arrives", || {
                (0..2).any(|pair| guest.recv(pair, Duration::ZERO).is_some_and(|(_, got)| got == flow))
            });
        }
    });
}

/// Nothing is received, so that no read tells.
#[test]
fn a_guest_that_only_sends_goes_on() {
    in_netns(|| {
        let backend = served(1);
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        guest.driver.transport().enable_queue(0, false).expect("disabled");
        delete();
        guest.send_plain(&[frame(1, 100)]);
        tells_of_the_end(&backend);
        make(1);
        guest.warm_up_peer(&mut Peer::new("zwback"));
    });
}

/// Nobody looks as long as no front end is there.
#[test]
fn a_front_end_that_connects_finds_the_tap_that_is_there_now() {
    in_netns(|| {
        let backend = served(1);
        delete();
        make(1);
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        pings(&mut guest);
        drop(guest);
        assert_eq!(backend.stats("zwback").last_error, None);
        // There is none yet, and it is not this program's to make.
        delete();
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        guest.driver.transport().set_mtu(2000).expect("taken");
        guest.driver.transport().send_rarp([2, 0, 0, 0, 0, 9]).expect("taken");
        guest.send_plain(&[frame(1, 100)]);
        tells_of_the_end(&backend);
        assert_eq!(interface("zwback"), None);
        make(1);
        pings(&mut guest);
        assert_eq!(backend.stats("zwback").connection_errors, 0);
    });
}

/// One that the program has made is its own to make.
#[test]
fn a_tap_of_the_program_is_made_anew_when_a_front_end_connects() {
    in_netns(|| {
        let backend = Backend::start(&[Vm { queues: 2, ..Vm::new("zwback") }]);
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        guest.driver.transport().set_mtu(2000).expect("taken");
        pings(&mut guest);
        delete();
        tells_of_the_end(&backend);
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("zwback").connected);
        assert_eq!(interface("zwback"), None, "nobody was there to use it");
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        pings(&mut guest);
        let socket = zerowire_sys::netdevice::socket().expect("a socket");
        assert_eq!(zerowire_sys::netdevice::mtu(socket, "zwback").ok(), Some(2000));
        // Who makes one by hand has one that stays, and the program goes on with that.
        delete();
        tells_of_the_end(&backend);
        make(2);
        pings(&mut guest);
        drop((guest, backend));
        assert!(interface("zwback").is_some(), "it is not the program's");
    });
}

/// What can't be taken is named, with what to do.
#[test]
fn another_kind_of_tap_is_told_and_waited_for() {
    in_netns(|| {
        let backend = served(2);
        let mut guest = backend.guest("zwback", &options(0, Layout::Split));
        pings(&mut guest);
        delete();
        tells_of_the_end(&backend);
        make(1);
        wait_until("it is told", || {
            backend.stats("zwback").path.contains("'ip tuntap add zwback mode tap multi_queue'")
        });
        delete();
        make(2);
        pings(&mut guest);
    });
}
