//! Calls that are only tried, to tell whether this kernel and this user may make them. Everything
//! made here is owned by the caller and is gone when it is dropped; nothing is shared with another
//! process.
//!
//! # Errors
//! Those of the system calls.

pub mod kvm;

use std::io;
use std::num::NonZero;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::map::{Mapping, READ_WRITE};
pub use crate::rights::{change_user_in_child, unshare_in_child};
use crate::uring::ring;
pub use crate::uring::zcrx::attempt as register_zcrx;
use io_uring::IoUring;
use rustix::mm::MapFlags;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

/// A socket that is closed on exec; constants of libc.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(family as _);
    let protocol = NonZero::new(protocol as u32).map(Protocol::from_raw);
    Ok(socket_with(family, SocketType::from_raw(kind as u32), SocketFlags::CLOEXEC, protocol)?)
}

/// Memory of this process's own, of whole pages: private, or the start of `file` shared.
pub fn map(len: usize, file: Option<BorrowedFd<'_>>) -> io::Result<Mapping> {
    let none = MapFlags::empty();
    Ok(match file {
        None => Mapping::private_with(len, none),
        Some(file) => Mapping::shared_with(file, 0, len, READ_WRITE, none),
    }?)
}

/// Registers the first `len` bytes of `memory` with `ring` and lets go of them again.
pub fn register_and_release(ring: &IoUring, memory: &Mapping, len: usize) -> io::Result<()> {
    ring::register_buffer(&ring.submitter(), memory, len)?;
    ring.submitter().unregister_buffers()
}

/// Registers a ring of `entries` provided buffers at `memory` and lets go of it again.
pub fn register_buffer_ring(ring: &IoUring, memory: &Mapping, entries: u16) -> io::Result<()> {
    ring::register_buffer_ring(&ring.submitter(), memory, entries, 1)?;
    ring.submitter().unregister_buf_ring(1)
}
