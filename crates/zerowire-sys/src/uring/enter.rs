//! `io_uring_enter`.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::syscall;

/// `IORING_ENTER_GETEVENTS`, `IORING_ENTER_EXT_ARG` (include/uapi/linux/io_uring.h).
const GETEVENTS: usize = 1;
const EXT_ARG: usize = 1 << 3;

/// No wait is longer than this, 136 years. The kernel adds the time to its clock, in nanoseconds of
/// 63 bits, and a sum beyond those is in the past (io_uring/io_uring.c, `io_cqring_wait`).
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArg {
    sigmask: u64,
    sigmask_len: u32,
    min_wait_usec: u32,
    time: u64,
}
const _: () = assert!(size_of::<WaitArg>() == 24);

/// How long to wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// At the longest; `None`: for ever.
    pub timeout: Option<Duration>,
    /// For all that is wanted, then for one (`min_wait_usec`, Linux 6.12). Zero: not so.
    pub gather: Duration,
}

/// Hands `count` entries over, runs the kernel's deferred work, and waits for `want` completions.
/// Returns how many were handed over, or the errno.
///
/// # Safety
/// What the entries in the ring name is as the pusher of each promised.
#[inline]
pub unsafe fn enter(fd: RawFd, count: u32, want: u32, patience: Patience) -> Result<usize, i32> {
    let time = patience
        .timeout
        .map(|t| t.min(LONGEST))
        .map(|t| libc::timespec { tv_sec: t.as_secs() as libc::time_t, tv_nsec: t.subsec_nanos() as _ });
    let arg = WaitArg {
        sigmask: 0,
        sigmask_len: 0,
        min_wait_usec: u32::try_from(patience.gather.as_micros()).unwrap_or(u32::MAX),
        time: time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as u64),
    };
    let (flags, at, len) = match want > 0 && (time.is_some() || arg.min_wait_usec > 0) {
        true => (GETEVENTS | EXT_ARG, &raw const arg as usize, size_of::<WaitArg>()),
        false => (GETEVENTS, 0, 0),
    };
    // SAFETY: the argument and the time live until the call returns; the caller answers for the
    // entries.
    unsafe {
        syscall::call(libc::SYS_io_uring_enter, [fd as usize, count as usize, want as usize, flags, at, len])
    }
}
