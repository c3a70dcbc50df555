//! Registers of a device, mapped from sysfs.
//!
//! They belong to the device, which may change them at any time and may react to each access. So
//! each access is one volatile access of the register's own width (virtio 1.3 §4.1.3.1).

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::capabilities::BarRange;
use crate::{GuestAddr, GuestError, GuestSlice, Region};

/// Opens a file of a device for reading and writing. To read a uio descriptor does not block.
pub(super) fn open(path: &Path) -> Result<File, GuestError> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    file.map_err(|e| GuestError::io(format!("opening {} (as root)", path.display()), e))
}

/// Maps a BAR: `resourceN` of a device.
pub(super) fn map(path: &Path) -> Result<Arc<Region>, GuestError> {
    let failed = |what: &str, e: std::io::Error| GuestError::io(format!("{what} {}", path.display()), e);
    let file = open(path)?;
    let len = file.metadata().map_err(|e| failed("reading the size of", e))?.len() as usize;
    let mapped = Region::map(GuestAddr(0), len, Arc::new(file.into()), 0);
    mapped.map(Arc::new).map_err(|e| failed("mapping", e))
}

/// A group of registers. Each is written and read as guest memory is.
pub(super) type Registers = GuestSlice;

/// The registers at a place that the device named.
pub(super) fn registers(bar: &Arc<Region>, place: BarRange) -> Result<Registers, String> {
    let (offset, len) = (place.offset as usize, place.len as usize);
    GuestSlice::view(bar, GuestAddr(offset as u64), len).ok_or_else(|| {
        format!(
            "its registers at {offset:#x} of {len:#x} bytes are beyond BAR {} of {:#x} bytes",
            place.bar,
            bar.len()
        )
    })
}

#[cfg(test)]
mod tests;
