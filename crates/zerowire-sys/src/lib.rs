//! The system calls that zerowire makes and rustix lacks, behind safe types.
//!
//! This crate exists for zerowire alone. It is not a stable interface: any release may change it.
//!
//! * [`allowed`]: system calls that a confined process may make.
//! * [`batch`]: reads and writes over scatter lists, a batch at a time.
//! * [`dmabuf`]: buffers that a driver has exported.
//! * [`fd`]: descriptors by their numbers.
//! * [`lock`]: a lock that outlives a panic.
//! * [`map`]: memory mappings.
//! * [`netdevice`]: what an interface says of itself by ioctl.
//! * [`netlink`]: what the kernel says about an interface and its queues.
//! * [`packet`]: packet sockets, and the memory of their rings.
//! * [`pages`]: whether pages of a mapping are still there.
//! * [`rights`]: rights that a process gives up.
//! * [`signal`]: signals, taken one at a time; faults.
//! * [`socket`]: options of sockets, their error queue, and messages over lists of memory.
//! * [`syscall`]: calls with raw arguments.
//! * [`tap`]: tap interfaces.
//! * [`trial`]: calls that are only tried, for the doctor.
//! * [`uring`]: what io_uring can do here, and what the `io-uring` crate does not name.
//! * [`userfault`]: memory whose pages come later.
//! * [`volatile`]: memory that others may change while it is read.
//! * [`xdp`]: AF_XDP: memory, rings, sockets, and the program that steers frames.
//!
//! Unsafe code belongs here, so that the other crates need little of it. A function is `unsafe`
//! where the kernel keeps an address after the call, and where it takes the caller's word for a
//! length.
//!
//! Five mechanisms are safe by their types, and what stands on them is safe code. A request stands
//! beside the type of its argument in `ioctl`, and an option beside that of its value in
//! `socket::values`. `plain` declares structures of the kernel's interface. `socket::messages`
//! makes message headers. A [`map::Mapping`] gives atomics and tables of what others change, too.
#![warn(missing_docs)]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod allowed;
pub mod batch;
pub mod dmabuf;
pub mod fd;
mod ioctl;
pub mod map;
pub mod netdevice;
pub mod netlink;
pub mod packet;
pub mod pages;
mod plain;
pub mod rights;
pub mod signal;
pub mod socket;
pub mod syscall;
pub mod tap;
pub mod trial;
pub mod uring;
pub mod userfault;
pub mod volatile;
pub mod xdp;

/// Locks a value that is whole at any moment. Nothing that is done under such a lock can be left
/// half done, so a panic elsewhere does not matter.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a call of the C library returned.
fn check(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
