//! The system calls of a process that serves a VM on a tap which another process has opened. They
//! are those of the front end's socket, the rings, guest memory and the tap.

use zerowire_sys::allowed::{AllowedCall, absent, any, values};
use zerowire_sys::tap::IOCTLS;

/// Beside those of any program ([`zerowire_sys::allowed::OF_A_PROGRAM`]).
pub const SYSTEM_CALLS: &[AllowedCall] = &[
    // Frames.
    any(libc::SYS_readv),
    any(libc::SYS_writev),
    // Waiting.
    any(libc::SYS_epoll_create1),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_epoll_pwait2),
    any(libc::SYS_eventfd2),
    // The front end's socket, and that of the process which has opened all of it.
    any(libc::SYS_accept4),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendmsg),
    // Descriptors that it sends, and memory for it.
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
    // The tap, and questions about its interface.
    values(libc::SYS_ioctl, 1, IOCTLS),
    // There are no files and no sockets to make: who looks for some goes on without.
    absent(libc::SYS_openat),
    absent(libc::SYS_readlink),
    absent(libc::SYS_readlinkat),
    absent(libc::SYS_socket),
    // The process has no timers that a front end's descriptors could be mistaken for.
    absent(libc::SYS_timerfd_gettime),
    // What comes as the front end's socket is found to be another one when it is read.
    absent(libc::SYS_getsockopt),
    // Another call shows then that guest memory was lost.
    absent(libc::SYS_pwritev2),
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::{OF_A_PROGRAM, Only};

    #[test]
    fn a_call_is_allowed_in_one_place() {
        let mut numbers: Vec<_> = OF_A_PROGRAM.iter().chain(SYSTEM_CALLS).map(|call| call.number).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }

    #[test]
    fn there_are_at_most_45_calls() {
        let list = OF_A_PROGRAM.iter().chain(SYSTEM_CALLS);
        let allowed = list.filter(|call| call.only != Only::Absent).count();
        assert!(allowed <= 45, "{allowed}");
    }

    #[test]
    fn nothing_is_opened_and_no_interface_is_changed() {
        let list = || OF_A_PROGRAM.iter().chain(SYSTEM_CALLS);
        for number in [libc::SYS_openat, libc::SYS_socket] {
            assert!(list().any(|call| call.number == number && call.only == Only::Absent), "{number}");
        }
        for number in [libc::SYS_connect, libc::SYS_bind, libc::SYS_execve, libc::SYS_io_uring_setup] {
            assert!(list().all(|call| call.number != number), "{number}");
        }
        for request in [libc::SIOCSIFMTU, libc::SIOCSIFFLAGS, 0x4004_54ca] {
            assert!(!IOCTLS.contains(&(request as u32)), "{request:#x}");
        }
    }
}
