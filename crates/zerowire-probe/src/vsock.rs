//! Streams and messages between VMs and programs: shared memory, unix sockets and descriptors on
//! the host, which is all that the device needs; AF_VSOCK inside a guest.

use std::io;

use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit};

use super::errno;
use super::send::zerocopy;
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::trial::{map, socket};

/// Connections to host programs that the limit of open files is held against.
const CONNECTIONS: u64 = 1000;

/// Descriptors beside one a connection: listening sockets, front ends, queues.
const OTHER_DESCRIPTORS: u64 = 64;

pub(super) fn check(todo: &mut Todo) {
    let subject = |id, path, title| Subject { id, group: Group::Vsock, jobs: &[Job::Vsock], path, title };
    todo.add(subject("vsock.memory", "vsock: guest memory", "shared guest memory"), || {
        translate_memory(shared().map_err(errno::number))
    });
    todo.add(subject("vsock.unix", "vsock: host end", "unix sockets"), || {
        let pair = |kind| {
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .map(drop)
                .map_err(|e| e.raw_os_error())
        };
        translate_unix(pair(SocketType::STREAM), pair(SocketType::SEQPACKET))
    });
    todo.add(subject("vsock.descriptors", "vsock: connections", "connections at once"), || {
        translate_descriptors(getrlimit(Resource::Nofile).maximum)
    });
    todo.add(subject("vsock.sealed", "vsock: mapped receive", "sealed memory"), || {
        translate_sealed(sealed().map_err(errno::number))
    });
    todo.add(subject("vsock.socket", "vsock: AF_VSOCK", "AF_VSOCK"), || {
        translate_socket(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0).map(drop).map_err(errno::number))
    });
    todo.add(subject("vsock.zerocopy", "vsock: MSG_ZEROCOPY", "MSG_ZEROCOPY on vsock"), || {
        translate_zerocopy(zerocopy(libc::AF_VSOCK, libc::SOCK_STREAM).map_err(errno::number))
    });
}

/// Maps a memfd shared, as a front end hands over the guest's memory.
fn shared() -> io::Result<()> {
    let file = rustix::fs::memfd_create("zerowire-doctor", MemfdFlags::CLOEXEC)?;
    let page = rustix::param::page_size();
    rustix::fs::ftruncate(&file, page as u64)?;
    map(page, Some(file.as_fd())).map(drop)
}

fn translate_memory(mapped: Result<(), i32>) -> Finding {
    match mapped {
        Ok(()) => Finding::ok(
            "a memfd was mapped shared",
            "Guest memory can be mapped; no privilege is needed, and nothing is pinned.",
        ),
        Err(e) => Finding::missing(
            errno::said("a memfd can't be mapped", e),
            "zerowire vsock works on the guest's memory and can't run without.",
        )
        .remedy("Allow memfd_create and mmap in the seccomp filter; sysctl vm.memfd_noexec must not be 2."),
    }
}

fn translate_unix(stream: Result<(), i32>, message: Result<(), i32>) -> Finding {
    let allow = "Allow AF_UNIX sockets in the seccomp filter (systemd: RestrictAddressFamilies=AF_UNIX).";
    match (stream, message) {
        (Ok(()), Ok(())) => Finding::ok(
            "SOCK_STREAM and SOCK_SEQPACKET",
            "Host programs reach guests, and guests host programs, by streams and by messages.",
        ),
        (Ok(()), Err(e)) => Finding::degraded(
            errno::said("SOCK_STREAM; no SOCK_SEQPACKET", e),
            "Streams work. Connections for messages work between guests only.",
        )
        .remedy(allow),
        (Err(e), _) => Finding::missing(
            errno::said("none", e),
            "Front ends and host programs come by unix sockets: zerowire vsock can't run.",
        )
        .remedy(allow),
    }
}

/// `hard` None stands for no limit.
fn translate_descriptors(hard: Option<u64>) -> Finding {
    let need = CONNECTIONS + OTHER_DESCRIPTORS;
    let Some(hard) = hard else {
        return Finding::ok("no limit of open files", "Connections are limited by --max-connections alone.");
    };
    let most = hard.saturating_sub(OTHER_DESCRIPTORS);
    let found = format!("{most} to host programs, by the hard limit of {hard} open files");
    if hard >= need {
        return Finding::ok(found, "zerowire vsock raises its own limit at start.");
    }
    Finding::degraded(found, "Further ones are refused; connections between guests take no descriptor.")
        .remedy("Raise the hard limit: 'ulimit -Hn 65536' as root, or LimitNOFILE=65536 in the systemd unit.")
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
            "Host programs can receive mapped: they read what a guest sends in windows that they can't write.",
        ),
        Err(libc::EINVAL) => Finding::missing(
            "no F_SEAL_FUTURE_WRITE (EINVAL)",
            "Mapped receive can't work: host programs connect by unix sockets alone.",
        )
        .remedy("Boot Linux 5.1 or newer."),
        Err(e) => Finding::missing(
            errno::said("no sealed memfd", e),
            "Mapped receive can't work: host programs connect by unix sockets alone.",
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
            errno::said("none here", e),
            "No matter on a host: zerowire's side is in user space. Inside a guest programs can't connect.",
        )
        .remedy("In a guest: 'modprobe vmw_vsock_virtio_transport'."),
    }
}

fn translate_zerocopy(set: Result<(), i32>) -> Finding {
    match set {
        Ok(()) => Finding::ok("SO_ZEROCOPY accepted", "Programs inside a guest can send without a copy."),
        Err(e) => Finding::degraded(
            errno::said("refused", e),
            "Inside a guest a send is copied once, by the guest's kernel. No matter on a host.",
        )
        .remedy("Boot Linux 6.7 or newer in the guest."),
    }
}

#[cfg(test)]
mod tests;
