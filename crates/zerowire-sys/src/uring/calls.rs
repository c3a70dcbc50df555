//! The system calls of io_uring: setup, enter, register.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::plain::{PlainData, plain};
use crate::syscall::{call, checked};

plain! {
    /// `struct io_sqring_offsets`.
    #[derive(Debug)]
    pub(super) struct SqOffsets {
        pub(super) head: u32,
        pub(super) tail: u32,
        mask: u32,
        entries: u32,
        pub(super) flags: u32,
        dropped: u32,
        array: u32,
        resv: u32,
        user_addr: u64,
    }

    /// `struct io_cqring_offsets`.
    #[derive(Debug)]
    pub(super) struct CqOffsets {
        pub(super) head: u32,
        pub(super) tail: u32,
        mask: u32,
        entries: u32,
        overflow: u32,
        pub(super) cqes: u32,
        flags: u32,
        resv: u32,
        user_addr: u64,
    }

    /// `struct io_uring_params`.
    pub(super) struct Params {
        pub(super) sq_entries: u32,
        pub(super) cq_entries: u32,
        flags: u32,
        sq_thread_cpu: u32,
        sq_thread_idle: u32,
        features: u32,
        wq_fd: u32,
        resv: [u32; 3],
        pub(super) sq: SqOffsets,
        pub(super) cq: CqOffsets,
    }

    /// `struct io_uring_getevents_arg`.
    struct WaitArg {
        sigmask: u64,
        sigmask_len: u32,
        min_wait_usec: u32,
        time: u64,
    }

    /// `struct io_uring_query_hdr`.
    struct QueryHeader {
        next: u64,
        data: u64,
        op: u32,
        size: u32,
        result: i32,
        resv: [u32; 3],
    }
}
const _: () = assert!(size_of::<Params>() == 120 && size_of::<WaitArg>() == 24);
const _: () = assert!(size_of::<QueryHeader>() == 40);

/// `IORING_REGISTER_QUERY` (Linux 6.18).
const REGISTER_QUERY: u32 = 35;

/// Makes a ring with these `IORING_SETUP_*` flags, whose queues are memory of the kernel's. What
/// the kernel filled in.
///
/// # Errors
/// Those of `io_uring_setup`.
pub(super) fn setup(submissions: u32, completions: u32, flags: u32) -> io::Result<(OwnedFd, Params)> {
    let mut params = Params { cq_entries: completions, flags, ..Params::default() };
    let arguments = [submissions as usize, &raw mut params as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads and fills the structure, which lives until it returns. The addresses
    // in it are 0, where nothing is mapped.
    let fd = unsafe { checked(libc::SYS_io_uring_setup, arguments) }?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok((unsafe { OwnedFd::from_raw_fd(fd as RawFd) }, params))
}

/// `IORING_ENTER_GETEVENTS`, `IORING_ENTER_EXT_ARG` (include/uapi/linux/io_uring.h).
const GETEVENTS: usize = 1;
const EXT_ARG: usize = 1 << 3;

/// No wait is longer than this, 136 years. The kernel adds the time to its clock, in nanoseconds of
/// 63 bits, and a sum beyond those is in the past (io_uring/io_uring.c, `io_cqring_wait`).
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// How long to wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// At the longest; `None`: for ever.
    pub timeout: Option<Duration>,
    /// For all that is wanted, then for one (`min_wait_usec`, Linux 6.12): while much is coming it
    /// is not worth waking up for each piece. Zero: not so.
    pub gather: Duration,
}

impl From<Option<Duration>> for Patience {
    #[inline]
    fn from(timeout: Option<Duration>) -> Self {
        Self { timeout, gather: Duration::ZERO }
    }
}

/// Hands `count` entries over, runs the kernel's deferred work, and waits for `want` completions.
/// Returns how many were handed over, or the errno. What an entry names is the promise of who
/// pushed it.
#[inline]
pub(super) fn enter(ring: BorrowedFd<'_>, count: u32, want: u32, patience: Patience) -> Result<usize, i32> {
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
    let arguments = [ring.as_raw_fd() as usize, count as usize, want as usize, flags, at, len];
    // SAFETY: the argument and the time live until the call returns. Only unsafe code pushes
    // entries that name memory, and answers for that until their completions.
    unsafe { call(libc::SYS_io_uring_enter, arguments) }
}

/// One `io_uring_register`: the kernel reads the argument, and may change it.
///
/// # Safety
/// The argument is what `op` wants with this count. What it names is valid for what the kernel does
/// with it.
pub(super) unsafe fn register<A: PlainData>(
    ring: impl AsFd,
    op: u32,
    argument: &mut A,
    count: u32,
) -> io::Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { register_by(ring.as_fd().as_raw_fd(), op, argument, count) }
}

/// Asks the kernel what it can do (`IORING_REGISTER_QUERY`, Linux 6.18): the answer to question
/// `op`, as far as the kernel knows its fields.
///
/// # Errors
/// EINVAL before Linux 6.18; that of the question.
pub(super) fn query<A: PlainData>(op: u32) -> io::Result<A> {
    let mut answer = A::zeroed();
    let (data, size) = (&raw mut answer as u64, size_of::<A>() as u32);
    let mut header = QueryHeader { data, op, size, ..QueryHeader::default() };
    // SAFETY: the kernel reads and fills the structure, and writes at most `size` bytes of the
    // answer. A query needs no ring (-1).
    unsafe { register_by(-1, REGISTER_QUERY, &mut header, 0) }?;
    match header.result {
        ..0 => Err(io::Error::from_raw_os_error(-header.result)),
        _ => Ok(answer),
    }
}

/// # Safety
/// As [`register`].
unsafe fn register_by<A>(ring: RawFd, op: u32, argument: &mut A, count: u32) -> io::Result<()> {
    let at = std::ptr::from_mut(argument) as usize;
    // SAFETY: passed on to the caller.
    unsafe { checked(libc::SYS_io_uring_register, [ring as usize, op as usize, at, count as usize, 0, 0]) }
        .map(drop)
}
