//! The system calls of a process that serves front ends whose sockets another process has opened,
//! whatever the device.

use zerowire_sys::allowed::{AllowedCall, absent, any, values};

/// Waiting, the front end's socket, guest memory. Each device adds `FCNTL`, `sendmsg`, ioctl with
/// `FIONBIO`, and its own.
pub const OF_A_FRONT_END: &[AllowedCall] = &[
    // Waiting.
    any(libc::SYS_epoll_create1),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_epoll_pwait2),
    any(libc::SYS_eventfd2),
    // The front end's socket, and that of the process which has opened all of it.
    any(libc::SYS_accept4),
    any(libc::SYS_recvmsg),
    // Descriptors that it sends, and memory for it.
    any(libc::SYS_statx),
    any(libc::SYS_preadv2),
    any(libc::SYS_ftruncate),
    any(libc::SYS_memfd_create),
    // There are no files and no sockets to make: who looks for some goes on without.
    absent(libc::SYS_openat),
    absent(libc::SYS_readlink),
    absent(libc::SYS_readlinkat),
    absent(libc::SYS_socket),
    // Another call shows then that guest memory was lost.
    absent(libc::SYS_pwritev2),
];

/// Copies of descriptors, their flags, and seals of memory.
pub const FCNTL: AllowedCall = values(
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
);
