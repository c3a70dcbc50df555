//! Pseudo terminals.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// A terminal of 24 rows: what a program writes to it can be read here. Every program that this
/// process starts meanwhile has it open.
pub fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut here, mut there) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: all pointers are NULL, as allowed, or valid for the call.
    let opened = unsafe { libc::openpty(&mut here, &mut there, null_mut(), null_mut(), &size) };
    assert_eq!(opened, 0, "a pseudo terminal: {}", std::io::Error::last_os_error());
    // SAFETY: open, and nobody else's.
    unsafe { (File::from_raw_fd(here), OwnedFd::from_raw_fd(there)) }
}
