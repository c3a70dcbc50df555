//! Physical addresses of this process's own pages.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{PAGE, Region};
use crate::{GuestAddr, GuestError};

/// Bytes of an entry of /proc/PID/pagemap
/// (Documentation/admin-guide/mm/pagemap.rst).
const ENTRY: u64 = 8;
/// Bits of an entry that hold the page's number.
const NUMBER: u64 = (1 << 55) - 1;
/// Bit of an entry: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Where the first byte of a region lies in the machine's memory. The region
/// must be a page of one piece; it is brought into memory.
pub(super) fn address_of(region: &Region) -> Result<GuestAddr, GuestError> {
    region.touch();
    let failed = |e| GuestError::io("reading /proc/self/pagemap", e);
    let pagemap = File::open("/proc/self/pagemap").map_err(failed)?;
    let mut entry = [0; ENTRY as usize];
    let place = region.user_addr() / PAGE as u64 * ENTRY;
    pagemap.read_exact_at(&mut entry, place).map_err(failed)?;
    decode(u64::from_ne_bytes(entry))
}

fn decode(entry: u64) -> Result<GuestAddr, GuestError> {
    let number = entry & NUMBER;
    if entry & PRESENT == 0 || number == 0 {
        let what = "/proc/self/pagemap shows no physical address; CAP_SYS_ADMIN is needed (run as root)";
        return Err(GuestError::io(what, std::io::ErrorKind::PermissionDenied));
    }
    Ok(GuestAddr(number * PAGE as u64))
}

#[cfg(test)]
mod tests;
