//! The system calls that no safe crate offers, each behind a safe function.
//!
//! All other `unsafe` of this crate is in [`crate::area`], below [`crate::packet_tx::bare`], in
//! [`crate::ports::bare_xdp`] and in `tcp_rx/uring_read.rs`. Every function takes borrowed
//! descriptors and plain values, keeps no pointer after it returns, and reports the error number of
//! the call.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Turns the -1 of a system call into the error of this thread.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An interface request for the interface `name`.
///
/// Refuses names of 16 bytes and more (`IFNAMSIZ`, include/uapi/linux/if.h) and empty ones.
pub fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("interface name {name:?}: give 1 to 15 bytes"),
        ));
    }
    // SAFETY: ifreq is a C structure of integers and a union of them: all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// An interface ioctl (netdevice(7)) with `request` as its argument.
pub fn ioctl_ifreq(fd: BorrowedFd<'_>, code: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the codes used in this crate (SIOC*) read and write one ifreq, which
    // `request` borrows mutably for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, request as *mut libc::ifreq) })?;
    Ok(())
}

/// The Ethernet address that `SIOCGIFHWADDR` left in `request`.
pub fn request_mac(request: &libc::ifreq) -> [u8; 6] {
    // SAFETY: every member of the union is made of integers: any bytes are a valid value.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    std::array::from_fn(|i| address.sa_data[i] as u8)
}

/// Gives the calling thread the lowest real-time priority: it runs before all usual threads
/// (sched(7)). Needs CAP_SYS_NICE.
pub fn real_time() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one structure, which lives on this stack frame.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) })?;
    Ok(())
}

/// Moves the calling thread into a new, empty network namespace (unshare(2)). Needs CAP_SYS_ADMIN.
pub fn leave_network_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace changes, not the table of files: no descriptor that
    // another thread uses becomes invalid.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// An `AF_INET` datagram socket: the handle of the interface ioctls. It belongs to the network
/// namespace of the calling thread.
pub fn control_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// The identifier of the clock that counts the CPU time of all threads of process `pid`.
pub fn process_clock(pid: libc::pid_t) -> io::Result<libc::clockid_t> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the call writes one clockid_t, which lives on this stack frame.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(clock)
}

/// Reads a clock.
pub fn read_clock(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes one timespec to the pointer.
    check(unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so the whole structure was written.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// A set of descriptors for select(2), which knows those up to 1023.
pub struct SelectSet {
    all: libc::fd_set,
    ready: libc::fd_set,
    end: libc::c_int,
}

impl SelectSet {
    /// The set of `fds`. Refuses descriptors of `FD_SETSIZE` and more (select(2), "BUGS").
    pub fn new<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        // SAFETY: fd_set is an array of integers: all zeroes is a valid value, the empty set.
        let mut all: libc::fd_set = unsafe { zeroed() };
        let mut end = 0;
        for fd in fds.map(|fd| fd.as_raw_fd()) {
            if !(0..libc::FD_SETSIZE as libc::c_int).contains(&fd) {
                return Err(io::Error::other(format!("descriptor {fd} is above 1023: fewer connections")));
            }
            // SAFETY: the descriptor lies in the set, as checked.
            unsafe { libc::FD_SET(fd, &raw mut all) };
            end = end.max(fd + 1);
        }
        Ok(Self { all, ready: all, end })
    }

    /// Waits until one can be read, for `timeout` at most; how many can be. A signal counts as
    /// none.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let mut left = libc::timeval {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(timeout.subsec_micros()),
        };
        self.ready = self.all;
        let none = std::ptr::null_mut();
        // SAFETY: the set and the time are borrowed mutably for the call; the other sets are null.
        match check(unsafe { libc::select(self.end, &raw mut self.ready, none, none, &raw mut left) }) {
            Ok(n) => Ok(n as usize),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Whether `fd`, of the set, could be read when [`SelectSet::wait`] returned.
    pub fn is_ready(&self, fd: BorrowedFd<'_>) -> bool {
        let fd = fd.as_raw_fd();
        // SAFETY: descriptors outside the set are not looked up.
        (0..self.end).contains(&fd) && unsafe { libc::FD_ISSET(fd, &raw const self.ready) }
    }
}

/// The first version of `struct perf_event_attr` (PERF_ATTR_SIZE_VER0,
/// include/uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// A running counter of one event (perf_event_open(2)): of thread `thread` (0: the caller) or of
/// everything on CPU `cpu`. Reading it gives a u64.
pub fn perf_counter(
    kind: u32,
    config: u64,
    thread: Option<libc::pid_t>,
    cpu: Option<u32>,
) -> io::Result<OwnedFd> {
    let attr =
        PerfEventAttr { kind, size: size_of::<PerfEventAttr>() as u32, config, ..PerfEventAttr::default() };
    let thread = thread.unwrap_or(-1);
    let cpu = cpu.map_or(-1, |cpu| cpu as libc::c_int);
    // PERF_FLAG_FD_CLOEXEC.
    let flags: libc::c_ulong = 8;
    // SAFETY: the call reads the structure, which says its own length and lives until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, thread, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
