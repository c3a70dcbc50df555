//! The system calls of a process that serves VMs whose sockets another process has opened. They
//! are those of front ends' sockets, the rings, guest memory, and host programs' sockets.

use zerowire_sys::allowed::{AllowedCall, absent, any, values};

/// Beside those of any program ([`zerowire_sys::allowed::OF_A_PROGRAM`]).
pub const SYSTEM_CALLS: &[AllowedCall] = &[
    // Waiting.
    any(libc::SYS_epoll_create1),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_epoll_pwait2),
    any(libc::SYS_eventfd2),
    any(libc::SYS_timerfd_create),
    any(libc::SYS_timerfd_settime),
    // Of a descriptor that looks like an eventfd: it may be this process's timer.
    any(libc::SYS_timerfd_gettime),
    // The sockets of front ends and host programs, and that of the process which has opened them.
    any(libc::SYS_accept4),
    any(libc::SYS_recvfrom),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendto),
    any(libc::SYS_sendmsg),
    any(libc::SYS_sendmmsg),
    any(libc::SYS_shutdown),
    values(libc::SYS_getsockopt, 2, &[libc::SO_SNDBUF as u32, libc::SO_PEERCRED as u32]),
    values(libc::SYS_setsockopt, 2, &[libc::SO_SNDBUF as u32]),
    // What a program with mapped receive is given: a pair of connected sockets, which reach nobody
    // else.
    values(libc::SYS_socketpair, 0, &[libc::AF_UNIX as u32]),
    // Descriptors that a front end sends, and memory for it and for windows.
    any(libc::SYS_fstat),
    any(libc::SYS_fstatfs),
    any(libc::SYS_preadv2),
    any(libc::SYS_lseek),
    any(libc::SYS_ftruncate),
    any(libc::SYS_memfd_create),
    values(
        libc::SYS_fcntl,
        1,
        &[
            libc::F_DUPFD_CLOEXEC as u32,
            libc::F_GETFD as u32,
            libc::F_SETFD as u32,
            libc::F_GETFL as u32,
            libc::F_SETFL as u32,
            libc::F_GET_SEALS as u32,
            libc::F_ADD_SEALS as u32,
        ],
    ),
    // How many bytes wait in a socket.
    values(libc::SYS_ioctl, 1, &[libc::FIONREAD as u32, libc::TIOCOUTQ as u32, libc::FIONBIO as u32]),
    // There are no files and no sockets to make: who looks for some goes on without.
    absent(libc::SYS_openat),
    absent(libc::SYS_readlink),
    absent(libc::SYS_readlinkat),
    absent(libc::SYS_socket),
    // Another call shows then that guest memory was lost.
    absent(libc::SYS_pwritev2),
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::{OF_A_PROGRAM, Only};

    fn list() -> impl Iterator<Item = &'static AllowedCall> {
        OF_A_PROGRAM.iter().chain(SYSTEM_CALLS)
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
    fn there_are_at_most_53_calls() {
        let allowed = list().filter(|call| call.only != Only::Absent).count();
        assert!(allowed <= 53, "{allowed}");
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
