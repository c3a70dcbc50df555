//! What io_uring's send operations can do here, tried and not read off a version.

use io_uring::{Probe, opcode};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use super::ring::{SendRing, Threads};
use super::sqe::{Entry, Loan};

/// The send operations of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFeatures {
    /// `IORING_OP_SEND_ZC` (Linux 6.0).
    pub send_zc: bool,
    /// `IORING_OP_SENDMSG_ZC` (Linux 6.1).
    pub sendmsg_zc: bool,
    /// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2): notifications say whether the kernel copied.
    pub report_usage: bool,
    /// SENDMSG_ZC takes a vector inside a registered buffer (Linux 6.15).
    pub registered_vectors: bool,
}

/// The features, asked once a process.
///
/// # Errors
/// The errno of the first attempt: EPERM or ENOSYS where io_uring is forbidden or absent.
pub fn send_features() -> io::Result<SendFeatures> {
    static ANSWER: OnceLock<SendFeatures> = OnceLock::new();
    // A refusal is not kept: it may be one of this thread (a seccomp filter) or of this moment
    // (EMFILE).
    match ANSWER.get() {
        Some(features) => Ok(*features),
        None => probe().map(|features| *ANSWER.get_or_init(|| features)),
    }
}

fn probe() -> io::Result<SendFeatures> {
    let ring: io_uring::IoUring = io_uring::IoUring::new(2)?;
    let mut ops = Probe::new();
    let known = ring.submitter().register_probe(&mut ops).is_ok();
    drop(ring);
    let has = |code| known && ops.is_supported(code);
    let (send_zc, sendmsg_zc) = (has(opcode::SendZc::CODE), has(opcode::SendMsgZc::CODE));
    let reports = |loan| refusal(loan).is_ok_and(|errno| errno != libc::EINVAL);
    Ok(SendFeatures {
        send_zc,
        sendmsg_zc,
        report_usage: sendmsg_zc && reports(Loan::Lend { report: true }),
        registered_vectors: sendmsg_zc && reports(Loan::LendRegistered { report: true, buffer: 0 }),
    })
}

/// The errno of a SENDMSG_ZC on a unix socket, of a message that is nowhere. Flags that the kernel
/// doesn't know are refused before it looks for the message, with EINVAL (io_uring/net.c,
/// `io_send_zc_prep`).
fn refusal(loan: Loan) -> io::Result<i32> {
    let (socket, _peer) = UnixDatagram::pair()?;
    let mut ring = SendRing::new(2, 4, Threads::Any)?;
    ring.push_bare(Entry::sendmsg_of_nothing(socket.as_raw_fd(), loan, 1));
    ring.enter(1, None)?;
    let result = ring.pop().map_or(-libc::EAGAIN, |c| c.result);
    Ok(-result.min(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_are_told_apart_from_known_ones() {
        let features = send_features().expect("io_uring is needed for this test");
        assert!(features.send_zc && features.sendmsg_zc, "{features:?}: run the tests on Linux 6.1 or newer");
        // What the probe rests on: on this kernel the refusal is the message's, not the flag's.
        if features.registered_vectors {
            assert_eq!(refusal(Loan::LendRegistered { report: true, buffer: 0 }).unwrap(), libc::EFAULT);
        }
        assert_eq!(refusal(Loan::Lend { report: false }).unwrap(), libc::EFAULT);
    }
}
