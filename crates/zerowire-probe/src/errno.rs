//! Error numbers and sizes in words.

use std::io;

/// The number of an error of a system call; 0 if it is none.
pub(super) fn number(e: io::Error) -> i32 {
    e.raw_os_error().unwrap_or(0)
}

/// `EPERM` and what it means, such as a message shows it.
pub(super) fn words(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_lowercase();
    match name(errno) {
        Some(name) => format!("{name}, {text}"),
        None => format!("error {errno}, {text}"),
    }
}

/// What failed, and why: "refused (EPERM, operation not permitted)".
pub(super) fn said(what: &str, errno: i32) -> String {
    format!("{what} ({})", words(errno))
}

fn name(errno: i32) -> Option<&'static str> {
    macro_rules! find {
        ($($name:ident)*) => {
            match errno {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        };
    }
    find!(EACCES EAFNOSUPPORT EAGAIN EBADF EBUSY EFAULT EINVAL EMFILE ENODEV ENOENT ENOBUFS ENOMEM)
        .or(find!(ENOPROTOOPT ENOSPC ENOSYS ENOTTY ENXIO EOPNOTSUPP EPERM EPROTONOSUPPORT))
}

/// A size with its unit: whole where it is whole.
pub(super) fn size(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        let one = 1u64 << shift;
        if bytes >= one {
            let whole = bytes / one;
            return if bytes.is_multiple_of(one) {
                format!("{whole} {unit}")
            } else {
                format!("{:.1} {unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_name_and_its_meaning() {
        assert_eq!(words(libc::EPERM), "EPERM, operation not permitted");
        assert!(words(9999).starts_with("error 9999"));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(8 << 20), "8 MiB");
        assert_eq!(size((8 << 20) + (512 << 10)), "8.5 MiB");
        assert_eq!(size(100), "100 bytes");
        assert_eq!(size(24 << 30), "24 GiB");
    }
}
