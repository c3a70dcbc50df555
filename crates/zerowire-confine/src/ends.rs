//! How a confined process ends by a fault of its own.
//!
//! std's reports take system calls that no list allows: those of its handler of SIGSEGV, which
//! checks whether a stack is full, and the number of the thread in the message of a panic. An abort
//! ends it by SIGSYS, since it sends a signal.

use std::io::Write;

use zerowire_sys::signal::restore_default_action;

/// Has a fault end this process by SIGSEGV, and a panic write its message without such calls.
pub(crate) fn report_without_calls() {
    restore_default_action(libc::SIGSEGV);
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
        // Nobody may read it any more.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }));
}
