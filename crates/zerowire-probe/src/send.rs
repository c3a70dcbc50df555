//! Sending without copying: MSG_ZEROCOPY and io_uring SEND_ZC.

use std::io;

use super::errno::{self, size};
use super::uring::{Ring, UNTRIED};
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::socket::set_int;
use zerowire_sys::trial::socket;

/// What one outstanding notification is charged to a socket's optmem budget, bytes: SKB_TRUESIZE(0)
/// on 64-bit machines (net/core/sock.c, `sock_omalloc`).
const NOTIFICATION_BYTES: u64 = 576;

/// Fewer outstanding notifications than this hold a fast sender up.
const FEW_NOTIFICATIONS: u64 = 64;

pub(super) fn check(todo: &mut Todo, ring: &Ring) {
    let subject = |id, path, title| Subject { id, group: Group::Send, jobs: &[Job::Send], path, title };
    todo.add(subject("send.zerocopy", "send: MSG_ZEROCOPY", "MSG_ZEROCOPY"), || {
        let attempt = |kind| zerocopy(libc::AF_INET, kind).map_err(errno::number);
        let optmem = std::fs::read_to_string("/proc/sys/net/core/optmem_max").ok();
        translate_zerocopy(
            attempt(libc::SOCK_STREAM),
            attempt(libc::SOCK_DGRAM),
            optmem.and_then(|t| t.trim().parse().ok()),
        )
    });
    todo.add(subject("send.uring", "send: io_uring SEND_ZC", "SEND_ZC"), || {
        translate_ops(ring.as_ref().ok().map(|a| (a.send_zc, a.sendmsg_zc)))
    });
}

/// Sets SO_ZEROCOPY on an unconnected socket.
pub(super) fn zerocopy(family: i32, kind: i32) -> io::Result<()> {
    let socket = socket(family, kind, 0)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

fn translate_zerocopy(tcp: Result<(), i32>, udp: Result<(), i32>, optmem: Option<u64>) -> Finding {
    let copies = "Sends are copied once, by the kernel.";
    let room = optmem.map(|bytes| (bytes, bytes / NOTIFICATION_BYTES));
    let budget = room.map_or(String::new(), |(bytes, n)| {
        format!("; net.core.optmem_max {}, room for {n} sends in flight a socket", size(bytes))
    });
    match (tcp, udp) {
        (Ok(()), Ok(())) => match room {
            Some((_, n)) if n < FEW_NOTIFICATIONS => Finding::degraded(
                format!("TCP, UDP{budget}"),
                "Past that many sends in flight the kernel says ENOBUFS, and the sender must wait.",
            )
            .remedy("As root: 'sysctl net.core.optmem_max=131072'."),
            _ => Finding::ok(
                format!("TCP, UDP{budget}"),
                "Large sends that leave through a NIC are not copied; to this machine itself the kernel copies.",
            ),
        },
        (Ok(()), Err(e)) => Finding::degraded(
            format!("TCP; UDP refused ({}){budget}", errno::words(e)),
            "UDP sends are copied once, by the kernel.",
        )
        .remedy("Boot Linux 5.0 or newer."),
        (Err(e), Ok(())) => Finding::degraded(
            format!("UDP; TCP refused ({}){budget}", errno::words(e)),
            "TCP sends are copied.",
        )
        .remedy("Boot Linux 4.14 or newer."),
        (Err(e), Err(_)) => {
            Finding::missing(errno::said("refused", e), copies).remedy("Boot Linux 5.0 or newer.")
        }
    }
}

fn translate_ops(has: Option<(bool, bool)>) -> Finding {
    let lost = "MSG_ZEROCOPY sends without a copy instead, at more CPU a send.";
    match has {
        None => Finding::missing(UNTRIED, lost).remedy("See io_uring above."),
        Some((true, true)) => Finding::ok(
            "SEND_ZC, SENDMSG_ZC",
            "Sends from registered memory cost the least CPU, and notifications come with completions.",
        ),
        Some((true, false)) => {
            Finding::degraded("SEND_ZC; no SENDMSG_ZC", "Scatter lists are sent by MSG_ZEROCOPY.")
                .remedy("Boot Linux 6.1 or newer.")
        }
        Some((false, _)) => Finding::missing("no SEND_ZC", lost).remedy("Boot Linux 6.1 or newer."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn zerocopy_by_protocol() {
        let no = Err(libc::EOPNOTSUPP);
        let all = translate_zerocopy(Ok(()), Ok(()), Some(131_072));
        assert_eq!(all.outcome, CheckOutcome::Ok);
        assert!(all.found.contains("128 KiB, room for 227"), "{}", all.found);
        assert_eq!(translate_zerocopy(Ok(()), Ok(()), None).outcome, CheckOutcome::Ok);
        let tight = translate_zerocopy(Ok(()), Ok(()), Some(20_480));
        assert_eq!(tight.outcome, CheckOutcome::Degraded);
        assert!(tight.remedy.is_some_and(|r| r.contains("optmem_max")));
        assert!(translate_zerocopy(Ok(()), no, None).remedy.is_some_and(|r| r.contains("5.0")));
        assert_eq!(translate_zerocopy(no, Ok(()), None).outcome, CheckOutcome::Degraded);
        assert_eq!(translate_zerocopy(no, no, None).outcome, CheckOutcome::Missing);
    }

    #[test]
    fn send_zc_by_operation() {
        assert_eq!(translate_ops(Some((true, true))).outcome, CheckOutcome::Ok);
        assert_eq!(translate_ops(Some((true, false))).outcome, CheckOutcome::Degraded);
        assert_eq!(translate_ops(Some((false, false))).outcome, CheckOutcome::Missing);
        assert_eq!(translate_ops(None).found, UNTRIED);
    }
}
