//! How long kicks take: each is measured once, and what no kick made is not.

use crate::support::frames::frame;
use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::Layout;
use zerowire_net::VmStats;

/// Kicks measured and kicks taken, of both directions.
fn kicks(stats: &VmStats) -> [u64; 4] {
    let (transmit, receive) = (&stats.transmit, &stats.receive);
    let measured = [transmit, receive].map(|direction| direction.kick_seconds.count());
    [measured[0], transmit.totals.kicks, measured[1], receive.totals.kicks]
}

#[test]
fn each_kick_is_measured_once_and_frames_of_the_port_are_not() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwkick")]);
        let mut peer = Peer::new("zwkick");
        assert_eq!(kicks(&backend.stats("zwkick")), [0; 4], "nobody kicks");
        let mut guest = backend.guest("zwkick", &options(0, Layout::Single));
        for n in 0..20 {
            guest.send_plain(&[frame(n, 100)]);
            assert_eq!(peer.expect().bytes, frame(n, 100));
            // It sleeps, and asks for the next kick.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        wait_until("each kick is measured", || {
            let [measured, taken, receive, taken_receive] = kicks(&backend.stats("zwkick"));
            measured >= 10 && measured == taken && receive == taken_receive
        });
        let before = backend.stats("zwkick").transmit.kick_seconds;
        assert!(before.sum > 0.0, "{before:?}");
        for n in 0..20 {
            peer.send(&frame(n, 100));
            assert_eq!(guest.expect().1, frame(n, 100));
        }
        assert_eq!(backend.stats("zwkick").transmit.kick_seconds, before);
    });
}
