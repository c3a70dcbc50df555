//! Guests on an AF_XDP port come and go, and nothing is left behind: descriptors, mappings, threads
//! and pinned memory of this process are counted.

use crate::support::frames::frame;
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions};
use zerowire_guest::{GuestAddr, GuestMemory};
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;
use zerowire_vhost::memory::PinBudget;

/// Descriptors, mappings, threads; bytes that are pinned or locked.
fn holdings() -> [u64; 6] {
    let entries = |path| std::fs::read_dir(path).expect("procfs").count() as u64;
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let of = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).expect("a line of that name");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    };
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let shared = maps.lines().filter(|l| l.contains("memfd:") || l.contains("socket:")).count() as u64;
    let pinned = PinBudget::of_process().used();
    [entries("/proc/self/fd"), shared, entries("/proc/self/task"), pinned, of("VmLck:"), of("VmPin:")]
}

#[test]
fn hundreds_of_guests_leave_nothing_behind() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut peer = Peer::new("v1");
        let shape = FrameShape { layout: Layout::Single, indirect: false, capacity: 1600 };
        let options = NetOptions { tx: shape, queue_size: 64, ..options(0, Layout::Single) };
        let memory = GuestMemory::new(&[(GuestAddr(0), 1 << 20)]).expect("guest memory");
        let cycle = |n: u32, peer: &mut Peer| {
            let (driver, pairs) = NetDriver::start(backend.connect("a"), &memory, &options).expect("a guest");
            let mut guest = Guest { driver, pairs, memory: memory.clone() };
            let out = frame(n, 100);
            guest.send_plain(std::slice::from_ref(&out));
            let came = peer.recv(PATIENCE).unwrap_or_else(|| panic!("guest {n}: {:#?}", backend.stats("a")));
            assert_eq!(came.bytes, out, "guest {n}");
            if n.is_multiple_of(100) {
                guest.warm_up(0, peer);
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        };
        for n in 0..10 {
            cycle(n, &mut peer);
        }
        let before = holdings();
        for n in 10..310 {
            cycle(n, &mut peer);
            if n % 50 == 0 {
                wait_until("all is as it was", || {
                    let now = holdings();
                    if now != before {
                        eprintln!("after guest {n}: {now:?}, before {before:?}");
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    now == before
                });
            }
        }
        let stats = backend.stats("a");
        assert_eq!((stats.connections, stats.connection_errors, stats.ring_errors), (310, 0, 0));
        assert_eq!(stats.transmit.totals.frames, 310);
        assert_eq!(before[3..], [0, 0, 0], "nothing is pinned without a guest");
    });
}
