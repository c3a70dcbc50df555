//! What the error numbers of a socket mean for a sender.

use super::super::SendError;
#[cfg(feature = "uring")]
use super::super::uring::EngineError;
use std::io;
use std::os::fd::AsFd;
use zerowire_sys::socket::get_int;

/// Whether an ENOBUFS may come from a full queue of an interface: the kernel only reports it if the
/// socket has IP_RECVERR.
pub(in crate::send) fn tells_of_full_queues(socket: impl AsFd) -> bool {
    let asks = |level, option| get_int(&socket, level, option).is_ok_and(|on| on != 0);
    asks(libc::SOL_IP, libc::IP_RECVERR) || asks(libc::SOL_IPV6, libc::IPV6_RECVERR)
}

/// Whether an error may belong to an earlier datagram, to which an ICMP answer came
/// (`icmp_err_convert`, net/ipv4/icmp.c; net/ipv6/icmp.c). The kernel reports it to one call,
/// whatever this call sends, and forgets it.
pub(crate) fn is_of_an_earlier(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
    )
}

/// The error that an errno of a socket stands for.
pub(in crate::send) fn from_errno(errno: i32) -> SendError {
    let cause = io::Error::from_raw_os_error(errno);
    match errno {
        libc::EPIPE | libc::ECONNRESET | libc::ETIMEDOUT | libc::ENOTCONN | libc::ECONNABORTED => {
            SendError::Disconnected(cause)
        }
        libc::ECONNREFUSED => SendError::NoListener,
        // Told by io_uring_enter only.
        #[cfg(feature = "uring")]
        libc::EEXIST => SendError::Uring(EngineError::WrongThread.to_string()),
        _ => SendError::System { call: "send", cause },
    }
}
