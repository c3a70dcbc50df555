//! The kernel's receive ring stands still after a frame that it has no virtio-net header for: the
//! guest is served all the same.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::support::frames::{self, frame, number};
use crate::support::{Backend, Guest, Vm, in_netns, options, wait_until};
use zerowire_guest::net::Layout;
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_UDP};
use zerowire_testkit::net::ip;

fn path_is(backend: &Backend, word: &str) {
    wait_until(word, || backend.stats("a").path.contains(word));
}

fn dropped(backend: &Backend, why: &str) -> u64 {
    backend.stats("a").receive.totals.dropped_frames.get(why).copied().unwrap_or(0)
}

/// A tap as an interface whose other end writes what it likes, its virtio-net header in front.
struct Wire(OwnedFd);

impl Wire {
    fn new(name: &str) -> Self {
        let file =
            std::fs::File::options().read(true).write(true).open("/dev/net/tun").expect("/dev/net/tun");
        let mut request = [0u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF reads and writes an ifreq, which is 40 bytes.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
        assert_eq!(done, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
        ip(&["link", "set", name, "up"]);
        Self(file.into())
    }

    fn write(&self, header: [u8; 10], frame: &[u8]) {
        let bytes = [&header[..], frame].concat();
        assert_eq!(rustix::io::write(&self.0, &bytes), Ok(bytes.len()));
    }
}

/// A frame to be fragmented, for which the kernel has no virtio-net header: a ring of its stands
/// still from then on.
fn stop_ring(wire: &Wire) {
    let udp = frames::udp_frame([10, 0, 0, 1], &[5; 4000]);
    wire.write([FLAG_NEEDS_CSUM, GSO_UDP, 42, 0, 0xc8, 5, 34, 0, 6, 0], &udp);
}

/// Writes frames until one of them comes to the guest.
fn until_one_comes(wire: &Wire, guest: &mut Guest, first: u32) {
    let mut n = first;
    wait_until("a frame comes", || {
        n += 1;
        wire.write([0; 10], &frame(n, 100));
        guest.recv(0, Duration::from_millis(20)).is_some_and(|(_, f)| number(&f) >= first)
    });
}

#[test]
fn a_ring_that_the_kernel_lets_stand_still_is_left_with_a_word() {
    in_netns(|| {
        let wire = Wire::new("t0");
        let backend = Backend::start(&[Vm::on("a", "packet:t0,receive=auto")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        until_one_comes(&wire, &mut guest, 1);
        path_is(&backend, "frames in by a TPACKET_V2 ring");
        // The wait is long enough that the back end doesn't poll the ring any more. What comes then
        // wakes it, a frame or one that is dropped.
        std::thread::sleep(Duration::from_secs(4));
        until_one_comes(&wire, &mut guest, 500_000);
        std::thread::sleep(Duration::from_secs(4));
        stop_ring(&wire);
        until_one_comes(&wire, &mut guest, 1_000_000);
        path_is(&backend, "no receive ring: it stood still");
        path_is(&backend, "not tried again (receive=auto)");
        wait_until("what was lost is counted", || dropped(&backend, "no_room") >= 1);
        // By the socket such a frame is only dropped.
        let before = dropped(&backend, "port_refused");
        stop_ring(&wire);
        until_one_comes(&wire, &mut guest, 2_000_000);
        assert_eq!(dropped(&backend, "port_refused"), before + 1);
        // Another connection has a ring again.
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        until_one_comes(&wire, &mut guest, 3_000_000);
        path_is(&backend, "frames in by a TPACKET_V2 ring");
    });
}

#[test]
fn a_ring_that_was_asked_for_is_opened_again_when_it_stood_still() {
    in_netns(|| {
        let wire = Wire::new("t0");
        let backend = Backend::start(&[Vm::on("a", "packet:t0,receive=ring")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        for n in 1..4 {
            until_one_comes(&wire, &mut guest, n * 1_000_000);
            stop_ring(&wire);
            let mut k = n * 1_000_000 + 500_000;
            let mut closed = false;
            wait_until("another ring is there", || {
                k += 1;
                wire.write([0; 10], &frame(k, 100));
                let path = backend.stats("a").path;
                closed |= path.contains("no receive ring: it stood still") && path.contains("tried again");
                closed && path.contains("frames in by a TPACKET_V2 ring")
            });
            while guest.recv(0, Duration::from_millis(100)).is_some() {}
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}
