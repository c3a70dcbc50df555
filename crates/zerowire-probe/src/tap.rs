//! Taps: the port of `zerowire net`.
//!
//! One temporary tap serves all checks. It is made in the current network namespace, is never set
//! up (so the stack sends nothing to it) and goes away with its descriptor.

use std::io;
use std::os::fd::OwnedFd;

use super::errno;
use super::{Finding, Group, Job, MachineFacts, Subject, Todo};
use zerowire_sys::netdevice::{driver, socket};
use zerowire_sys::tap::{self, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_VNET_HDR};

/// Name of temporary taps: the kernel fills in a number.
const TEMPORARY: &str = "zwdoc%d";

/// Length of the virtio-net header with `num_buffers` (virtio 1.3 §5.1.6), bytes.
const HEADER_LEN: usize = 12;

/// Offload sets that the probe sets one by one: name and bits (include/uapi/linux/if_tun.h). Each
/// needs TUN_F_CSUM.
const OFFLOADS: [(&str, u32); 5] =
    [("csum", 0x01), ("tso4", 0x03), ("tso6", 0x05), ("ufo", 0x11), ("uso", 0x61)];

type Attempt = Result<(), i32>;

/// What came of the attempts on a temporary tap; errno where one failed.
#[derive(Clone, Debug)]
struct Trial {
    /// Opening /dev/net/tun.
    device: Attempt,
    /// The attempt to make a tap with a virtio-net header of 12 bytes.
    made: Attempt,
    /// The same with IFF_MULTI_QUEUE.
    multi_queue: Attempt,
    /// The offload sets that were taken.
    offloads: Vec<&'static str>,
}

pub(super) fn check(todo: &mut Todo, machine: &MachineFacts) {
    let subject = |id, path, title| Subject { id, group: Group::Net, jobs: &[Job::Net], path, title };
    let device = subject("net.tun", "net: /dev/net/tun", "/dev/net/tun");
    if !todo.wants(&device) {
        return;
    }
    let t = trial();
    todo.add(device, || translate_device(t.device));
    todo.add(subject("net.tap", "net: tap", "making a tap"), || {
        translate_tap(t.device, t.made, &own_taps(machine.euid))
    });
    todo.add(subject("net.queues", "net: tap with several queues", "several queues"), || {
        translate_queues(t.made, t.multi_queue)
    });
    todo.add(subject("net.offloads", "net: tap offloads", "offloads"), || {
        translate_offloads(t.made, &t.offloads)
    });
}

fn trial() -> Trial {
    let open = || -> io::Result<OwnedFd> { Ok(tap::open()?) };
    let mut t = Trial { device: Ok(()), made: Err(0), multi_queue: Err(0), offloads: Vec::new() };
    let fd = match open() {
        Ok(fd) => fd,
        Err(e) => {
            t.device = Err(errno::number(e));
            return t;
        }
    };
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    t.made = tap::set_interface(&fd, TEMPORARY, flags)
        .and_then(|()| tap::set_header_len(&fd, HEADER_LEN))
        .map_err(errno::number);
    if t.made.is_err() {
        return t;
    }
    t.offloads = OFFLOADS
        .iter()
        .filter(|(_, bits)| tap::set_offloads(&fd, *bits).is_ok())
        .map(|(name, _)| *name)
        .collect();
    drop(fd);
    t.multi_queue = open()
        .and_then(|fd| tap::set_interface(fd, TEMPORARY, flags | IFF_MULTI_QUEUE))
        .map_err(errno::number);
    t
}

/// Taps of this namespace that `user` owns, as far as sysfs tells. They are not opened: that would
/// take frames from whoever uses them.
fn own_taps(user: u32) -> Vec<String> {
    let Ok(socket) = socket() else { return Vec::new() };
    super::nic::interfaces()
        .into_iter()
        .filter(|name| driver(&socket, name).is_ok_and(|d| d.name == "tun"))
        .filter(|name| {
            let read = |what| std::fs::read_to_string(format!("/sys/class/net/{name}/{what}"));
            let is =
                |text: io::Result<String>, number: u32| text.is_ok_and(|t| t.trim() == number.to_string());
            // A sysfs mounted in another namespace may show a namesake: that one has another index.
            let index = rustix::net::netdevice::name_to_index(&socket, name);
            index.is_ok_and(|i| is(read("ifindex"), i)) && is(read("owner"), user)
        })
        .collect()
}

fn translate_device(opened: Attempt) -> Finding {
    let Err(e) = opened else {
        return Finding::ok("opens", "The kernel has taps.");
    };
    let f = Finding::missing(
        errno::said("can't be opened", e),
        "zerowire net can't run: it has no port for a VM's frames.",
    );
    f.remedy(match e {
        libc::ENOENT => {
            "Load the module ('modprobe tun' as root); in a container pass the device: --device /dev/net/tun."
        }
        libc::ENODEV | libc::ENXIO => "Load the module ('modprobe tun' as root), or boot a kernel with CONFIG_TUN.",
        libc::EPERM => "The container's device rules refuse it: --device /dev/net/tun, or DeviceAllow=/dev/net/tun rw.",
        _ => {
            "Run as root, or give this user the device: 'chmod 0666 /dev/net/tun' as root (most distributions have it \
             so: whoever opens it still needs a tap of their own or CAP_NET_ADMIN)."
        }
    })
}

fn translate_tap(device: Attempt, made: Attempt, own: &[String]) -> Finding {
    if device.is_err() {
        return Finding::missing("not tried", "Needs /dev/net/tun: see above.");
    }
    let Err(e) = made else {
        return Finding::ok(
            "made with a 12-byte virtio-net header, and removed",
            "zerowire net makes the tap that --port names, if it is not there.",
        );
    };
    let said = errno::words(e);
    match e {
        libc::EPERM if !own.is_empty() => Finding::degraded(
            format!("not allowed to make one ({said}), but owns {}", own.join(", ")),
            "zerowire net works on a tap that is there: name it with --port.",
        )
        .remedy("To make taps, see CAP_NET_ADMIN above."),
        libc::EPERM => Finding::missing(
            format!("not allowed ({said}), and this user owns no tap here"),
            "zerowire net can't run.",
        )
        .remedy(
            "Get CAP_NET_ADMIN (see above), or have the tap made: 'ip tuntap add dev NAME mode tap user USER vnet_hdr' \
             as root.",
        ),
        libc::EINVAL => Finding::missing(
            format!("refused ({said}): no virtio-net headers on taps"),
            "zerowire net can't run: it passes the guest's headers on.",
        )
        .remedy("Boot a newer kernel (IFF_VNET_HDR and TUNSETVNETHDRSZ are in all since 2.6.35)."),
        _ => Finding::missing(format!("failed ({said})"), "zerowire net can't run.")
            .remedy("'strace -e ioctl zerowire doctor --path net' shows the call."),
    }
}

/// For the lines that need a tap, when none could be made.
fn untried() -> Finding {
    Finding::degraded("not tried", "Not known until a tap can be made; the log of zerowire net tells, too.")
}

fn translate_queues(made: Attempt, multi: Attempt) -> Finding {
    match (made, multi) {
        (Err(_), _) => untried(),
        (Ok(()), Ok(())) => {
            Finding::ok("IFF_MULTI_QUEUE accepted", "--port tap:NAME,queues=N works, up to 128 queue pairs.")
        }
        (Ok(()), Err(e)) => Finding::degraded(errno::said("refused", e), "One queue pair a device.")
            .remedy("Boot Linux 3.8 or newer."),
    }
}

fn translate_offloads(made: Attempt, taken: &[&str]) -> Finding {
    if made.is_err() {
        return untried();
    }
    let lost: Vec<_> = OFFLOADS.iter().map(|o| o.0).filter(|n| !taken.contains(n)).collect();
    if lost.is_empty() {
        return Finding::ok(
            taken.join(", "),
            "Guests can send and receive frames of 64 KiB (TSO, UFO, USO).",
        );
    }
    let has = if taken.is_empty() { "none".to_owned() } else { taken.join(", ") };
    let found = format!("{has}; not {}", lost.join(", "));
    if lost == ["uso"] {
        return Finding::degraded(
            found,
            "UDP segmentation is not offered: guests cut large UDP sends themselves.",
        )
        .remedy("Boot Linux 6.2 or newer.");
    }
    Finding::degraded(found, "What is refused is not offered to guests, which then send smaller frames.")
        .remedy("Boot a newer kernel, or one without a patched tun driver.")
}

#[cfg(test)]
mod tests;
