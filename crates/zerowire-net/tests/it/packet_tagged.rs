//! A socket for tagged frames that does nothing but fail. It is found among all descriptors of this
//! process.

use std::os::fd::{AsRawFd, RawFd};

use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::Layout;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;

/// The packet sockets of this process that receive tags (PACKET_AUXDATA).
fn sockets_for_tagged_frames() -> Vec<RawFd> {
    let numbers = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let numbers = numbers.filter_map(|e| e.file_name().to_str()?.parse().ok());
    numbers
        .filter(|fd| {
            let mut told: libc::c_int = 0;
            let mut len = size_of::<libc::c_int>() as libc::socklen_t;
            let (level, option) = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
            // SAFETY: the kernel writes an int; on any other descriptor the call fails.
            let done = unsafe { libc::getsockopt(*fd, level, option, (&raw mut told).cast(), &raw mut len) };
            done == 0 && told == 1
        })
        .collect()
}

#[test]
fn errors_that_come_again_and_again_do_not_hold_the_worker() {
    own_process!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "packet:v0")]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        let sockets = sockets_for_tagged_frames();
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        // Receiving from a descriptor that isn't a socket fails each time.
        let (no_socket, _other_end) = std::io::pipe().expect("a pipe");
        // SAFETY: both descriptors are open; the number stays its owner's, who closes it once.
        assert_eq!(unsafe { libc::dup2(no_socket.as_raw_fd(), sockets[0]) }, sockets[0]);
        for n in 0..100 {
            guest.ping(&mut peer, n);
        }
        wait_until("the errors are counted", || {
            backend.stats("a").receive.totals.dropped_frames.get("port_refused").is_some_and(|n| *n >= 32)
        });
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
    });
}
