//! Limits that the kernel sets, and the clock that the policy measures with.

use super::SendError;

/// The error for memory that the kernel refuses to take, with the limits' values.
pub(super) fn locked(len: usize) -> SendError {
    let memlock = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    SendError::Locked {
        len,
        memlock: memlock.map_or_else(|| "unlimited".to_owned(), |n| format!("{n} bytes")),
        optmem: std::fs::read_to_string("/proc/sys/net/core/optmem_max")
            .map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned()),
    }
}

/// CPU time of this thread, nanoseconds.
pub(super) fn cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}
