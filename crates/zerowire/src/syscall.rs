//! System calls of the paths on which each nanosecond is counted.
//!
//! A function that made a system call returns to its caller, and the processor predicts where to from the calls that it has
//! seen. Where the kernel guards its own returns against speculation (`Safe RET`,
//! Documentation/admin-guide/hw-vuln/srso.rst), addresses of the kernel are what it leaves in that predictor. The first
//! return behind a system call is then predicted into the kernel, and costs the more the deeper the call went. [`call`] knows
//! two ways, and which of them costs less here is measured once, with a byte that goes through a socket pair ([`Measured`]):
//!
//! * **plain**: as the C library makes it;
//! * **refilled**: behind the call the predictor is filled with entries of this function, which are wrong as well, but cheap.
//!
//! A loop whose system call was inlined has no return behind it, and costs what the better way does: a benchmark of bare
//! calls doesn't see the difference, a program does.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const UNKNOWN: u8 = 0;
const PLAIN: u8 = 1;
const REFILLED: u8 = 2;

static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);
static MEASURED: OnceLock<Measured> = OnceLock::new();

/// Bytes that are sent and received in one measurement, and how many of these there are of each way, in turn; the shortest
/// counts.
const BYTES: u32 = 32;
const TURNS: u32 = 12;
/// So much must be saved for the unusual way.
const WORTH_NS: u32 = 20;

/// Which way is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one that costs less here.
    #[default]
    Auto,
    /// As the C library does.
    Plain,
    /// With the return predictor filled anew.
    Refilled,
}

/// What a system call costs here that sends or receives a byte through a pair of unix sockets, ns, the return to its caller
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// As the C library makes it.
    pub plain_ns: u32,
    /// With the return predictor filled anew.
    pub refilled_ns: u32,
}

impl Measured {
    /// Where no pair of unix sockets can be had: neither way is known to be better.
    const NOTHING: Self = Self { plain_ns: 0, refilled_ns: 0 };

    /// Whether the return predictor is worth filling.
    pub fn is_refilled_better(self) -> bool {
        self.refilled_ns + WORTH_NS <= self.plain_ns
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plain_ns, refilled_ns } = self;
        match self.is_refilled_better() {
            _ if *self == Self::NOTHING => {
                f.write_str("plain: not measured, for want of a pair of unix sockets")
            }
            true => write!(f, "return predictor refilled: {refilled_ns} ns instead of {plain_ns}"),
            false => write!(f, "plain: {plain_ns} ns, with the return predictor refilled {refilled_ns}"),
        }
    }
}

/// What calls cost here; measured when it is first asked for, which takes some two milliseconds.
pub fn measured() -> Measured {
    *MEASURED.get_or_init(measure)
}

/// Says which way calls go from now on, in all threads of the process.
pub fn choose(choice: Choice) {
    let way = match choice {
        Choice::Plain => PLAIN,
        Choice::Refilled => REFILLED,
        Choice::Auto if measured().is_refilled_better() => REFILLED,
        Choice::Auto => PLAIN,
    };
    WAY.store(way, Ordering::Relaxed);
}

/// Chooses the way if that was not done yet, so that the first call of a process does not take the
/// time. Senders and receivers do it when they are made.
pub fn prepare() {
    if WAY.load(Ordering::Relaxed) == UNKNOWN {
        choose(Choice::Auto);
    }
}

/// Makes the system call `number`. What it returns, or the errno.
///
/// # Safety
/// As for the system call: the kernel takes the arguments at their word.
#[inline]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    let way = match WAY.load(Ordering::Relaxed) {
        UNKNOWN => first_way(),
        way => way,
    };
    // SAFETY: the caller's promise.
    let result = unsafe {
        match way {
            REFILLED => arch::refilled(number, arguments),
            _ => arch::plain(number, arguments),
        }
    };
    let result = match result {
        -4095..=-1 => Err(-result as i32),
        done => Ok(done as usize),
    };
    #[cfg(feature = "testing")]
    testing::note(number, &arguments, result);
    result
}

/// For tests that look at what is handed to the kernel.
#[cfg(feature = "testing")]
pub mod testing {
    use std::cell::Cell;

    /// Is told the number of a call, its arguments, and what came of it.
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

/// write(2).
///
/// # Errors
/// Those of the system call.
#[inline]
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let arguments = [fd.as_raw_fd() as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the kernel reads bytes that are borrowed until it returns.
    unsafe { checked(libc::SYS_write, arguments) }
}

/// epoll_wait(2) for at most `timeout`, for ever without one: as many events as `events` has room for take the place of what is in
/// it.
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
    let time = timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let at = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    let arguments = [epoll.as_raw_fd() as usize, events.as_mut_ptr() as usize, events.capacity(), at, 0, 0];
    // SAFETY: the kernel writes at most as many events as the list has room for, and reads the time, which lives until it
    // returns.
    match unsafe { call(libc::SYS_epoll_pwait2, arguments) } {
        Ok(count) => {
            // SAFETY: so many events were written.
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

#[cold]
fn first_way() -> u8 {
    prepare();
    WAY.load(Ordering::Relaxed)
}

fn measure() -> Measured {
    let Ok((from, to)) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
    else {
        return Measured::NOTHING;
    };
    let shortest = |one: Once| {
        let start = Instant::now();
        (0..BYTES).for_each(|_| pass(one, from.as_raw_fd() as usize, to.as_raw_fd() as usize));
        u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX) / (2 * BYTES)
    };
    let mut measured = Measured { plain_ns: u32::MAX, refilled_ns: u32::MAX };
    for _ in 0..TURNS {
        measured.plain_ns = measured.plain_ns.min(shortest(plain_once));
        measured.refilled_ns = measured.refilled_ns.min(shortest(refilled_once));
    }
    measured
}

/// The arguments of a call that sends or receives a byte without waiting.
fn one_byte(fd: usize, byte: &mut u8) -> [usize; 6] {
    [fd, std::ptr::from_mut(byte) as usize, 1, libc::MSG_DONTWAIT as usize, 0, 0]
}

/// Sends a byte and receives it.
fn pass(one: Once, from: usize, to: usize) {
    let mut byte = 1;
    one(libc::SYS_sendto, one_byte(from, &mut byte));
    one(libc::SYS_recvfrom, one_byte(to, &mut byte));
}

/// Makes a call whose arguments are those of [`one_byte`]; a function of its own, so that there is a return behind the call.
type Once = fn(libc::c_long, [usize; 6]);

#[inline(never)]
fn plain_once(number: libc::c_long, arguments: [usize; 6]) {
    // SAFETY: the byte is that of `pass`, which waits for this.
    std::hint::black_box(unsafe { arch::plain(number, arguments) });
}

#[inline(never)]
fn refilled_once(number: libc::c_long, arguments: [usize; 6]) {
    // SAFETY: as above.
    std::hint::black_box(unsafe { arch::refilled(number, arguments) });
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;

    /// # Safety
    /// As [`super::call`].
    #[inline(always)]
    pub(super) unsafe fn plain(number: libc::c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        let result;
        // SAFETY: the registers are those of the kernel's calling convention (System V ABI for x86-64, A.2); the caller
        // answers for what the call does.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }

    /// 16 calls that never return: each leaves an entry in the return predictor and eight bytes on the stack, which are taken
    /// off at the end. Each return of a function around the call uses up one; few calls lie deeper than 16.
    /// (A process with user shadow stacks must not do this; nothing that Rust builds asks for them.)
    ///
    /// # Safety
    /// As [`super::call`].
    #[inline(always)]
    pub(super) unsafe fn refilled(number: libc::c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        let result;
        // SAFETY: as above. Without `nostack` the stack may be pushed to, and it is as it was at the end.
        unsafe {
            asm!(
                "syscall",
                ".rept 16",
                "call 22f",
                "int3",
                "22:",
                ".endr",
                "add rsp, 128",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
            );
        }
        result
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    /// # Safety
    /// As [`super::call`].
    #[inline(always)]
    pub(super) unsafe fn plain(number: libc::c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's promise.
        match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
            -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) as isize),
            done => done as isize,
        }
    }

    pub(super) use plain as refilled;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways, one behind the other, through functions of several depths.
    #[test]
    fn both_ways_do_the_same() {
        fn deep(depth: usize, fd: usize, bytes: &mut [u8]) -> Result<usize, i32> {
            match depth {
                // SAFETY: the buffer is valid for its length.
                0 => unsafe { call(libc::SYS_read, [fd, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) },
                _ => std::hint::black_box(deep(depth - 1, fd, bytes)),
            }
        }
        for choice in [Choice::Plain, Choice::Refilled, Choice::Auto] {
            choose(choice);
            for depth in [0, 1, 15, 16, 17, 40] {
                let mut pipe = [0; 2];
                // SAFETY: pipe2 writes two descriptors.
                assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK) }, 0);
                let [from, to] = pipe.map(|fd| fd as usize);
                let text = b"seven bytes";
                // SAFETY: the text is valid for its length.
                let wrote = unsafe { checked(libc::SYS_write, [to, text.as_ptr() as usize, 7, 0, 0, 0]) }
                    .expect("room");
                assert_eq!(wrote, 7, "{choice:?}");
                let mut bytes = [0; 16];
                assert_eq!(deep(depth, from, &mut bytes), Ok(7), "{choice:?} at depth {depth}");
                assert_eq!(&bytes[..8], b"seven b\0");
                assert_eq!(deep(depth, from, &mut bytes), Err(libc::EAGAIN), "{choice:?} at depth {depth}");
                for fd in pipe {
                    // SAFETY: these descriptors are this test's own.
                    assert_eq!(unsafe { libc::close(fd) }, 0);
                }
                assert_eq!(deep(depth, usize::MAX, &mut bytes), Err(libc::EBADF));
            }
        }
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

    #[test]
    fn the_cheaper_way_is_taken_if_it_saves_enough() {
        let better = |plain_ns, refilled_ns| Measured { plain_ns, refilled_ns }.is_refilled_better();
        assert!(better(600, 230));
        assert!(better(250, 230));
        assert!(!better(249, 230));
        assert!(!better(200, 230));
        assert!(!Measured::NOTHING.is_refilled_better());
        assert!(Measured::NOTHING.to_string().starts_with("plain: not measured"));
        let here = measured();
        assert!(here.plain_ns > 0 && here.plain_ns < u32::MAX && here.refilled_ns < u32::MAX, "{here:?}");
        assert_eq!(here, measured(), "measured once");
        let said = here.to_string();
        assert_eq!(said.starts_with("return predictor refilled"), here.is_refilled_better(), "{said}");
    }
}
