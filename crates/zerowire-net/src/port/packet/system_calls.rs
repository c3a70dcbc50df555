//! The system calls of a process that serves a VM on packet sockets which another process has
//! opened. They are those of the front end's socket, the rings, guest memory and the sockets.

use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM, any, values};
use zerowire_sys::packet::IOCTLS;
use zerowire_vhost::serve::{FCNTL, OF_A_FRONT_END};

use super::handed::FIRST_NUMBER;

/// In lists: those of any program, of any device, and its own.
pub const SYSTEM_CALLS: &[&[AllowedCall]] = &[OF_A_PROGRAM, OF_A_FRONT_END, OF_THE_DEVICE, OF_A_DEBUG_BUILD];

const OF_THE_DEVICE: &[AllowedCall] = &[
    // Frames. By these a socket sends to the interface that it is bound to.
    any(libc::SYS_writev),
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
    // Unix sockets alone have numbers below that. A packet socket gets one there only if a front
    // end that has it sends it back.
    any(libc::SYS_sendmsg).on_descriptors_below(FIRST_NUMBER),
    FCNTL.on_descriptors_below(FIRST_NUMBER),
    // The sockets, and questions about their interface.
    values(libc::SYS_ioctl, 1, IOCTLS),
];

/// There std looks at the flags of each descriptor that it closes, the sockets included.
const OF_A_DEBUG_BUILD: &[AllowedCall] = match cfg!(debug_assertions) {
    true => &[values(libc::SYS_fcntl, 1, &[libc::F_GETFD as u32])],
    false => &[],
};

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_sys::allowed::Only;

    fn list() -> impl Iterator<Item = &'static AllowedCall> {
        SYSTEM_CALLS.iter().copied().flatten()
    }

    #[test]
    fn there_are_at_most_35_calls_each_in_one_place() {
        let shipped = || list().filter(|call| !OF_A_DEBUG_BUILD.contains(call));
        assert!(shipped().filter(|call| call.only != Only::Absent).count() <= 35);
        let mut numbers: Vec<_> = shipped().map(|call| call.number).collect();
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
            let calls = list().filter(|call| call.number == number && !OF_A_DEBUG_BUILD.contains(call));
            assert!(calls.map(|call| call.below).eq([Some(FIRST_NUMBER)]), "{number}");
        }
    }
}
