//! System calls that rustix has no function for with raw memory.
//!
//! Where the kernel guards its own returns against speculation (`Safe RET`,
//! Documentation/admin-guide/hw-vuln/srso.rst), a call leaves addresses of the kernel in the
//! processor's return predictor. Returns of the program behind it are predicted into the kernel,
//! and cost some hundred nanoseconds. [`call`] is inlined, so a loop of calls has no return.
//! Functions that make one call and return have one. The feature `refill` makes that one cheaper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::fs::OFlags;

/// Makes the system call `number`. What it returns, or the errno.
///
/// # Safety
/// As for the system call: the kernel takes the arguments at their word.
#[inline(always)]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller's promise.
    let result = unsafe { enter(number, arguments) };
    #[cfg(feature = "testing")]
    testing::note(number, &arguments, result);
    result
}

/// The instruction and those behind it, with the registers of the kernel's convention
/// (System V ABI for x86-64, A.2).
#[cfg(target_arch = "x86_64")]
macro_rules! instruction {
    ($number:expr, $arguments:expr $(, $behind:literal)*) => {{
        let [a, b, c, d, e, f] = $arguments;
        let result: isize;
        std::arch::asm!(
            "syscall",
            $($behind,)*
            inlateout("rax") $number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
        match result {
            -4095..=-1 => Err(-result as i32),
            done => Ok(done as usize),
        }
    }};
}

/// Nothing stands behind it.
///
/// # Safety
/// As [`call`].
#[cfg(all(target_arch = "x86_64", not(feature = "refill")))]
#[inline(always)]
unsafe fn enter(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller answers for what the call does. The kernel changes no other registers.
    unsafe { instruction!(number, arguments) }
}

/// 16 calls stand behind it that never return. Each leaves an entry of the program in the return
/// predictor, and eight bytes on the stack, which are taken off at the end. It ends a process with
/// user shadow stacks, which nothing that Rust builds asks for.
///
/// # Safety
/// As [`call`].
#[cfg(all(target_arch = "x86_64", any(feature = "refill", test)))]
#[inline(always)]
unsafe fn refilled(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: as above. The assembler may push to the stack, which is as it was at the end.
    unsafe {
        instruction!(
            number,
            arguments,
            ".rept 16",
            "call 22f",
            "int3",
            "22:",
            ".endr",
            "lea rsp, [rsp + 128]"
        )
    }
}

#[cfg(all(target_arch = "x86_64", feature = "refill"))]
use refilled as enter;

/// As the C library makes it.
///
/// # Safety
/// As [`call`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller's promise.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        done => Ok(done as usize),
    }
}

/// For tests that look at what is handed to the kernel.
#[cfg(feature = "testing")]
pub mod testing {
    use std::cell::Cell;

    /// Called with the number of a call, its arguments, and its result.
    pub type Watcher = fn(libc::c_long, &[usize; 6], Result<usize, i32>);

    thread_local! {
        static WATCHER: Cell<Option<Watcher>> = const { Cell::new(None) };
    }

    /// Tells `watcher` of all calls of this thread from now on.
    pub fn watch(watcher: Watcher) {
        WATCHER.set(Some(watcher));
    }

    pub(super) fn note(number: libc::c_long, arguments: &[usize; 6], result: Result<usize, i32>) {
        if let Ok(Some(watcher)) = WATCHER.try_with(Cell::get) {
            watcher(number, arguments, result);
        }
    }
}

/// As [`call`], with the error as the standard library has it.
///
/// # Safety
/// As [`call`].
#[inline]
pub unsafe fn checked(number: libc::c_long, arguments: [usize; 6]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { call(number, arguments) }.map_err(io::Error::from_raw_os_error)
}

/// membarrier(2) with its global command: waits for all that runs under RCU in the kernel.
///
/// # Errors
/// Those of the system call: ENOSYS, EINVAL where it is not to be had.
pub fn barrier() -> io::Result<()> {
    // SAFETY: takes numbers only.
    unsafe { checked(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_GLOBAL as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// userfaultfd(2), for faults of the kernel, too.
pub(crate) fn userfaultfd(flags: OFlags) -> io::Result<OwnedFd> {
    // SAFETY: takes a number.
    let fd = unsafe { checked(libc::SYS_userfaultfd, [flags.bits() as usize, 0, 0, 0, 0, 0]) }?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// write(2).
#[inline]
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let arguments = [fd.as_raw_fd() as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the kernel reads bytes that are borrowed until it returns.
    unsafe { checked(libc::SYS_write, arguments) }
}

/// epoll_wait(2) for at most `timeout`, for ever without one: as many events as `events` has room
/// for take the place of what is in it.
///
/// # Errors
/// Those of the system call; EINTR is one.
pub fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    const _: () = assert!(size_of::<epoll::Event>() == size_of::<libc::epoll_event>());
    events.clear();
    let time = timeout.and_then(|t| Timespec::try_from(t).ok());
    let at = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    let arguments = [epoll.as_raw_fd() as usize, events.as_mut_ptr() as usize, events.capacity(), at, 0, 0];
    // SAFETY: the kernel writes at most as many events as the list has room for, and reads the
    // time, which lives until it returns.
    match unsafe { call(libc::SYS_epoll_pwait2, arguments) } {
        Ok(count) => {
            // SAFETY: the kernel has written `count` events.
            unsafe { events.set_len(count) };
            Ok(())
        }
        // Before Linux 5.11, or forbidden.
        Err(libc::ENOSYS | libc::EPERM) => {
            epoll::wait(epoll, rustix::buffer::spare_capacity(events), time.as_ref())?;
            Ok(())
        }
        Err(errno) => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::time::Instant;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_refilled_call_returns_as_any_other() {
        #[inline(never)]
        fn deep(depth: usize) -> (usize, Result<usize, i32>, Result<usize, i32>) {
            // SAFETY: takes nothing.
            let here = || unsafe { refilled(libc::SYS_gettid, [0; 6]) };
            let none = [usize::MAX, 0, 0, 0, 0, 0];
            // SAFETY: the descriptor does not exist.
            let failed = || unsafe { refilled(libc::SYS_close, none) };
            let (depth, ..) = if depth == 0 { (0, here(), failed()) } else { deep(depth - 1) };
            (depth + 1, here(), failed())
        }
        // SAFETY: takes nothing.
        let here = unsafe { call(libc::SYS_gettid, [0; 6]) };
        assert_eq!(deep(40), (41, here, Err(libc::EBADF)));
    }

    #[test]
    fn waits_end_with_an_event_or_their_time() {
        use std::os::fd::AsFd;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
        epoll::add(&epoll, &b, epoll::EventData::new_u64(7), epoll::EventFlags::IN).expect("watched");
        let mut events = Vec::with_capacity(4);
        for time in [Duration::ZERO, Duration::from_micros(200)] {
            let start = Instant::now();
            epoll_wait(epoll.as_fd(), &mut events, Some(time)).expect("nothing");
            assert!(events.is_empty() && start.elapsed() >= time);
        }
        assert_eq!(write(a.as_fd(), b"bell").expect("room"), 4);
        for timeout in [None, Some(Duration::from_secs(60)), Some(Duration::MAX)] {
            epoll_wait(epoll.as_fd(), &mut events, timeout).expect("an event");
            assert_eq!(events.iter().map(|e| e.data.u64()).collect::<Vec<_>>(), [7], "{timeout:?}");
        }
        let error = epoll_wait(a.as_fd(), &mut events, None).expect_err("no epoll");
        assert_eq!((error.raw_os_error(), events.len()), (Some(libc::EINVAL), 0));
    }
}
