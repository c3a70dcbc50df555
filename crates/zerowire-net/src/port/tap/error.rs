//! Why a tap can't be had, and what to do about it.

use std::io;

use thiserror::Error;
use zerowire_sys::netdevice;

use crate::port::MAX_QUEUES;
use crate::port::packet::PacketError;

/// Why a tap can't be used. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TapError {
    /// The name can't be an interface name.
    #[error("tap {0:?}: an interface's name has {rule}", rule = netdevice::NAME_RULE)]
    Name(String),
    /// Too many queues.
    #[error("{0} queues: a tap has 1 to {MAX_QUEUES}")]
    Queues(usize),
    /// No /dev/net/tun.
    #[error("/dev/net/tun can't be opened: {0}; {hint}", hint = device_remedy(.0))]
    Device(io::Error),
    /// TUNSETIFF failed.
    #[error("tap '{name}' can't be opened: {cause}; {hint}")]
    Attach {
        /// The interface.
        name: String,
        /// What the kernel said.
        cause: io::Error,
        /// What to do.
        hint: String,
    },
    /// Another ioctl failed.
    #[error("tap '{name}': {what} failed: {cause}")]
    Setup {
        /// The interface.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl TapError {
    /// Another descriptor has the interface.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Attach { cause, .. } if cause.raw_os_error() == Some(libc::EBUSY))
    }
}

/// What to do about a /dev/net/tun that can't be opened.
fn device_remedy(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EACCES) => {
            "run as root, or let every user open it ('chmod 666 /dev/net/tun', as most systems have it)"
        }
        // The device controller of a control group.
        Some(libc::EPERM) => "allow the container the device (character device 10:200)",
        _ => {
            "load the module tun ('modprobe tun'), or give the container the device ('--device /dev/net/tun')"
        }
    }
}

/// What to do about a TUNSETIFF that failed.
pub(super) fn remedy(name: &str, multi: bool, e: &io::Error) -> String {
    let flag = if multi { " multi_queue" } else { "" };
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "run with CAP_NET_ADMIN, or make the tap first with 'ip tuntap add {name} mode tap vnet_hdr{flag} user USER'"
        ),
        Some(libc::EBUSY) => "another program holds it: stop that one or take another name".to_owned(),
        // The interface exists, and it is another one than the user wants (drivers/net/tun.c,
        // `tun_set_iff`).
        Some(libc::EINVAL) => match kind(name).as_deref() {
            Some("tap") if multi => {
                format!(
                    "it was made without multi_queue: 'ip tuntap add {name} mode tap multi_queue' makes one for queues=N, or leave queues=N out"
                )
            }
            Some("tap") => {
                "it was made with multi_queue: give queues=2 or more, or make it without".to_owned()
            }
            Some(_) => {
                "it is a tun, whose packets have no Ethernet header: give the name of a tap, or of none yet"
                    .to_owned()
            }
            None => {
                let header =
                    netdevice::socket().and_then(|socket| netdevice::hardware_kind(socket, name)).ok();
                no_tap(name, header)
            }
        },
        _ => "see 'zerowire doctor'".to_owned(),
    }
}

/// What to do where another interface has the name, whose frames have headers of this kind
/// (`ARPHRD_…`, include/uapi/linux/if_arp.h).
fn no_tap(name: &str, header: Option<u16>) -> String {
    let instead = "give the name of a tap, or of none yet, which makes one";
    match header.and_then(|kind| PacketError::of_kind(name, kind)) {
        Some(PacketError::Loopback { .. }) => format!(
            "it is a loopback interface, which can't be a port of any kind: {instead}; or make a pair of veth ('ip link add zw0 \
             type veth peer name zw1') and give one end as packet:zw0 or xdp:zw0"
        ),
        Some(_) => format!(
            "an interface of that name is there and no tap, and its frames have no Ethernet header, so that it can't be a port of \
             any kind: {instead}"
        ),
        None => format!(
            "an interface of that name is there and no tap: {instead}; for other interfaces there are --port packet:{name} and \
             xdp:{name}"
        ),
    }
}

/// `tap` or `tun`; None for all others (drivers/net/tun.c, `tun_get_drvinfo`).
fn kind(name: &str) -> Option<String> {
    let driver = netdevice::driver(netdevice::socket().ok()?, name).ok()?;
    (driver.name == "tun").then_some(driver.bus_address)
}

#[cfg(test)]
mod tests;
