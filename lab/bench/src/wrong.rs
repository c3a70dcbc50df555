//! Arguments that can't be served.

/// Returns [`WrongArguments`] from the function, as `bail!` returns an error.
macro_rules! wrong {
    ($($text:tt)*) => {
        return Err($crate::WrongArguments(format!($($text)*)).into())
    };
}
pub(crate) use wrong;
