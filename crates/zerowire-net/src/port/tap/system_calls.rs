//! The system calls of a process that serves a VM on a tap which another process has opened. They
//! are those of the front end's socket, the rings, guest memory and the tap.

use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM, absent, any, values};
use zerowire_sys::tap::IOCTLS;
use zerowire_vhost::serve::{FCNTL, OF_A_FRONT_END};

/// In lists: those of any program, of any device, and its own.
pub const SYSTEM_CALLS: &[&[AllowedCall]] = &[OF_A_PROGRAM, OF_A_FRONT_END, OF_THE_DEVICE];

const OF_THE_DEVICE: &[AllowedCall] = &[
    // Frames.
    any(libc::SYS_readv),
    any(libc::SYS_writev),
    // The front end's socket and what comes by it.
    any(libc::SYS_sendmsg),
    FCNTL,
    // The tap, and questions about its interface.
    values(libc::SYS_ioctl, 1, IOCTLS),
    // What comes as the front end's socket is found to be another one when it is read.
    absent(libc::SYS_getsockopt),
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::Only;

    #[test]
    fn a_call_is_allowed_in_one_place() {
        let mut numbers: Vec<_> = SYSTEM_CALLS.iter().copied().flatten().map(|call| call.number).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }

    #[test]
    fn there_are_at_most_35_calls() {
        let list = SYSTEM_CALLS.iter().copied().flatten();
        let allowed = list.filter(|call| call.only != Only::Absent).count();
        assert!(allowed <= 35, "{allowed}");
    }

    #[test]
    fn nothing_is_opened_and_no_interface_is_changed() {
        let list = || SYSTEM_CALLS.iter().copied().flatten();
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
