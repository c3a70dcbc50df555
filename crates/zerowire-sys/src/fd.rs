//! Descriptors by their numbers.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{self, FdFlags};

use crate::lock;
use crate::syscall;

/// What may be open by this number, for calls that fail where nothing is. EBADF for none that a
/// descriptor can have.
fn named<'a>(number: RawFd) -> io::Result<BorrowedFd<'a>> {
    // SAFETY: the callers make a call or two by the number, and keep it no longer.
    if number < 0 { Err(io::Errno::BADF) } else { Ok(unsafe { BorrowedFd::borrow_raw(number) }) }
}

/// Whether anything is open by this number.
pub fn is_open(number: RawFd) -> bool {
    named(number).and_then(io::fcntl_getfd).is_ok()
}

/// Runs before Rust's own start, which opens /dev/null in the place of a standard descriptor that
/// is closed.
#[used]
// SAFETY: the section holds functions that are called before main. This one needs nothing that
// Rust's start makes.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
/// By their numbers.
static WAS_CLOSED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

extern "C" fn at_start() {
    for (number, was_closed) in WAS_CLOSED.iter().enumerate() {
        was_closed.store(!is_open(number as RawFd), Ordering::Relaxed);
    }
}

fn was_closed(number: usize) -> bool {
    // The linker keeps what is used.
    std::hint::black_box(&AT_START);
    WAS_CLOSED[number].load(Ordering::Relaxed)
}

/// Whether the program was started without standard input. Reading from it finds its end, and no
/// call says so.
pub fn stdin_was_closed() -> bool {
    was_closed(0)
}

/// Whether the program was started without standard output. What is written there gets lost, and no
/// call says so.
pub fn stdout_was_closed() -> bool {
    was_closed(1)
}

/// A duplicate of whatever is open by this number, closed on exec.
///
/// # Errors
/// EBADF where nothing is; EMFILE.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    io::fcntl_dupfd_cloexec(named(number)?, 0)
}

/// Numbers of open descriptors that nobody owns until [`take`]. Who takes one holds the lock.
static GIVEN_UP: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Standard input, output and error: any code may use them at any time.
pub fn is_standard(number: RawFd) -> bool {
    (0..=2).contains(&number)
}

/// Gives up a descriptor for who [takes](take) its number. Until then it stays open.
pub fn give_up(fd: OwnedFd) -> RawFd {
    let mut given = lock(&GIVEN_UP);
    let number = fd.into_raw_fd();
    given.insert(number);
    number
}

/// The descriptor of this number, which its owner has [given up](give_up) or the process was
/// started with.
///
/// All that this program opens is closed on exec. What is not came with the start, and nobody owns
/// it. It is closed on exec from now on: so each can be taken once.
///
/// # Errors
/// EBADF where nothing is open by this number. EBUSY where the descriptor has an owner: it is a
/// [standard one](is_standard), or it is closed on exec and was not given up.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    let fd = named(number)?;
    if is_standard(number) {
        return Err(io::Errno::BUSY);
    }
    let mut given = lock(&GIVEN_UP);
    if given.remove(&number) {
        // SAFETY: its owner gave it up, and only here a number leaves the set.
        return Ok(unsafe { OwnedFd::from_raw_fd(number) });
    }
    if io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC) {
        return Err(io::Errno::BUSY);
    }
    io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and no value owns it: those of this program are closed on exec. No other
    // thread is between the two calls: it would hold the lock.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether a file without a type (an anonymous inode) takes 8 bytes by write(2). Nothing is
/// written: the kernel can't read the bytes. A file that can't be written says so before. For other
/// files it tells nothing, and may wait: for room in a pipe or a socket.
pub fn takes_eight_bytes(fd: impl AsFd) -> bool {
    let arguments = [fd.as_fd().as_raw_fd() as usize, 0, 8, 0, 0, 0];
    // SAFETY: the kernel reads no memory of this process: nothing is mapped at address 0.
    let written = unsafe { syscall::call(libc::SYS_write, arguments) };
    written == Err(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn what_was_inherited_is_taken_once() {
        let (socket, _peer) = UnixStream::pair().expect("sockets");
        let own = socket.as_raw_fd();
        assert_eq!(take(own).expect_err("this program opened it"), io::Errno::BUSY);
        io::fcntl_setfd(&socket, FdFlags::empty()).expect("flags");
        let inherited = take(socket.into_raw_fd()).expect("as if it came with the start");
        assert_eq!(take(own).expect_err("it is taken"), io::Errno::BUSY);
        assert!(is_open(own) && !is_open(-1) && !is_open(i32::MAX));
        assert!(io::fcntl_getfd(&inherited).expect("flags").contains(FdFlags::CLOEXEC));
        assert_eq!(take(-1).expect_err("no number of a descriptor"), io::Errno::BADF);
    }

    #[test]
    fn what_was_given_up_is_taken_once() {
        let (socket, peer) = UnixStream::pair().expect("sockets");
        let number = give_up(socket.into());
        let taken = take(number).expect("it was given up");
        assert_eq!(taken.as_raw_fd(), number);
        assert_eq!(take(number).expect_err("it is taken"), io::Errno::BUSY);
        // One that has its number later was not given up.
        drop(taken);
        let later = io::fcntl_dupfd_cloexec(&peer, number).expect("a descriptor");
        assert_eq!(take(later.as_raw_fd()).expect_err("it has an owner"), io::Errno::BUSY);
    }

    #[test]
    fn one_of_two_threads_takes_a_descriptor() {
        for _ in 0..50 {
            let inherited = || {
                let (socket, _) = UnixStream::pair().expect("sockets");
                io::fcntl_setfd(&socket, FdFlags::empty()).expect("flags");
                socket.into_raw_fd()
            };
            let numbers: Vec<_> = std::iter::repeat_with(inherited).take(200).collect();
            let begin = Barrier::new(2);
            // Who comes late is faster, since it takes nothing, until it meets the other one.
            let takes = || {
                begin.wait();
                numbers.iter().map(|number| take(*number).ok()).collect::<Vec<_>>()
            };
            let [one, other] = std::thread::scope(|scope| {
                [(); 2].map(|()| scope.spawn(takes)).map(|thread| thread.join().expect("a thread"))
            });
            assert!(one.iter().zip(&other).all(|(one, other)| one.is_some() != other.is_some()));
        }
    }

    #[test]
    fn standard_descriptors_are_not_taken() {
        for number in 0..=2 {
            assert_eq!(take(number).expect_err("it is everybody's"), io::Errno::BUSY);
        }
    }
}
