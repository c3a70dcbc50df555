//! Areas and leases for C.

use std::ffi::{c_int, c_void};

use zerowire::area::{Area, AreaOptions, Lease, Pages};

use crate::arguments::{NewHandle, close, exported};
use crate::failure::{Failure, wrong};

/// A flag of zw_area_new: pages of 2 MiB from the machine's pool (/proc/sys/vm/nr_hugepages).
pub const ZW_HUGE_PAGES: u32 = 1u32;

/// Memory cut into buffers of one length. Any thread may use it.
#[derive(Debug)]
pub struct SendArea(pub(crate) Area);

/// One buffer of an area, held by nobody else. One thread uses it at a time.
#[derive(Debug)]
pub struct SendLease {
    /// None: a panic has lost it on the way to a sender.
    pub(crate) lease: Option<Lease>,
}

impl SendLease {
    fn get(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

exported! {
/// Maps memory for `buffers` buffers (1 to 2^24) of buffer_bytes (1 to 2^30) each, all zeroes.
/// flags: 0, ZW_HUGE_PAGES. -ENOMEM: no memory, or not enough huge pages.
fn zw_area_new(
    buffer_bytes: libc::size_t,
    buffers: libc::size_t,
    flags: u32,
    area: *mut *mut SendArea
) -> c_int = new_area(buffer_bytes, buffers, flags, area);

/// Gives the handle up. The memory stays as long as a lease, a sender or the kernel has a buffer of
/// it. NULL is allowed.
fn zw_area_close(area: *mut SendArea) = close(area);

/// Buffers that are free now; 0 for NULL.
fn zw_area_free(area: *const SendArea) -> libc::size_t
    = (|a: Option<&SendArea>| Ok(a.map_or(0, |a| a.0.free())))(area);

/// Takes a free buffer: 0; -EAGAIN, without words, if none is free: it never waits, and does not
/// look whether lent buffers are back (zw_sender_lease does). The buffer holds what its last owner
/// left there, and its length is buffer_bytes.
fn zw_area_lease(area: *const SendArea, lease: *mut *mut SendLease) -> c_int = lease_of(area, lease);

/// The buffer, at a multiple of 64 bytes; NULL for NULL. Yours until the lease is given to a sender
/// or released.
fn zw_lease_data(lease: *mut SendLease) -> *mut c_void = data(lease);

/// Length of the buffer in bytes; 0 for NULL.
fn zw_lease_capacity(lease: *const SendLease) -> libc::size_t
    = (|l: Option<&SendLease>| Ok(l.and_then(SendLease::get).map_or(0, Lease::capacity)))(lease);

/// Bytes of it that will be sent; 0 for NULL.
fn zw_lease_length(lease: *const SendLease) -> libc::size_t
    = (|l: Option<&SendLease>| Ok(l.and_then(SendLease::get).map_or(0, |l| l.len())))(lease);

/// Sets how many bytes will be sent. -EINVAL: more than the capacity.
fn zw_lease_set_length(lease: *mut SendLease, length: libc::size_t) -> c_int = set_length(lease, length);

/// Gives the buffer back to its area unsent. NULL is allowed. Not for a lease that a sender has
/// taken.
fn zw_lease_release(lease: *mut SendLease) = close(lease);
}

fn new_area(
    buffer_bytes: usize,
    buffers: usize,
    flags: u32,
    area: NewHandle<'_, SendArea>,
) -> Result<c_int, Failure> {
    area.put(SendArea(Area::new(area_options(buffer_bytes, buffers, flags)?)?));
    Ok(0)
}

/// An area as C asks for it.
pub(crate) fn area_options(buffer_bytes: usize, buffers: usize, flags: u32) -> Result<AreaOptions, Failure> {
    let pages = match flags {
        0 => Pages::Normal,
        ZW_HUGE_PAGES => Pages::Huge,
        n => return wrong(format!("flags {n:#x}: the only one is ZW_HUGE_PAGES, 1")),
    };
    Ok(AreaOptions::default().buffers(buffers).buffer_bytes(buffer_bytes).pages(pages))
}

fn lease_of(area: &SendArea, lease: NewHandle<'_, SendLease>) -> Result<c_int, Failure> {
    let Some(taken) = area.0.lease() else { return Ok(-libc::EAGAIN) };
    lease.put(SendLease { lease: Some(taken) });
    Ok(0)
}

fn data(lease: Option<&SendLease>) -> Result<*mut c_void, Failure> {
    let lease = lease.and_then(SendLease::get);
    // From the area's own pointer: C writes through it, also behind the present length.
    Ok(lease.map_or(std::ptr::null_mut(), |l| l.area().base().wrapping_add(l.offset()).cast()))
}

fn set_length(lease: &mut SendLease, length: usize) -> Result<c_int, Failure> {
    let lease = lease.lease.as_mut().ok_or_else(lost)?;
    if !lease.set_len(length) {
        return wrong(format!("length {length} is more than the buffer's {} bytes", lease.capacity()));
    }
    Ok(0)
}

pub(crate) fn lost() -> Failure {
    Failure::new(libc::EINVAL, "the lease was lost by an internal error: release it")
}
