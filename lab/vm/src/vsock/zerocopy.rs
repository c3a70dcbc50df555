//! MSG_ZEROCOPY sends (Linux `Documentation/networking/msg_zerocopy.rst`; for AF_VSOCK since 6.7).
//! The kernel sends from the caller's pages, and says in the socket's error queue when it no longer
//! needs them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::PATIENCE;
use super::guest::set_option;
use super::job::Load;
use super::pattern::Pattern;

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (Linux
/// `include/uapi/linux/errqueue.h`).
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// `SOL_VSOCK` (Linux `include/linux/socket.h`) and `VSOCK_RECVERR` (Linux
/// `include/uapi/linux/vm_sockets.h`).
const SOL_VSOCK: libc::c_int = 287;
const VSOCK_RECVERR: libc::c_int = 1;

/// What the kernel said of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sends {
    /// System calls that sent something, each with a notification of its own.
    pub calls: u32,
    /// Of these, the ones whose bytes the kernel copied after all.
    pub copied: u32,
}

/// Sends a load by MSG_ZEROCOPY and waits until the kernel has given back every page.
///
/// # Errors
/// The kernel can't do this, the socket fails, or a notification does not come.
pub fn send_load(socket: &OwnedFd, load: Load) -> Result<Sends> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1_i32).context("SO_ZEROCOPY")?;
    // One buffer for everything: no byte may change before its notification.
    let buffer = Pattern::new(load.seed).bytes(0, usize::try_from(load.bytes)?);
    let mut sends = Sends::default();
    let mut sent = 0;
    while sent < buffer.len() {
        let end = buffer.len().min(sent + load.write_bytes);
        sent += send(socket, &buffer[sent..end]).with_context(|| format!("after {sent} bytes"))?;
        sends.calls += 1;
    }
    let mut done = 0;
    while done < sends.calls {
        wait_for_error(socket).with_context(|| format!("{done} of {} notifications came", sends.calls))?;
        while let Some(range) = notification(socket)? {
            ensure!(range.first == done, "notification {} follows {done}", range.first);
            let length = range.last - range.first + 1;
            done += length;
            if range.copied {
                sends.copied += length;
            }
        }
    }
    drop(buffer);
    Ok(sends)
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes outlive the call, and the caller keeps them unchanged until the
    // notification, so that the right ones are sent.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| std::io::Error::last_os_error()).context("send with MSG_ZEROCOPY")
}

/// Sends that are done, numbered from 0 on.
struct Range {
    first: u32,
    last: u32,
    copied: bool,
}

/// Notifications show as an error condition of the socket.
fn wait_for_error(socket: &OwnedFd) -> Result<()> {
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut wanted = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    ensure!(poll(&mut wanted, Some(&limit))? == 1, "no notification for {PATIENCE:?}");
    let events = wanted[0].revents();
    ensure!(events.contains(PollFlags::ERR), "instead of a notification came {events:?}");
    Ok(())
}

/// The next notification, if there is one.
fn notification(socket: &OwnedFd) -> Result<Option<Range>> {
    // Aligned as control messages must be.
    let mut control = [0_u64; 16];
    // SAFETY: all-zero is a valid msghdr: no address, no data, no control messages.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the header points to `control`, with its length, which lives long enough.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() == std::io::ErrorKind::WouldBlock {
            return Ok(None);
        }
        return Err(error).context("read the error queue");
    }
    // SAFETY: the kernel filled the control buffer and set its length in the header.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let head = head.context("a notification without a control message")?;
    if head.cmsg_level != SOL_VSOCK || head.cmsg_type != VSOCK_RECVERR {
        bail!("a control message of level {}, type {}", head.cmsg_level, head.cmsg_type);
    }
    // SAFETY: this kind of message holds a sock_extended_err; it is copied out whatever
    // its alignment.
    let error = unsafe { libc::CMSG_DATA(head).cast::<libc::sock_extended_err>().read_unaligned() };
    ensure!(
        error.ee_errno == 0 && error.ee_origin == ORIGIN_ZEROCOPY,
        "an error in place of a notification: errno {}, origin {}",
        error.ee_errno,
        error.ee_origin
    );
    Ok(Some(Range { first: error.ee_info, last: error.ee_data, copied: error.ee_code & CODE_COPIED != 0 }))
}
