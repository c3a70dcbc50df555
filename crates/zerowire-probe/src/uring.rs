//! io_uring: whether it may be used at all, and which of its later parts are there.

use io_uring::{IoUring, Probe, opcode};

use super::errno;
use super::{Finding, Group, Job, Subject, Todo};

/// What the kernel's io_uring has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    /// SINGLE_ISSUER and DEFER_TASKRUN (Linux 6.1).
    pub(super) defer_taskrun: bool,
    pub(super) send_zc: bool,
    pub(super) sendmsg_zc: bool,
    pub(super) recv_zc: bool,
    /// errno of registering a ring of provided buffers (Linux 5.19).
    pub(super) buffer_ring: Result<(), i32>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    errno: i32,
    /// `kernel.io_uring_disabled`; there since Linux 6.6.
    disabled: Option<u8>,
    seccomp: bool,
}

/// The answer of [`probe`].
pub(super) type Ring = Result<Abilities, Refusal>;

/// What lines say that could not be tried.
pub(super) const UNTRIED: &str = "not tried: io_uring can't be used";

pub(super) fn probe() -> Ring {
    abilities().map_err(|e| Refusal {
        errno: errno::number(e),
        disabled: std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
            .ok()
            .and_then(|t| t.trim().parse().ok()),
        seccomp: super::MachineFacts::detect().seccomp,
    })
}

fn abilities() -> std::io::Result<Abilities> {
    let ring: IoUring = IoUring::new(8)?;
    let mut ops = Probe::new();
    let known = ring.submitter().register_probe(&mut ops).is_ok();
    let has = |code| known && ops.is_supported(code);
    let deferred: std::io::Result<IoUring> =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2);
    let buffer_ring = zerowire_sys::trial::map(rustix::param::page_size(), None)
        .and_then(|memory| zerowire_sys::trial::register_buffer_ring(&ring, &memory, 8));
    Ok(Abilities {
        defer_taskrun: deferred.is_ok(),
        send_zc: has(opcode::SendZc::CODE),
        sendmsg_zc: has(opcode::SendMsgZc::CODE),
        recv_zc: has(opcode::RecvZc::CODE),
        buffer_ring: buffer_ring.map_err(errno::number),
    })
}

const USERS: &[Job] = &[Job::Send, Job::Recv];

pub(super) fn check(todo: &mut Todo, ring: &Ring) {
    let names = ["uring.setup", "send, recv: io_uring", "io_uring"];
    todo.add(Subject::new(Group::Shared, USERS, names), || translate_setup(ring));
    let names = ["uring.defer_taskrun", "send, recv: DEFER_TASKRUN", "deferred task work"];
    todo.add(Subject::new(Group::Shared, USERS, names), || {
        translate_defer(ring.as_ref().ok().map(|a| a.defer_taskrun))
    });
}

fn translate_setup(ring: &Ring) -> Finding {
    match ring {
        Ok(_) => Finding::ok("a ring was set up", "Batches of operations cost one system call."),
        Err(refusal) => {
            let (found, remedy) = explain(*refusal);
            Finding::degraded(
                found,
                "Plain system calls run instead: every byte arrives just the same, at one call a message; \
                 SEND_ZC and zcrx are out of reach.",
            )
            .remedy(remedy)
        }
    }
}

/// Who refuses, and what to do about it (io_uring/io_uring.c, `io_uring_allowed`).
fn explain(r: Refusal) -> (String, &'static str) {
    let said = errno::words(r.errno);
    match (r.errno, r.disabled) {
        (libc::EPERM, Some(2)) => (
            format!("refused ({said}): sysctl kernel.io_uring_disabled is 2, off for everybody"),
            "As root: 'sysctl kernel.io_uring_disabled=0'.",
        ),
        (libc::EPERM, Some(1)) => (
            format!("refused ({said}): sysctl kernel.io_uring_disabled is 1, off without privileges"),
            "As root: 'sysctl kernel.io_uring_disabled=0', or put this user's group into sysctl \
             kernel.io_uring_group.",
        ),
        (libc::EPERM | libc::EACCES, _) if r.seccomp => (
            format!("refused ({said}) by a seccomp filter"),
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the filter. Docker and Podman: a profile \
             with these three, by '--security-opt seccomp=FILE'; systemd: add @aio to SystemCallFilter=.",
        ),
        (libc::EPERM | libc::EACCES, _) => (
            format!("refused ({said})"),
            "A security module refuses it (SELinux: class io_uring; AppArmor: io_uring rules): see the audit log.",
        ),
        (libc::ENOSYS, _) if r.seccomp => (
            format!("not there ({said})"),
            "A seccomp filter hides it, or the kernel has none: allow io_uring_setup, io_uring_enter and \
             io_uring_register in the filter, or boot a kernel with CONFIG_IO_URING.",
        ),
        (libc::ENOSYS, _) => (
            format!("not there ({said})"),
            "Boot a kernel with CONFIG_IO_URING (5.1 and newer, on in all big distributions).",
        ),
        (libc::ENOMEM, _) => (
            format!("failed ({said})"),
            "Give the process more memory, or before Linux 5.12 a higher RLIMIT_MEMLOCK.",
        ),
        (libc::EMFILE | libc::ENFILE, _) => (format!("failed ({said})"), "Raise the limit of open files."),
        _ => (format!("failed ({said})"), "'strace -e io_uring_setup zerowire doctor' shows the call."),
    }
}

fn translate_defer(has: Option<bool>) -> Finding {
    let worse = "Completions interrupt the thread that waits for them: more CPU a batch.";
    match has {
        None => Finding::degraded(UNTRIED, worse).remedy("See io_uring above."),
        Some(true) => Finding::ok(
            "SINGLE_ISSUER and DEFER_TASKRUN accepted",
            "Completions are handled when the thread asks, without interrupting it.",
        ),
        Some(false) => Finding::degraded("DEFER_TASKRUN refused", worse).remedy("Boot Linux 6.1 or newer."),
    }
}

#[cfg(test)]
mod tests;
