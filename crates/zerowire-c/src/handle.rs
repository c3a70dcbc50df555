//! Handles and arguments, as they come from C.
//!
//! SAFETY, for all functions: a handle is NULL or came from this library and was not closed; a pointer to an argument or a
//! result is NULL or valid for its type.

use std::ffi::c_int;
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

/// Milliseconds; negative: no limit.
pub(crate) fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
