//! The system calls of a process that serves VMs whose sockets another process has opened. They
//! are those of front ends' sockets, the rings, guest memory, and host programs' sockets.

use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM, any, values};
use zerowire_sys::socket::SO_PASSRIGHTS;
use zerowire_vhost::serve::{FCNTL, OF_A_FRONT_END};

/// In lists: those of any program, of any device, and its own.
pub const SYSTEM_CALLS: &[&[AllowedCall]] = &[OF_A_PROGRAM, OF_A_FRONT_END, OF_THE_DEVICE];

const OF_THE_DEVICE: &[AllowedCall] = &[
    // Waiting for credit, limits and late programs.
    any(libc::SYS_timerfd_create),
    any(libc::SYS_timerfd_settime),
    // The sockets of front ends and host programs, and what comes by them.
    any(libc::SYS_sendmsg),
    any(libc::SYS_sendmmsg),
    any(libc::SYS_shutdown),
    FCNTL,
    values(
        libc::SYS_getsockopt,
        2,
        &[libc::SO_SNDBUF as u32, libc::SO_PEERCRED as u32, libc::SO_DOMAIN as u32, libc::SO_TYPE as u32],
    ),
    values(libc::SYS_setsockopt, 2, &[libc::SO_SNDBUF as u32, SO_PASSRIGHTS as u32]),
    // What a program with mapped receive is given: a pair of connected sockets, which reach nobody
    // else.
    values(libc::SYS_socketpair, 0, &[libc::AF_UNIX as u32]),
    // How many bytes wait in a socket.
    values(libc::SYS_ioctl, 1, &[libc::FIONREAD as u32, libc::TIOCOUTQ as u32, libc::FIONBIO as u32]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::Only;

    fn list() -> impl Iterator<Item = &'static AllowedCall> {
        SYSTEM_CALLS.iter().copied().flatten()
    }

    #[test]
    fn a_call_is_allowed_in_one_place() {
        let mut numbers: Vec<_> = list().map(|call| call.number).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }

    #[test]
    fn there_are_at_most_40_calls() {
        let allowed = list().filter(|call| call.only != Only::Absent).count();
        assert!(allowed <= 40, "{allowed}");
    }

    #[test]
    fn nothing_is_opened_and_nobody_is_connected_to() {
        for number in [libc::SYS_openat, libc::SYS_socket] {
            assert!(list().any(|call| call.number == number && call.only == Only::Absent), "{number}");
        }
        for number in [libc::SYS_connect, libc::SYS_bind, libc::SYS_execve, libc::SYS_io_uring_setup] {
            assert!(list().all(|call| call.number != number), "{number}");
        }
    }
}
