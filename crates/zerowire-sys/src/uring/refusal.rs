//! Why io_uring can't be used.

use std::io;
use thiserror::Error;

/// Why io_uring can't be used here.
#[derive(Debug, Error)]
pub enum UringProbeError {
    /// The system call is not there (ENOSYS): the kernel was built without it or a seccomp filter
    /// hides it.
    #[error(
        "io_uring is not in this kernel, or a seccomp filter hides it (ENOSYS): use another kernel or runtime profile"
    )]
    Missing,
    /// The system call is refused (EPERM).
    #[error(
        "io_uring is refused (EPERM): sysctl kernel.io_uring_disabled is {0}; set it to 0, or allow io_uring in the container's seccomp profile"
    )]
    Refused(String),
    /// Anything else.
    #[error("io_uring set-up failed: {0}")]
    Other(io::Error),
}

/// What an error of `io_uring_setup` means.
pub fn refusal(e: io::Error) -> UringProbeError {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => UringProbeError::Missing,
        Some(libc::EPERM) => UringProbeError::Refused(
            std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
                .map(|s| s.trim().to_owned())
                .unwrap_or_else(|_| "unknown".to_owned()),
        ),
        _ => UringProbeError::Other(e),
    }
}
