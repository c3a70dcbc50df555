//! Panics at the border to C, and the words of failures.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::Failure;

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a function of the interface.
pub(crate) fn guard(body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(n)) => return n,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "internal error: a panic in libzerowire, see standard error"),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = Some(text));
    -i64::from(failure.errno)
}

/// The same for functions whose result is an int.
pub(crate) fn guard_int(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    guard(|| body().map(i64::from)) as i32
}

/// The last error of this thread in words, valid until its next one; "" before the first.
pub(crate) fn last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ref().map_or(c"".as_ptr(), |text| text.as_ptr()))
}
