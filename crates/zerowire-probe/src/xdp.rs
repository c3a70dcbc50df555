//! AF_XDP: sockets, their memory, and the programs that steer frames to them
//! (Documentation/networking/af_xdp.rst). Nothing is bound to an interface, and no program is
//! attached.

use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

use super::errno;
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::socket::set_int;
use zerowire_sys::trial::{map, socket};
use zerowire_sys::xdp::program;

const USERS: &[Job] = &[Job::Net, Job::Recv, Job::Send];

/// Memory that is registered: 16 chunks.
const UMEM_BYTES: usize = 64 << 10;

pub(super) fn check(todo: &mut Todo) {
    let subject = |id, path, title| Subject { id, group: Group::Recv, jobs: USERS, path, title };
    todo.add(subject("xdp.socket", "net, recv, send: AF_XDP", "AF_XDP sockets"), || {
        translate_socket(make_socket())
    });
    todo.add(subject("xdp.program", "net, recv, send: XDP program", "XDP programs"), || {
        translate_program(program::try_load().map_err(errno::number))
    });
}

/// Where the attempt stopped.
#[derive(Clone, Copy, Debug)]
enum XdpStage {
    Socket(i32),
    Memory(i32),
    Rings(i32),
}

fn make_socket() -> Result<(), XdpStage> {
    let socket = socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|e| XdpStage::Socket(errno::number(e)))?;
    let memory = map(UMEM_BYTES, None).map_err(|e| XdpStage::Memory(errno::number(e)))?;
    let registration = XdpUmemReg {
        addr: memory.as_ptr() as u64,
        len: memory.len() as u64,
        chunk_size: 4096,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, registration).map_err(|e| XdpStage::Memory(e.raw_os_error()))?;
    for ring in
        [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
    {
        set_int(&socket, libc::SOL_XDP, ring, 16).map_err(|e| XdpStage::Rings(errno::number(e)))?;
    }
    Ok(())
}

const LOST: &str = "Frames go through taps or packet rings instead.";

fn translate_socket(made: Result<(), XdpStage>) -> Finding {
    match made {
        Ok(()) => Finding::ok(
            "64 KiB registered, four rings made",
            "Works on any interface with one copy; without one where the driver can (told when it is bound).",
        ),
        Err(XdpStage::Socket(e @ (libc::EPERM | libc::EACCES))) => {
            Finding::missing(errno::said("socket refused", e), LOST)
                .remedy("Grant CAP_NET_RAW (and CAP_NET_ADMIN with CAP_BPF to steer frames to it).")
        }
        Err(XdpStage::Socket(e)) => Finding::missing(errno::said("no AF_XDP socket", e), LOST)
            .remedy("Boot a kernel with CONFIG_XDP_SOCKETS (4.18 and newer)."),
        Err(XdpStage::Memory(e @ (libc::ENOBUFS | libc::ENOMEM | libc::EPERM))) => {
            Finding::missing(errno::said("memory can't be registered", e), LOST)
                .remedy("Raise the memlock limit or grant CAP_IPC_LOCK: see registered memory.")
        }
        Err(XdpStage::Memory(e)) => Finding::missing(errno::said("memory can't be registered", e), LOST)
            .remedy("Boot Linux 5.4 or newer."),
        Err(XdpStage::Rings(e)) => {
            Finding::missing(errno::said("rings refused", e), LOST).remedy("Boot Linux 5.4 or newer.")
        }
    }
}

fn translate_program(loaded: Result<(), i32>) -> Finding {
    let lost = "No frame can be steered to an AF_XDP socket; transmit through one still works.";
    match loaded {
        Ok(()) => Finding::ok("one was loaded, and dropped", "Frames can be steered to AF_XDP sockets."),
        Err(e @ (libc::EPERM | libc::EACCES)) => Finding::missing(errno::said("refused", e), lost)
            .remedy("Grant CAP_BPF and CAP_NET_ADMIN (before Linux 5.8: CAP_SYS_ADMIN)."),
        Err(libc::ENOSYS) => Finding::missing("no bpf system call (ENOSYS)", lost)
            .remedy("Boot a kernel with CONFIG_BPF_SYSCALL."),
        Err(e) => Finding::missing(errno::said("failed", e), lost)
            .remedy("'strace -e bpf zerowire doctor --path recv' shows the call."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn sockets_by_stage() {
        assert_eq!(translate_socket(Ok(())).outcome, CheckOutcome::Ok);
        for (stop, word) in [
            (XdpStage::Socket(libc::EPERM), "CAP_NET_RAW"),
            (XdpStage::Socket(libc::EAFNOSUPPORT), "CONFIG_XDP_SOCKETS"),
            (XdpStage::Memory(libc::ENOBUFS), "memlock"),
            (XdpStage::Memory(libc::EINVAL), "5.4"),
            (XdpStage::Rings(libc::EINVAL), "5.4"),
        ] {
            let f = translate_socket(Err(stop));
            assert_eq!(f.outcome, CheckOutcome::Missing);
            assert!(f.remedy.is_some_and(|r| r.contains(word)), "{stop:?}");
        }
    }

    #[test]
    fn programs_by_errno() {
        assert_eq!(translate_program(Ok(())).outcome, CheckOutcome::Ok);
        assert!(translate_program(Err(libc::EPERM)).remedy.is_some_and(|r| r.contains("CAP_BPF")));
        assert!(translate_program(Err(libc::ENOSYS)).remedy.is_some_and(|r| r.contains("BPF_SYSCALL")));
        assert_eq!(translate_program(Err(libc::EINVAL)).outcome, CheckOutcome::Missing);
    }
}
