//! Errors and panics at the border to C.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zerowire::recv::vsock::Error;

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// A failure on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::new(e.errno(), e.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        let known = if e.kind() == io::ErrorKind::WouldBlock { libc::EAGAIN } else { libc::EIO };
        let errno = inner.map(Error::errno).or_else(|| e.raw_os_error()).unwrap_or(known);
        Self::new(errno, e.to_string())
    }
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
