//! Which library this is, and what it said last.

use std::ffi::c_char;

use crate::arguments::exported;
use crate::guard::last_error;

/// The version of this header: major * 65536 + minor * 256 + patch. zw_version says that of the
/// library.
pub const ZW_LIBRARY_VERSION: u32 = 0x0000_0100u32;

const _: () = {
    /// Of the package's version, a number of digits.
    const fn number(digits: &str) -> u32 {
        match u32::from_str_radix(digits, 10) {
            Ok(n) if n < 256 => n,
            _ => panic!("a part of the version is at most 255"),
        }
    }
    let (major, minor) = (number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")));
    let package = (major << 16) | (minor << 8) | number(env!("CARGO_PKG_VERSION_PATCH"));
    assert!(ZW_LIBRARY_VERSION == package, "set it to the package's version");
};

exported! {
/// The version of the library that runs, as ZW_LIBRARY_VERSION says that of the header that a
/// program was built with.
///
/// Both may differ within one soname. Structs grow at the end. An older program's shorter struct is
/// taken as if 0 followed; results are written up to the program's size. A newer program's longer
/// one is taken if what the library does not know is 0, else -E2BIG; fields of results that the
/// library does not know become 0.
fn zw_version() -> u32 = (|| Ok(ZW_LIBRARY_VERSION))();

/// The last error of this thread in words; "" before the first. Valid until the thread's next call
/// of this library.
///
/// Calls work in exit handlers and in destructors of thread keys, too. The words of their errors
/// are not kept there: a fixed text says so.
fn zw_last_error() -> *const c_char = last_error();
}
