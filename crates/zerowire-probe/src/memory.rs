//! Memory: how much may be registered, whether huge pages are there, and whether pages may come
//! later.

use std::io;
use std::os::fd::AsFd;

use io_uring::IoUring;
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, getrlimit};

use super::errno::{self, size};
use super::{Finding, Group, Job, MachineFacts, Subject, Todo};
use zerowire_sys::trial::{map, register_and_release};
use zerowire_sys::userfault;

/// How much is registered to see whether it may be.
const TRIED_BYTES: u64 = 64 << 20;

/// The answer is exact to this.
const STEP_BYTES: u64 = 64 << 10;

/// Size of the huge pages that the probe maps.
const HUGE_BYTES: usize = 2 << 20;

pub(super) fn check(todo: &mut Todo, machine: &MachineFacts, has_ring: bool) {
    let names = ["memory.registered", "net (xdp ports), send, recv: registered memory", "registered memory"];
    todo.add(Subject::new(Group::Shared, &[Job::Net, Job::Send, Job::Recv], names), || {
        if !has_ring {
            return Finding::degraded(super::uring::UNTRIED, "Areas are not registered: more CPU a send.")
                .remedy("See io_uring above.");
        }
        let limit = getrlimit(Resource::Memlock).current;
        let (bytes, error) = largest().unwrap_or_else(|e| (0, errno::number(e)));
        translate(bytes, error, limit, machine.has("CAP_IPC_LOCK"))
    });
    let names = ["memory.huge_pages", "net, recv: huge pages", "huge pages"];
    todo.add(Subject::new(Group::Shared, &[Job::Net, Job::Recv], names), || {
        translate_huge(map_huge().map_err(errno::number), &free_huge())
    });
    let names = ["memory.userfaultfd", "net: memory that comes later", "post-copy"];
    todo.add(Subject::new(Group::Shared, &[Job::Net], names), || {
        translate_later(userfault::try_open().map_err(errno::number))
    });
}

/// The most bytes, up to [`TRIED_BYTES`], that can be registered, and the error past them (0:
/// none).
fn largest() -> io::Result<(u64, i32)> {
    let ring: IoUring = IoUring::new(2)?;
    let memory = map(TRIED_BYTES as usize, None)?;
    let attempt = |bytes: u64| register_and_release(&ring, &memory, bytes as usize);
    let Err(e) = attempt(TRIED_BYTES) else { return Ok((TRIED_BYTES, 0)) };
    // `low` steps can be registered, `high` can't.
    let (mut low, mut high) = (0, TRIED_BYTES / STEP_BYTES);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if attempt(middle * STEP_BYTES).is_ok() {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((low * STEP_BYTES, errno::number(e)))
}

const UNREGISTERED: &str = "An xdp port refuses a larger guest, or registers a part of it (pin=partial). Areas past that are \
     sent from unregistered, at more CPU, since the kernel looks up their pages for each operation.";

/// `limit` None stands for no limit.
fn translate(bytes: u64, error: i32, limit: Option<u64>, has_ipc_lock: bool) -> Finding {
    let limit_text = limit.map_or("unlimited".to_owned(), size);
    if bytes >= TRIED_BYTES {
        let why = match (limit, has_ipc_lock) {
            (_, true) => {
                format!("; the memlock limit ({limit_text}) does not apply with CAP_IPC_LOCK")
            }
            (None, false) => "; the memlock limit is unlimited".to_owned(),
            (Some(_), false) => format!("; memlock limit {limit_text}"),
        };
        let upto = match (limit, has_ipc_lock) {
            (Some(_), false) => {
                format!("Guests on xdp ports and areas up to {limit_text} in all are registered.")
            }
            _ => "Guests on xdp ports and areas of any size are registered.".to_owned(),
        };
        return Finding::ok(format!("{} registered{why}", size(TRIED_BYTES)), upto);
    }
    let found = format!(
        "{} of {} could be registered ({}); memlock limit {limit_text}",
        size(bytes),
        size(TRIED_BYTES),
        errno::words(error)
    );
    let f = Finding::degraded(found, UNREGISTERED);
    match error {
        libc::ENOMEM | libc::EPERM | libc::EAGAIN => {
            let grant = if has_ipc_lock {
                "CAP_IPC_LOCK counts only in the machine's first user namespace, not in this one."
            } else {
                "Grant CAP_IPC_LOCK ('sudo setcap cap_net_admin,cap_ipc_lock+ep PROGRAM'; container: --cap-add \
                 IPC_LOCK)."
            };
            f.remedy(format!(
                "{grant} Or raise the memlock limit above the guest's memory: LimitMEMLOCK=infinity in the systemd unit, \
                 'ulimit -l unlimited' as root, --ulimit memlock=-1 for a container. It counts all of the user's \
                 processes together."
            ))
        }
        _ => f.remedy("'strace -e io_uring_register zerowire doctor --path net' shows the call."),
    }
}

/// Reserves one huge page; it is never touched.
fn map_huge() -> io::Result<()> {
    let file = rustix::fs::memfd_create(
        "zerowire-doctor",
        MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
    )?;
    rustix::fs::ftruncate(&file, HUGE_BYTES as u64)?;
    map(HUGE_BYTES, Some(file.as_fd())).map(drop)
}

/// Free and all huge pages of 2 MiB, as text.
fn free_huge() -> String {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"))
            .map_or("?".to_owned(), |t| t.trim().to_owned())
    };
    format!("{} of {} free", read("free_hugepages"), read("nr_hugepages"))
}

fn translate_huge(mapped: Result<(), i32>, free: &str) -> Finding {
    let worse = "Guest memory lies in 4 KiB pages: registering it takes longer, and the kernel keeps more bookkeeping. \
                 All paths work.";
    let remedy = "As root: 'sysctl vm.nr_hugepages=N' (N × 2 MiB, before memory is fragmented), then hugetlb=on in \
                  QEMU's memory-backend-memfd.";
    match mapped {
        Ok(()) => Finding::ok(format!("2 MiB pages: {free}"), "Guest memory can lie in 2 MiB pages."),
        Err(libc::ENOMEM) => Finding::degraded(format!("2 MiB pages: {free}"), worse).remedy(remedy),
        Err(libc::EINVAL | libc::ENODEV | libc::ENOSYS) => {
            Finding::degraded("no 2 MiB pages in this kernel", worse)
                .remedy("Boot a kernel with CONFIG_HUGETLBFS.")
        }
        Err(e) => Finding::degraded(errno::said("2 MiB pages refused", e), worse).remedy(remedy),
    }
}

fn translate_later(opened: Result<(), i32>) -> Finding {
    let worse = "Post-copy is not offered: QEMU refuses to switch it on. Other migrations work.";
    match opened {
        Ok(()) => Finding::ok(
            "a userfaultfd can be opened",
            "A guest can go on at its new place before its memory has come (post-copy).",
        ),
        Err(libc::ENOSYS) => Finding::degraded("no userfaultfd in this kernel", worse)
            .remedy("Boot a kernel with CONFIG_USERFAULTFD."),
        Err(e) => Finding::degraded(errno::said("userfaultfd refused", e), worse).remedy(
            "Grant CAP_SYS_PTRACE, or the right to open /dev/userfaultfd. Or, as root, 'sysctl \
             vm.unprivileged_userfaultfd=1', which grants it to everybody.",
        ),
    }
}

#[cfg(test)]
mod tests;
