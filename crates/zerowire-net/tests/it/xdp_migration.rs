//! Live migration of a guest on an AF_XDP port. Each write to its memory is noted in the dirty log,
//! and nothing else is, also with frames under way when the rings stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::dirty::without_mark;
use crate::support::{Backend, Peer, Vm, frames, in_netns, options};
use zerowire_guest::features as f;
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions};
use zerowire_testkit::SetAtEnd;
use zerowire_testkit::net::veth::veth;

fn frame(n: u32, len: usize) -> Vec<u8> {
    without_mark(frames::frame(n, len))
}

fn settings() -> Vec<(&'static str, NetOptions)> {
    let rx = |mode| Some(RxOptions { mode, indirect: false, buffers: 0 });
    vec![
        ("merged buffers", options(0, Layout::Split)),
        (
            "short ones",
            NetOptions { rx: rx(RxMode::Mergeable { buffer_len: 700 }), ..options(0, Layout::Single) },
        ),
        ("one buffer a frame", options(f::NET_MRG_RXBUF, Layout::Pages)),
        ("no event index", options(f::RING_EVENT_IDX, Layout::Single)),
    ]
}

#[test]
fn every_write_is_noted_and_no_other() {
    for (what, options) in settings() {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options);
            guest.warm_up(0, &peer);
            for round in 0..3 {
                let migration = guest.migrate();
                for n in 0..60u32 {
                    let bytes = frame(n, [18, 60, 700, 1514][n as usize % 4]);
                    peer.send(&bytes);
                    assert!(guest.expect().1 == bytes, "{what}, round {round}, frame {n}");
                    guest.send_plain(std::slice::from_ref(&bytes));
                    assert_eq!(peer.expect().bytes, bytes);
                }
                guest.driver.stop().expect("stopped");
                migration.check(&guest.memory, &format!("{what}, round {round}"));
                guest.driver.resume(&mut guest.pairs).expect("resumed");
                guest.warm_up(0, &peer);
            }
            assert_eq!(backend.stats("a").ring_errors, 0);
        });
    }
}

/// What the kernel has put into a posted buffer when the ring stops was written, whether or not the
/// guest gets the buffer back.
#[test]
fn frames_under_way_when_the_rings_stop_are_noted() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Split));
        guest.warm_up(0, &peer);
        for round in 0..30 {
            let migration = guest.migrate();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _ends = SetAtEnd(&stop);
                let noise = Peer::new("v1");
                scope.spawn(|| {
                    let noise = noise;
                    let bytes = frame(round, 1400);
                    while !stop.load(Ordering::Relaxed) {
                        noise.send(&bytes);
                    }
                });
                let _ = guest.recv(0, crate::support::PATIENCE).expect("frames come");
                std::thread::sleep(Duration::from_millis(u64::from(round % 5)));
                guest.driver.stop().expect("stopped");
                migration.check(&guest.memory, &format!("round {round}"));
            });
            guest.driver.resume(&mut guest.pairs).expect("resumed");
            while guest.recv(0, Duration::from_millis(20)).is_some() {}
            guest.warm_up(0, &peer);
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}
