//! Frees threads that are held up by writing to an eventfd which a front end has filled.
//!
//! A front end shares the open files of its eventfds (call, error, log). It can fill one and have
//! writers wait, and a thread that notifies it sleeps in write(2), also when the front end is gone.
//! Who waits too long for a thread of this process reads the eventfds that are full: the writer
//! goes on. An eventfd in its proper use is never full: it counts to 2^64 - 2.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::memory::is_eventfd;

/// Reads so often from one: where it counts as a semaphore a read lets one writer on.
const READS: usize = 64;

/// Free numbers in a row behind which no descriptor is expected where /proc is missing: the kernel
/// gives the lowest free one.
const FREE_NUMBERS: usize = 64;

/// Frees those who write to eventfds that are full.
pub(crate) fn free() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return free_by_numbers() };
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| link_is_eventfd(&entry)) else { continue };
        // The number may be another file's by now; the duplicate stays what it is.
        if let Ok(fd) = zerowire_sys::fd::duplicate(number) {
            free_writers_to(&fd);
        }
    }
}

/// The same where the kernel does not list the descriptors.
fn free_by_numbers() {
    let mut absent = 0;
    for number in 0.. {
        match zerowire_sys::fd::duplicate(number) {
            Ok(fd) => {
                absent = 0;
                free_writers_to(&fd);
            }
            Err(_) => absent += 1,
        }
        if absent == FREE_NUMBERS {
            return;
        }
    }
}

fn free_writers_to(fd: &OwnedFd) {
    if is_eventfd(fd).unwrap_or(false) && is_full(fd) {
        drain(fd);
    }
}

fn link_is_eventfd(entry: &std::fs::DirEntry) -> bool {
    std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}

fn is_full(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&now)).is_ok_and(|n| n == 0)
}

/// Does not wait, whatever mode the front end has set.
fn drain(fd: &OwnedFd) {
    let mut count = [0; 8];
    for _ in 0..READS {
        if preadv2(fd, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_writer_to_a_full_eventfd_is_freed_and_others_are_left_alone() {
        for free in [free, free_by_numbers] {
            frees(free);
        }
    }

    fn frees(free: fn()) {
        let full = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let other = eventfd(7, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("room");
        let writer = {
            let full = full.try_clone().expect("a duplicate");
            std::thread::spawn(move || rustix::io::write(&full, &1u64.to_ne_bytes()))
        };
        while !writer.is_finished() {
            free();
            std::thread::yield_now();
        }
        assert!(writer.join().expect("no panic").is_ok());
        let mut count = [0; 8];
        rustix::io::read(&other, &mut count).expect("what it held");
        assert_eq!(u64::from_ne_bytes(count), 7);
    }
}
