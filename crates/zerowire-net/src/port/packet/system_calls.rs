//! The system calls of a process that serves a VM on packet sockets which another process has
//! opened. They are those of the front end's socket, the rings, guest memory and the sockets.

use zerowire_sys::allowed::{AllowedCall, absent, any, values};
use zerowire_sys::packet::IOCTLS;

use super::handed::FIRST_NUMBER;

/// Beside those of any program ([`zerowire_sys::allowed::OF_A_PROGRAM`]).
pub const SYSTEM_CALLS: &[AllowedCall] = &[
    // Frames. By these a socket sends to the interface that it is bound to.
    any(libc::SYS_writev),
    any(libc::SYS_recvmsg),
    // What the kernel dropped, what it has room for, which process is the front end, and whether
    // what was handed over as its socket is one.
    values(
        libc::SYS_getsockopt,
        2,
        &[
            libc::SO_ERROR as u32,
            libc::SO_DOMAIN as u32,
            libc::SO_TYPE as u32,
            libc::SO_SNDBUF as u32,
            libc::PACKET_STATISTICS as u32,
            libc::SO_PEERPIDFD as u32,
        ],
    ),
    // Waiting.
    any(libc::SYS_epoll_create1),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_epoll_pwait2),
    any(libc::SYS_eventfd2),
    // The front end's socket, and that of the process which has opened all of it.
    any(libc::SYS_accept4),
    any(libc::SYS_sendmsg).on_descriptors_below(FIRST_NUMBER),
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
    )
    // A packet socket gets no lower number.
    .on_descriptors_below(FIRST_NUMBER),
    // The sockets, and questions about their interface.
    values(libc::SYS_ioctl, 1, IOCTLS),
    // There are no files and no sockets to make: who looks for some goes on without.
    absent(libc::SYS_openat),
    absent(libc::SYS_readlink),
    absent(libc::SYS_readlinkat),
    absent(libc::SYS_socket),
    // The process has no timers that a front end's descriptors could be mistaken for.
    absent(libc::SYS_timerfd_gettime),
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
    fn there_are_at_most_45_calls_each_in_one_place() {
        assert!(list().filter(|call| call.only != Only::Absent).count() <= 45);
        let mut numbers: Vec<_> = list().map(|call| call.number).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] != two[1]), "{numbers:?}");
    }

    #[test]
    fn a_socket_can_not_be_turned_to_another_interface() {
        for number in
            [libc::SYS_bind, libc::SYS_setsockopt, libc::SYS_sendto, libc::SYS_sendmmsg, libc::SYS_dup2]
        {
            assert!(list().all(|call| call.number != number), "{number}");
        }
        for number in [libc::SYS_sendmsg, libc::SYS_fcntl] {
            assert!(list().any(|call| (call.number, call.below) == (number, Some(FIRST_NUMBER))));
        }
    }
}
