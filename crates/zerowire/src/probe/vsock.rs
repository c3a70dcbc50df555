//! Streams between VMs and programs: sealed shared memory on the host, AF_VSOCK inside a guest.

use std::io;

use rustix::fs::{MemfdFlags, SealFlags};

use super::errno;
use super::send::zerocopy;
use super::sys::socket;
use super::{Finding, Group, Job, Subject, Todo};

pub(super) fn check(todo: &mut Todo) {
    let subject = |id, path, title| Subject { id, group: Group::Vsock, jobs: &[Job::Vsock], path, title };
    let number = |e: io::Error| errno::number(&e);
    todo.add(subject("vsock.sealed", "vsock: mapped receive", "sealed memory"), || {
        translate_sealed(sealed().map_err(number))
    });
    todo.add(subject("vsock.socket", "vsock: AF_VSOCK", "AF_VSOCK"), || {
        translate_socket(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0).map(drop).map_err(number))
    });
    todo.add(subject("vsock.zerocopy", "vsock: MSG_ZEROCOPY", "MSG_ZEROCOPY on vsock"), || {
        translate_zerocopy(zerocopy(libc::AF_VSOCK, libc::SOCK_STREAM).map_err(number))
    });
}

/// A memfd that nobody who receives it can write or resize.
fn sealed() -> io::Result<()> {
    let file = rustix::fs::memfd_create("zerowire-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, rustix::param::page_size() as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)?;
    Ok(())
}

fn translate_sealed(made: Result<(), i32>) -> Finding {
    match made {
        Ok(()) => Finding::ok(
            "memfd with F_SEAL_FUTURE_WRITE",
            "Programs can map what a guest sends, read-only, without a copy of their own.",
        ),
        Err(libc::EINVAL) => Finding::missing(
            "no F_SEAL_FUTURE_WRITE (EINVAL)",
            "Programs receive over unix streams: one copy more.",
        )
        .remedy("Boot Linux 5.1 or newer."),
        Err(e) => Finding::missing(
            format!("no sealed memfd ({})", errno::words(e)),
            "Programs receive over unix streams: one copy more.",
        )
        .remedy("Allow memfd_create in the seccomp filter; sysctl vm.memfd_noexec must not be 2."),
    }
}

fn translate_socket(made: Result<(), i32>) -> Finding {
    match made {
        Ok(()) => Finding::ok(
            "a socket was made",
            "Programs inside a guest can connect; the host's side is served over unix sockets and needs none of this.",
        ),
        Err(e) => Finding::degraded(
            format!("none here ({})", errno::words(e)),
            "No matter on a host: zerowire's side is in user space. Inside a guest programs can't connect.",
        )
        .remedy("In a guest: 'modprobe vmw_vsock_virtio_transport'."),
    }
}

fn translate_zerocopy(set: Result<(), i32>) -> Finding {
    match set {
        Ok(()) => Finding::ok("SO_ZEROCOPY accepted", "Programs inside a guest can send without a copy."),
        Err(e) => Finding::degraded(
            format!("refused ({})", errno::words(e)),
            "Inside a guest a send is copied once, by the guest's kernel. No matter on a host.",
        )
        .remedy("Boot Linux 6.7 or newer in the guest."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn sealed_memory_by_errno() {
        assert_eq!(translate_sealed(Ok(())).outcome, Outcome::Ok);
        assert!(translate_sealed(Err(libc::EINVAL)).remedy.is_some_and(|r| r.contains("5.1")));
        assert!(translate_sealed(Err(libc::EACCES)).remedy.is_some_and(|r| r.contains("memfd_noexec")));
    }

    #[test]
    fn sockets_matter_only_in_a_guest() {
        assert_eq!(translate_socket(Ok(())).outcome, Outcome::Ok);
        let none = translate_socket(Err(libc::EAFNOSUPPORT));
        assert_eq!(none.outcome, Outcome::Degraded);
        assert!(none.found.contains("EAFNOSUPPORT"));
        assert_eq!(translate_zerocopy(Ok(())).outcome, Outcome::Ok);
        assert!(translate_zerocopy(Err(libc::EOPNOTSUPP)).remedy.is_some_and(|r| r.contains("6.7")));
    }
}
