//! What a refusal of the ring or of the registration means, and what to do.

use crate::memlock::locked_limit;
use crate::recv::{RecvError, RecvOptions};
use io_uring::{IoUring, Probe, opcode};
use std::io;
use zerowire_probe::queue::zcrx_errors::{Registration, explain};
use zerowire_sys::uring::wide::Completions;
use zerowire_sys::uring::zcrx::{FEATURE_RX_PAGE_SIZE, REG_NODEV, ZcrxRequest, abilities};

/// Why the ring can't be made.
pub(super) fn refused(e: io::Error, options: &RecvOptions, kind: Completions) -> RecvError {
    match e.raw_os_error() {
        Some(libc::EINVAL) if kind == Completions::Mixed => {
            RecvError::TooOld { what: "completions of mixed length", since: "Linux 6.18" }
        }
        Some(libc::EINVAL) => RecvError::TooOld { what: "zero-copy receive", since: "Linux 6.15" },
        Some(libc::ENOMEM) => RecvError::Memlock { completions: options.completions, limit: locked_limit() },
        _ => zerowire_sys::uring::refusal(e).into(),
    }
}

/// Why the registration failed, and what to do.
pub(super) fn explained(e: io::Error, queue: &Option<(String, u32)>, request: &ZcrxRequest) -> RecvError {
    let Some(errno) = e.raw_os_error() else { return RecvError::system("io_uring_register(ZCRX_IFQ)")(e) };
    let (name, number) = match queue {
        Some((name, queue)) => (Some(name.as_str()), *queue),
        None => (None, 0),
    };
    let mut registration = Registration::new(name, number);
    registration.area_address = request.area as u64;
    registration.area_bytes = request.area_bytes as u64;
    registration.refill_entries = request.entries;
    registration.buffer_bytes = (request.buffer_bytes != 0).then_some(request.buffer_bytes);
    registration.has_recv_zc = has_recv_zc();
    // A kernel that doesn't tell is older than the question.
    let (features, registrations) = abilities().map_or((0, 0), |a| (a.features, a.registrations));
    let refused =
        format!("queue {number} of {} can't be registered for zero-copy receive", name.unwrap_or("IF"));
    let message = match (errno, registration.buffer_bytes) {
        (libc::EINVAL, Some(bytes)) if features & FEATURE_RX_PAGE_SIZE == 0 => format!(
            "{refused}: this kernel has no rx_buf_len, {bytes} bytes were asked for; boot Linux 7.0 or newer, or ask for \
             the default length"
        ),
        (libc::EINVAL, None) if request.dmabuf.is_some() => format!(
            "{refused}: the DMA buffer is not {} bytes long on this device, or the kernel takes none (Linux 6.16 is the \
             first that does), or {}",
            request.area_bytes,
            explain(errno, &registration)
        ),
        (libc::EINVAL, None) if queue.is_none() && registrations & u64::from(REG_NODEV) != 0 => format!(
            "zero-copy receive without a device can't be registered, though this kernel can: it refuses the area ({} bytes) or \
             the refill ring ({} entries)",
            request.area_bytes, request.entries
        ),
        (libc::EOPNOTSUPP, Some(bytes)) if queue.is_none() => format!(
            "zero-copy receive without a device can't be registered: its buffers are pages; {bytes} bytes were asked for \
             (rx_buf_len), ask for the default length"
        ),
        (libc::ERANGE, Some(bytes)) => format!(
            "{refused}: the area's memory is not contiguous in pieces of {bytes} bytes; take huge pages, or the default \
             rx_buf_len"
        ),
        _ => explain(errno, &registration),
    };
    RecvError::ZeroCopy { message: format!("{message} (this is Linux {})", release()), cause: e }
}

/// Why a ring can't use the area of another one, and what to do.
pub(super) fn import_refused(e: io::Error) -> RecvError {
    let because = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "CAP_NET_ADMIN is missing: each ring that uses an area needs it, not only the first one; run it as root, or grant it \
             ('setcap cap_net_admin+ep FILE', AmbientCapabilities= of systemd)"
        }
        Some(libc::EINVAL) => {
            return RecvError::TooOld { what: "area that several rings use", since: "Linux 7.0" };
        }
        Some(libc::EBADF) => "it is no area of zero-copy receive any more; export it again",
        Some(libc::ENOMEM) => "the kernel has no memory for it; end other programs, or use fewer receivers",
        _ => return RecvError::system("io_uring_register(ZCRX_REG_IMPORT)")(e),
    };
    let message =
        format!("the area of another receiver can't be used: {because} (this is Linux {})", release());
    RecvError::ZeroCopy { message, cause: e }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// What stands for a kernel that takes no second area.
pub(super) const ABSENT: i32 = libc::EOPNOTSUPP;

/// Why an area of `bytes` could not be added, and what to do.
pub(super) fn not_added(e: &io::Error, bytes: usize) -> RecvError {
    let why: &str = match e.raw_os_error() {
        Some(ABSENT) => {
            "this kernel takes one area for one registration; boot Linux 7.3 or newer, or make another receiver, \
             which has an area of its own"
        }
        Some(libc::EINVAL) => {
            "the first area is a DMA buffer, or there are 1024 areas, the most that the kernel takes"
        }
        Some(libc::ERANGE) => {
            "its memory is not contiguous in pieces of rx_buf_len bytes; take huge pages, as for the first area"
        }
        Some(libc::EFAULT) => "the interface has gone; make a new receiver",
        Some(libc::ENOMEM) => &format!(
            "no memory, or it goes beyond RLIMIT_MEMLOCK, which is {} and counts all that this user has locked: raise it \
             (ulimit -l, or CAP_IPC_LOCK)",
            locked_limit()
        ),
        _ => &format!("the kernel answers: {e}"),
    };
    let message = format!(
        "an area of {bytes} bytes can't be added to this receiver: {why} (this is Linux {})",
        release()
    );
    let cause =
        e.raw_os_error().map_or_else(|| io::Error::other(e.to_string()), io::Error::from_raw_os_error);
    RecvError::ZeroCopy { message, cause }
}

fn has_recv_zc() -> bool {
    let Ok(ring) = IoUring::new(2) else { return true };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_err() || probe.is_supported(opcode::RecvZc::CODE)
}

#[cfg(test)]
mod tests;
