//! AF_PACKET with a ring shared with the kernel (Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::AsFd;

use super::errno;
use super::sys::{set_option, socket};
use super::{Finding, Group, Job, Subject, Todo};

/// Socket options of include/uapi/linux/if_packet.h.
const PACKET_VERSION: i32 = 10;
const PACKET_TX_RING: i32 = 13;
const TPACKET_V3: u32 = 2;

const BLOCK_BYTES: u32 = 64 << 10;
const FRAME_BYTES: u32 = 2048;

pub(super) fn check(todo: &mut Todo) {
    let subject = Subject {
        id: "send.packet_ring",
        group: Group::Send,
        jobs: &[Job::Send],
        path: "send: AF_PACKET TX_RING",
        title: "packet ring",
    };
    todo.add(subject, || translate(make_ring()));
}

/// Where the attempt stopped.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Socket(i32),
    Ring(i32),
}

/// Makes a transmit ring on a socket bound to no interface and no protocol, so that no frame passes it.
fn make_ring() -> Result<(), Stop> {
    let socket = socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|e| Stop::Socket(errno::number(&e)))?;
    let ring = || -> io::Result<()> {
        set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_VERSION, &[TPACKET_V3])?;
        // struct tpacket_req3: block size, blocks, frame size, frames, and three fields that transmit leaves zero.
        let request = [BLOCK_BYTES, 1, FRAME_BYTES, BLOCK_BYTES / FRAME_BYTES, 0, 0, 0];
        set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_TX_RING, &request)
    };
    ring().map_err(|e| Stop::Ring(errno::number(&e)))
}

fn translate(made: Result<(), Stop>) -> Finding {
    let lost = "Raw frames can't be sent on an interface; taps are not touched by this.";
    match made {
        Ok(()) => Finding::ok(
            "TPACKET_V3 transmit ring of 64 KiB made",
            "Raw frames built in the ring leave without a copy through most NICs (a veth copies).",
        ),
        Err(Stop::Socket(e @ (libc::EPERM | libc::EACCES))) => Finding::missing(
            format!("socket refused ({})", errno::words(e)),
            lost,
        )
        .remedy(
            "Grant CAP_NET_RAW: root, 'setcap cap_net_raw+ep PROGRAM', or --cap-add NET_RAW for a container.",
        ),
        Err(Stop::Socket(e)) => Finding::missing(format!("no AF_PACKET socket ({})", errno::words(e)), lost)
            .remedy("Load the module ('modprobe af_packet'), or boot a kernel with CONFIG_PACKET."),
        Err(Stop::Ring(e @ libc::ENOMEM)) => Finding::degraded(
            format!("no memory for a ring ({})", errno::words(e)),
            "Each frame is copied once.",
        )
        .remedy("Free memory, or raise the container's memory limit."),
        Err(Stop::Ring(e)) => {
            Finding::degraded(format!("ring refused ({})", errno::words(e)), "Each frame is copied once.")
                .remedy("Boot Linux 4.11 or newer (transmit rings of version 3).")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn refusals_by_stage() {
        assert_eq!(translate(Ok(())).outcome, Outcome::Ok);
        let user = translate(Err(Stop::Socket(libc::EPERM)));
        assert_eq!(user.outcome, Outcome::Missing);
        assert!(user.remedy.is_some_and(|r| r.contains("CAP_NET_RAW")));
        let absent = translate(Err(Stop::Socket(libc::EAFNOSUPPORT)));
        assert!(absent.remedy.is_some_and(|r| r.contains("af_packet")));
        assert_eq!(translate(Err(Stop::Ring(libc::ENOMEM))).outcome, Outcome::Degraded);
        assert!(translate(Err(Stop::Ring(libc::EINVAL))).remedy.is_some_and(|r| r.contains("4.11")));
    }
}
