//! Panics at the border to C, and the words of failures.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::Failure;

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// What a function of the interface returns.
pub(crate) trait Answer {
    /// After a failure.
    fn failed(errno: c_int) -> Self;
}

impl Answer for c_int {
    fn failed(errno: c_int) -> Self {
        -errno
    }
}

impl Answer for libc::ssize_t {
    fn failed(errno: c_int) -> Self {
        -(errno as Self)
    }
}

/// Those that tell of no failure.
macro_rules! silent {
    ($($answer:ty: $value:expr),*) => { $(
        impl Answer for $answer {
            fn failed(_: c_int) -> Self {
                $value
            }
        }
    )* };
}
silent!((): (), u32: 0, u64: 0, usize: 0, *const c_char: std::ptr::null(), *mut c_void: std::ptr::null_mut());

/// What a function of the interface returns for a `T`.
pub(crate) trait AnswerFor<T>: Answer {
    fn of(value: T) -> Self;
}

impl<A: Answer> AnswerFor<A> for A {
    fn of(value: A) -> Self {
        value
    }
}

impl AnswerFor<()> for c_int {
    fn of((): ()) -> Self {
        0
    }
}

impl AnswerFor<bool> for c_int {
    fn of(value: bool) -> Self {
        value.into()
    }
}

impl AnswerFor<usize> for c_int {
    fn of(value: usize) -> Self {
        Self::try_from(value).unwrap_or(Self::MAX)
    }
}

impl AnswerFor<usize> for libc::ssize_t {
    fn of(value: usize) -> Self {
        value as Self
    }
}

/// Runs the body of a function of the interface.
pub(crate) fn guard<A: AnswerFor<T>, T>(body: impl FnOnce() -> Result<T, Failure>) -> A {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return A::of(value),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "internal error: a panic in libzerowire, see standard error"),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // In an exit handler, or a destructor of a thread key, it may be gone.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(text));
    A::failed(failure.errno)
}

/// The last error of this thread in words, valid until its next one; "" before the first.
pub(crate) fn last_error() -> Result<*const c_char, Failure> {
    let text = LAST.try_with(|last| last.borrow().as_ref().map_or(c"".as_ptr(), |text| text.as_ptr()));
    Ok(text.unwrap_or(c"the thread ends: words of errors are not kept any more".as_ptr()))
}
