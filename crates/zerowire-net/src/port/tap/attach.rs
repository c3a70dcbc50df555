//! Has an open /dev/net/tun be a queue of a tap.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use zerowire_sys::netdevice;
use zerowire_sys::tap::{self, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN_EXCL, IFF_VNET_HDR};

use super::error::{TapError, remedy};

/// How long to wait for a busy tap, and how long between two tries.
///
/// A process gives its taps back before its parent hears of its end: nothing is busy for a starter
/// that waits for that. A process that starts when the old one is killed waits longer. It waits a
/// few ms for a tap that stays, and some 20 ms for each tap that goes with the old process. 8 taps
/// took 0.15 s, 64 taps 1.1 to 2.3 s, 256 taps 9.6 s (Linux 6.18).
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The tap's first queue, and whether this call has made the interface.
///
/// A back end that starts while another one ends finds the other's tap busy, and then none. So this
/// does not check first whether there is one: the call that makes one says so (IFF_TUN_EXCL). The
/// call that takes an existing tap makes another one where that has gone meanwhile: its number
/// tells.
pub(super) fn make_or_find(name: &str, multi: bool) -> Result<(OwnedFd, bool), TapError> {
    let start = Instant::now();
    loop {
        let busy = match attach(name, multi, IFF_TUN_EXCL) {
            Err(e) if e.is_busy() => e,
            made => return Ok((made?, true)),
        };
        if let Some(there) = index(name) {
            match attach(name, multi, 0) {
                Err(e) if e.is_busy() && start.elapsed() >= BUSY_PATIENCE => return Err(e),
                Err(e) if e.is_busy() => {}
                Err(e) => return Err(e),
                Ok(queue) if index(name) == Some(there) => return Ok((queue, false)),
                // It was made by this call, and goes with its descriptor.
                Ok(_) => {}
            }
        }
        if start.elapsed() >= BUSY_PATIENCE {
            return Err(busy);
        }
        std::thread::park_timeout(BUSY_PAUSE);
    }
}

/// The number of the interface that has this name now.
pub(super) fn index(name: &str) -> Option<u32> {
    netdevice::index(netdevice::socket().ok()?, name).ok()
}

/// A new queue of the interface, which is made where there is none.
pub(super) fn attach(name: &str, multi: bool, exclusive: libc::c_short) -> Result<OwnedFd, TapError> {
    let fd = tap::open().map_err(|e| TapError::Device(e.into()))?;
    join(&fd, name, multi, exclusive)?;
    Ok(fd)
}

/// Makes an open /dev/net/tun a queue of the interface, which is made where there is none.
pub(super) fn join(fd: &OwnedFd, name: &str, multi: bool, exclusive: libc::c_short) -> Result<(), TapError> {
    let mut flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | exclusive;
    if multi {
        flags |= IFF_MULTI_QUEUE;
    }
    tap::set_interface(fd, name, flags).map_err(|cause| {
        let hint = remedy(name, multi, &cause);
        TapError::Attach { name: name.to_owned(), cause, hint }
    })
}
