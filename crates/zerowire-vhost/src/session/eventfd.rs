//! What descriptors of a front end must be.

use std::os::fd::AsFd;

use zerowire_vhost_user::Request;

use super::{SessionError, protocol, refused};
use crate::memory::is_eventfd;

/// A descriptor that a device's thread writes to must neither block it nor keep what is written. So
/// only an eventfd in non-blocking mode will do.
///
/// Accepted risk: the front end shares the open file and can turn blocking on again. It then holds
/// up the thread that serves its queues, until somebody waits for that thread
/// ([`crate::host::writers`]). With vsock that thread serves all VMs of its groups.
pub(super) fn check_notifier(
    request: Request,
    of: impl std::fmt::Display,
    fd: &Option<impl AsFd>,
) -> Result<(), SessionError> {
    let Some(fd) = fd else { return Ok(()) };
    check_eventfd(request, &of, fd)?;
    let failed = |e: rustix::io::Errno| refused(request, format!("{of}: its descriptor can't be used: {e}"));
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

/// Any other descriptor can be one that a process of the front end's answers for.
pub(super) fn check_eventfd(
    request: Request,
    of: impl std::fmt::Display,
    fd: &impl AsFd,
) -> Result<(), SessionError> {
    match is_eventfd(fd) {
        Ok(true) => Ok(()),
        Ok(false) => Err(protocol(request, format!("{of}: the descriptor is not an eventfd"))),
        Err(e) => Err(refused(
            request,
            format!("{of}: what its descriptor is can't be read below /proc: {e}; mount /proc for zerowire"),
        )),
    }
}
