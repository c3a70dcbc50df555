//! Handles and arguments, as they come from C.
//!
//! SAFETY, for all functions: a handle is NULL or came from this library and was not closed; a pointer to an argument or a
//! result is NULL or valid for its type.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use crate::guard::{Failure, guard};

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

/// # Safety
/// As the module says.
pub(crate) unsafe fn put<T>(value: T, to: *mut *mut T) {
    // SAFETY: the callers have checked for NULL; the rest is the module's contract.
    unsafe { to.write(Box::into_raw(Box::new(value))) };
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

/// Options of C, a struct of integers and pointers whose first field is its size; `None` for NULL. Later versions append
/// fields: those that this library doesn't know must be 0.
///
/// # Safety
/// NULL, or valid for as many bytes as its first field says.
pub(crate) unsafe fn sized<T: Copy>(from: *const T, name: &str) -> Result<Option<T>, Failure> {
    let ours = size_of::<T>();
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the first field is the size.
    let size = unsafe { from.cast::<libc::size_t>().read() };
    if size < ours {
        let text = format!("size {size}: set it to sizeof(struct {name}), which is {ours}");
        return Err(Failure::new(libc::EINVAL, text));
    }
    for at in ours..size.min(4096) {
        // SAFETY: within the size that the caller gave.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            return Err(Failure::new(
                libc::E2BIG,
                format!("options of {size} bytes set a field that this library ({ours} bytes) does not know"),
            ));
        }
    }
    // SAFETY: at least as many bytes, all of integers and pointers.
    Ok(Some(unsafe { from.read() }))
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
