//! An AF_XDP port has its interface promiscuous while a guest runs, and leaves nothing of that
//! behind.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::support::frames::frame;
use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{Layout, NetOptions};
use zerowire_net::port::xdp::Promiscuous;
use zerowire_testkit::net::interface;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{promiscuity, veth, veth_for_who_waits};
use zerowire_testkit::own_process;

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
            veth_for_who_waits("v0", "v1", 1, 1500);
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

/// A second network namespace, of a thread that waits in it.
struct Elsewhere {
    /// The thread's number, by which `ip` finds the namespace.
    at: String,
    ask: Sender<&'static str>,
    thread: JoinHandle<u32>,
}

impl Elsewhere {
    fn new() -> Self {
        let (tell, told) = channel();
        let (ask, asked) = channel();
        let thread = std::thread::spawn(move || {
            in_netns(move || {
                // SAFETY: takes nothing.
                tell.send(unsafe { libc::gettid() }).expect("the test waits");
                asked.recv().map_or(0, promiscuity)
            })
        });
        Self { at: told.recv().expect("a namespace").to_string(), ask, thread }
    }

    fn promiscuity_of(self, name: &'static str) -> u32 {
        self.ask.send(name).expect("the thread waits");
        self.thread.join().expect("no panic")
    }
}

/// Into another network namespace, where the port does not look: promiscuous there it must not
/// stay.
#[test]
fn an_interface_that_is_moved_away_is_left_as_it_was() {
    own_process!();
    in_netns(|| {
        let other = Elsewhere::new();
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &Peer::new("v1"));
        assert_eq!(promiscuity("v0"), 1);
        ip(&["link", "set", "v0", "netns", &other.at]);
        wait_until("the loss is noticed", || backend.stats("a").path.contains("not bound"));
        // Its other end stays, or it would be gone there.
        ip(&["link", "set", "v1", "name", "old"]);
        veth_for_who_waits("v0", "v1", 1, 1500);
        guest.warm_up(0, &Peer::new("v1"));
        assert_eq!(promiscuity("v0"), 1, "the next one of that name");
        assert_eq!(other.promiscuity_of("v0"), 0, "where it was moved to");
    });
}

/// The port may hear of the move while the kernel is about it. The interface is not found any more,
/// and the kernel has not yet notified the packet sockets.
#[test]
fn who_lets_go_of_an_interface_that_is_being_moved_leaves_it_as_it_was() {
    in_netns(|| {
        for _ in 0..5 {
            veth("v0", "v1", 1, 1500);
            let other = Elsewhere::new();
            let index = interface("v0").expect("it was made");
            let held = Promiscuous::hold(index as u32).expect("packet sockets");
            std::thread::scope(|scope| {
                let moved = scope.spawn(|| ip(&["link", "set", "v0", "netns", &other.at]));
                while interface("v0").is_some() && !moved.is_finished() {
                    std::thread::yield_now();
                }
                drop(held);
            });
            assert_eq!(other.promiscuity_of("v0"), 0);
            // The other namespace takes v0 with it, and v0 its other end.
            wait_until("the pair is gone", || interface("v1").is_none());
        }
    });
}

/// Programs that are started at the same time have all descriptors for a moment.
#[test]
fn a_copy_of_the_descriptor_keeps_nothing_promiscuous() {
    // The copies of other tests' descriptors would be in their way.
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let index = interface("v0").expect("it was made");
        let held = Promiscuous::hold(index as u32).expect("packet sockets");
        // SAFETY: the child only makes system calls: it sleeps until it is killed, or until this
        // thread ends.
        let child = match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: takes numbers only.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // SAFETY: takes nothing.
                unsafe { libc::pause() };
            },
            child => child,
        };
        assert!(child > 0, "no child");
        assert_eq!(promiscuity("v0"), 1);
        drop(held);
        let left = promiscuity("v0");
        // SAFETY: a child of this process that nobody has waited for; the status is not asked for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(left, 0);
    });
}
