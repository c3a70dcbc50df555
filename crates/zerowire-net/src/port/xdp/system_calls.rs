//! The system calls of a process that serves a VM on queues of an interface which another process
//! has. They are those of the front end's socket, the rings, guest memory and AF_XDP sockets.

use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM, absent, any, values};
use zerowire_sys::xdp::IOCTLS;
use zerowire_vhost::serve::{FCNTL, OF_A_FRONT_END};

/// In lists: those of any program, of any device, and its own.
pub const SYSTEM_CALLS: &[&[AllowedCall]] = &[OF_A_PROGRAM, OF_A_FRONT_END, OF_THE_DEVICE];

const OF_THE_DEVICE: &[AllowedCall] = &[
    // The front end's socket and what comes by it.
    any(libc::SYS_sendmsg),
    FCNTL,
    // Registers guest memory and sets the lengths of rings: no option of any other socket.
    values(libc::SYS_setsockopt, 1, &[libc::SOL_XDP as u32]),
    // Where the rings are, which mode they have, and what the kernel dropped; which process is the
    // front end, and whether what was handed over as its socket is one.
    values(
        libc::SYS_getsockopt,
        2,
        &[
            libc::XDP_MMAP_OFFSETS as u32,
            libc::XDP_STATISTICS as u32,
            libc::XDP_OPTIONS as u32,
            libc::SO_DOMAIN as u32,
            libc::SO_TYPE as u32,
            libc::SO_PEERPIDFD as u32,
        ],
    ),
    // Questions about interfaces, and about this process's own pages.
    values(libc::SYS_ioctl, 1, IOCTLS),
    // Frames go out by write(2), and come without a call.
    absent(libc::SYS_sendto),
    absent(libc::SYS_recvfrom),
    // What the process may pin is the other one's matter.
    absent(libc::SYS_capget),
    // Old kernels tell of pages by it.
    absent(libc::SYS_pread64),
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::Only;

    fn list() -> impl Iterator<Item = &'static AllowedCall> {
        SYSTEM_CALLS.iter().copied().flatten()
    }

    #[test]
    fn there_are_at_most_35_calls_each_in_one_place() {
        assert!(list().filter(|call| call.only != Only::Absent).count() <= 35);
        let mut numbers: Vec<_> = list().map(|call| call.number).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] != two[1]), "{numbers:?}");
    }

    #[test]
    fn nothing_is_bound_steered_or_opened() {
        for number in [libc::SYS_bind, libc::SYS_bpf, libc::SYS_connect, libc::SYS_dup2] {
            assert!(list().all(|call| call.number != number), "{number}");
        }
        for number in [libc::SYS_socket, libc::SYS_openat, libc::SYS_sendto] {
            let call = list().find(|call| call.number == number).expect("a caller that does without");
            assert_eq!(call.only, Only::Absent, "{number}");
        }
    }
}
