//! How a confined process ends by a fault of its own.

use std::io::{Read, pipe};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerowire_confine::{ConfinePlan, confine};
use zerowire_testkit::own_process;
use zerowire_vhost::memory::{DirtyLog, Mapping, catch_lost_pages};
use zerowire_vsock::system_calls::SYSTEM_CALLS;

use crate::stage::{NOBODY, Seen, attempt_by, in_process};

#[test]
fn a_fault_ends_it_by_its_signal() {
    own_process!();
    // The process has the handler of lost pages already, as one that serves VMs has.
    catch_lost_pages();
    let address = std::ptr::without_provenance::<u8>(8);
    let seen = attempt_by(SYSTEM_CALLS, &[], || {
        // SAFETY: nothing is mapped there, so the process ends.
        Err(i32::from(unsafe { address.read_volatile() }))
    });
    assert_eq!(seen, Seen::Killed(libc::SIGSEGV));

    // Signals are on no list: so ends a panic that meets another one.
    let seen = attempt_by(SYSTEM_CALLS, &[], || std::process::abort());
    assert_eq!(seen, Seen::Killed(libc::SIGSYS));

    let file = memfd_create("empty", MemfdFlags::CLOEXEC).expect("a file");
    let beyond = Mapping::shared(file.as_fd(), 0, 4096).expect("a mapping");
    let seen = attempt_by(SYSTEM_CALLS, &[], || {
        // SAFETY: the file has no such page, so the process ends.
        Err(i32::from(unsafe { beyond.as_ptr().read_volatile() }))
    });
    assert_eq!(seen, Seen::Killed(libc::SIGBUS));
}

#[test]
fn memory_of_a_front_end_that_was_truncated_ends_nothing() {
    own_process!();
    let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&file, 8192).expect("its length");
    let log = DirtyLog::new(file.as_fd(), 0, 8192).expect("a log");
    let seen = attempt_by(SYSTEM_CALLS, &[], || {
        ftruncate(&file, 0).map_err(rustix::io::Errno::raw_os_error)?;
        log.wrote(0, 1);
        Ok(())
    });
    assert_eq!(seen, Seen::Done);
}

#[test]
fn a_panic_is_told_with_the_thread_and_the_place() {
    own_process!();
    let (mut told, error) = pipe().expect("a pipe");
    let status = in_process(|| {
        // SAFETY: standard error is nobody's.
        unsafe { libc::dup2(error.as_raw_fd(), libc::STDERR_FILENO) };
        confine(&ConfinePlan { owner: NOBODY, calls: SYSTEM_CALLS, without: &[] }).expect("it is confined");
        let thread = std::thread::Builder::new().name("worker".to_owned());
        let ended = thread.spawn(|| panic!("for a reason")).expect("a thread").join();
        i32::from(ended.is_ok())
    });
    drop(error);
    let mut text = String::new();
    told.read_to_string(&mut text).expect("text");
    assert_eq!(status, 0, "{text}");
    let place = text.strip_prefix("thread 'worker' panicked at ").expect("its first words");
    assert!(place.contains("ends.rs:") && place.ends_with(":\nfor a reason\n"), "{text}");
}
