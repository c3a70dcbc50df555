//! Nothing is left behind by guests that come and go, well-behaved or not: descriptors, mappings
//! and threads of this process are counted.

use crate::support::attack::{PLAIN, attack, front_end};
use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::misbehave::{RingAttack, malformed_messages};
use zerowire_guest::net::{Layout, NetOptions};
use zerowire_testkit::own_process;

/// Descriptors, mappings of guest memory, threads.
fn holdings() -> [usize; 3] {
    let entries = |path| std::fs::read_dir(path).expect("procfs").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    // Stacks and heaps of threads come and go as the allocator likes; a guest's memory does not.
    let shared = maps.lines().filter(|l| l.contains("memfd:")).count();
    [entries("/proc/self/fd"), shared, entries("/proc/self/task")]
}

/// Checks that this process holds what it held `before`. A thread that was waited for is seen a
/// moment longer.
fn assert_held(backend: &Backend, vm: &str, before: [usize; 3], after: &str) {
    wait_until("the connection has ended", || !backend.stats(vm).connected);
    let mut now = [0; 3];
    wait_until(&format!("{before:?} descriptors, mappings, threads after {after}"), || {
        let changed = holdings();
        if changed != now && changed != before {
            eprintln!("after {after}: {changed:?}");
        }
        now = changed;
        now == before
    });
}

/// What this process holds when it has come to rest.
fn at_rest() -> [usize; 3] {
    let (mut last, mut same) = (holdings(), 0);
    wait_until("at rest", || {
        let now = holdings();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same == 50
    });
    last
}

/// Virtual memory of this process, pages.
fn virtual_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of pages")
}

#[test]
fn nothing_is_left_behind() {
    own_process!();
    in_netns(|| {
        let name = "zwleak";
        let backend = Backend::start(&[Vm { queues: 2, ..Vm::new(name) }]);
        let mut peer = Peer::new(name);
        let options = NetOptions { queue_pairs: 2, ..options(0, Layout::Split) };
        let cycle = |n: u32, peer: &mut Peer| {
            let mut guest = backend.guest(name, &options);
            if n.is_multiple_of(10) {
                let out = crate::support::frames::frame(n, 100);
                guest.send_plain(std::slice::from_ref(&out));
                assert_eq!(peer.expect().bytes, out);
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats(name).connected);
        };
        cycle(0, &mut peer);
        let before = at_rest();
        let mut pages = 0;
        for n in 1..=100 {
            cycle(n, &mut peer);
            assert_held(&backend, name, before, &format!("{n} connections"));
            if n == 10 {
                pages = virtual_pages();
            }
        }
        // An arena of the allocator may come on top; a guest's memory or a reservation would be far
        // more.
        assert!(virtual_pages() < pages + (160 << 20 >> 12), "virtual memory grows with each connection");
        assert_eq!(backend.stats(name).connections, 101);

        for _ in 0..2 {
            for a in RingAttack::ALL {
                attack(&backend, name, &mut peer, PLAIN, *a);
            }
            assert_held(&backend, name, before, "all ring attacks");
            for message in malformed_messages(4) {
                let (mut transport, _memory) = front_end(&backend, name, PLAIN);
                let _ = message.send(transport.connection());
                if !message.cut {
                    let _ = transport.connection().recv();
                }
                drop((transport, _memory));
                assert_held(&backend, name, before, &message.name);
            }
        }
    });
}
