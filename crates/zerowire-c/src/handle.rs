//! Handles and arguments, as they come from C.
//!
//! SAFETY, for all functions: a handle is NULL or came from this library and was not closed; a
//! pointer to an argument or a result is NULL or valid for its type.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use zerowire::send::{Segment, SocketError};

use crate::failure::{Failure, wrong};
use crate::guard::{guard, guard_int};

pub(crate) fn null(what: &str) -> Failure {
    Failure::new(libc::EINVAL, format!("{what} is NULL"))
}

/// # Safety
/// As the module says.
pub(crate) unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: by the module's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// As the module says, and nobody else uses the handle during the call.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: by the contract above.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// The handles of an array; none for NULL.
///
/// # Safety
/// As the module says; the array is NULL or has `count` handles.
pub(crate) unsafe fn each<'a, T>(
    array: *const *const T,
    count: libc::size_t,
    what: &str,
) -> Result<Vec<&'a T>, Failure> {
    let count = if array.is_null() { 0 } else { count };
    // SAFETY: by the contract above.
    (0..count).map(|i| unsafe { get(array.add(i).read(), what) }).collect()
}

/// # Safety
/// As the module says.
pub(crate) unsafe fn put<T>(value: T, to: *mut *mut T) {
    // SAFETY: the callers have checked for NULL; the rest is the module's contract.
    unsafe { to.write(Box::into_raw(Box::new(value))) };
}

/// Runs the body of a function that makes a handle, and writes the handle to `to`, the argument
/// `name`.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn make<T>(
    to: *mut *mut T,
    name: &str,
    body: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    guard_int(|| {
        if to.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL.
        unsafe { put(body()?, to) };
        Ok(0)
    })
}

/// # Safety
/// As the module says; the handle is not used again.
pub(crate) unsafe fn close<T>(handle: *mut T) {
    if !handle.is_null() {
        guard(|| {
            // SAFETY: made by `put`, and not closed yet.
            drop(unsafe { Box::from_raw(handle) });
            Ok(0)
        });
    }
}

/// The longest struct that C may pass, as the kernel has it for its own: a longer size was never
/// set.
const LONGEST: usize = 4096;

/// Checks the size that C gave for a struct.
pub(crate) fn size_of_c(size: usize, least: usize, name: &str, ours: usize) -> Result<(), Failure> {
    if (least..=LONGEST).contains(&size) {
        return Ok(());
    }
    let text = format!("size {size}: set it to sizeof(struct {name}), which is {ours} in this library");
    wrong(text)
}

/// Options of C: a struct of integers and pointers whose first field is its size. `None` for NULL.
///
/// Later versions append fields, for which 0 is the default. The fields that a shorter struct lacks
/// are 0. Those of a longer one that this library does not know must be 0.
///
/// # Safety
/// NULL, or valid for as many bytes as its first field says. All zeros is a value of `T`.
pub(crate) unsafe fn sized<T: Copy>(from: *const T, name: &str) -> Result<Option<T>, Failure> {
    let ours = size_of::<T>();
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the first field is the size.
    let size = unsafe { from.cast::<libc::size_t>().read() };
    size_of_c(size, size_of::<libc::size_t>(), name, ours)?;
    for at in ours..size {
        // SAFETY: within the size that the caller gave.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            let text = format!(
                "struct {name} of {size} bytes sets byte {at}, which this library does not know: its own has {ours} bytes; \
                 leave later fields at 0, or install a later library"
            );
            return Err(Failure::new(libc::E2BIG, text));
        }
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: both have this length, and a local variable overlaps nothing of C.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), read.as_mut_ptr().cast(), size.min(ours)) };
    // SAFETY: zeros or the caller's integers and pointers, by this function's contract.
    Ok(Some(unsafe { read.assume_init() }))
}

/// Writes as much of a value as `size` bytes take, and zeros behind it; the first `skip` bytes stay
/// as they are.
///
/// # Safety
/// `to` is valid for writes of `size` bytes, which is at least `skip`.
pub(crate) unsafe fn write_sized<T>(value: &T, to: *mut u8, skip: usize, size: usize) {
    let known = size.min(size_of::<T>());
    let from: *const u8 = std::ptr::from_ref(value).cast();
    // SAFETY: within both by this function's contract, and the value is not C's.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(skip), to.add(skip), known - skip);
        to.add(known).write_bytes(0, size - known);
    }
}

/// A result: a struct of C whose first field is its size, which the caller has set. Checked before
/// there is a value.
pub(crate) struct Out<T> {
    to: *mut T,
    size: usize,
}

impl<T: Copy> Out<T> {
    /// # Safety
    /// NULL, or valid for writes of as many bytes as its first field says.
    pub(crate) unsafe fn new(to: *mut T, what: &str, name: &str) -> Result<Self, Failure> {
        if to.is_null() {
            return Err(null(what));
        }
        // SAFETY: the first field is the size.
        let size = unsafe { to.cast::<libc::size_t>().read() };
        size_of_c(size, size_of::<libc::size_t>(), name, size_of::<T>())?;
        Ok(Self { to, size })
    }

    /// Writes up to the caller's size; fields that this library does not know become 0, and `size`
    /// stays.
    pub(crate) fn write(&self, value: &T) {
        // SAFETY: by the contract of `new`, whose check was for a whole first field.
        unsafe { write_sized(value, self.to.cast(), size_of::<libc::size_t>(), self.size) };
    }
}

/// Memory of C as a segment of a payload. An error when it is NULL, or longer than memory can be.
///
/// # Safety
/// Valid for reads, and unchanged, until the payload is dropped.
pub(crate) unsafe fn borrowed(data: *const c_void, length: libc::size_t) -> Result<&'static [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        let text = format!("{length} bytes at {data:p}: no such memory");
        return wrong(text);
    }
    // SAFETY: valid and unchanged as long as the slice is used by the contract above; the library
    // drops it with the payload, which it does when the loan ends. 'static stands for that time: it
    // has no name in C.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Pieces in one call. More than any system call takes; it bounds what a wrong count can do.
const MAX_PIECES: usize = 1 << 16;

/// Pieces of memory of C as the segments of a payload.
///
/// # Safety
/// `pieces` is NULL or has `count` elements, whose memory stays valid and unchanged until the
/// payload is dropped.
pub(crate) unsafe fn gathered(
    pieces: *const libc::iovec,
    count: libc::size_t,
) -> Result<Vec<Segment>, Failure> {
    if count > MAX_PIECES {
        return wrong(format!("{count} pieces: at most {MAX_PIECES} a call"));
    }
    if pieces.is_null() && count > 0 {
        return Err(null("pieces"));
    }
    let mut total = 0usize;
    let mut segments = Vec::with_capacity(count);
    for i in 0..count {
        // SAFETY: below count by this function's contract.
        let piece = unsafe { pieces.add(i).read() };
        // SAFETY: by this function's contract.
        segments.push(Segment::Static(unsafe { borrowed(piece.iov_base, piece.iov_len) }?));
        total = total.saturating_add(piece.iov_len);
    }
    if total > isize::MAX as usize {
        return wrong(format!("pieces of {total} bytes: no such memory"));
    }
    Ok(segments)
}

/// Fails unless `fd` is open.
pub(crate) fn open(fd: c_int) -> Result<(), Failure> {
    match zerowire_sys::fd::is_open(fd) {
        true => Ok(()),
        false => Err(Failure::new(libc::EBADF, format!("{fd} is no open descriptor"))),
    }
}

/// A descriptor that the caller gives away.
///
/// # Safety
/// Nobody else closes it.
pub(crate) unsafe fn given(fd: c_int) -> Result<OwnedFd, Failure> {
    open(fd)?;
    // SAFETY: open, and the caller gives it away.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Why a socket was not taken. Its descriptor is the caller's again: it stays open.
pub(crate) fn kept<E: Into<Failure>>(refused: SocketError<E>) -> Failure {
    let _ = refused.socket.into_raw_fd();
    refused.error.into()
}

/// Milliseconds; negative: no limit.
pub(crate) fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// As snprintf: writes at most size - 1 bytes and a 0, and returns the whole length.
///
/// # Safety
/// `to` is NULL or valid for `size` bytes.
pub(crate) unsafe fn print(text: &str, to: *mut c_char, size: libc::size_t) -> i32 {
    if !to.is_null() && size > 0 {
        let n = text.len().min(size - 1);
        // SAFETY: n + 1 bytes are within size by this function's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), n);
            to.add(n).write(0);
        }
    }
    i32::try_from(text.len()).unwrap_or(i32::MAX)
}
