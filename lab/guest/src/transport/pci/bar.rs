//! Registers of a device, mapped from sysfs.
//!
//! They belong to the device, which may change them at any time and may react to each access. So
//! each access is one volatile access of the register's own width (virtio 1.3 §4.1.3.1).

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::mm::MapFlags;
use zerowire_sys::map::{Mapping, READ_WRITE};

use super::capabilities::BarRange;
use crate::GuestError;
use crate::memory::LeInt;

/// Opens a file of a device for reading and writing. To read a uio descriptor does not block.
pub(super) fn open(path: &Path) -> Result<File, GuestError> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    file.map_err(|e| GuestError::io(format!("opening {} (as root)", path.display()), e))
}

/// Maps a BAR: `resourceN` of a device.
pub(super) fn map(path: &Path) -> Result<Mapping, GuestError> {
    let failed = |what: &str, e: std::io::Error| GuestError::io(format!("{what} {}", path.display()), e);
    let file = open(path)?;
    let len = file.metadata().map_err(|e| failed("reading the size of", e))?.len() as usize;
    let mapped = Mapping::shared_with(&file, 0, len, READ_WRITE, MapFlags::empty());
    mapped.map_err(|e| failed("mapping", e.into()))
}

/// A group of registers.
///
/// Access outside of it, or not aligned to the register's width, panics:
/// offsets are the driver's own.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    bar: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Registers {
    /// The registers at a place that the device named.
    pub(super) fn at(bar: &Arc<Mapping>, place: BarRange) -> Result<Registers, String> {
        let (offset, len) = (place.offset as usize, place.len as usize);
        if offset > bar.len() || len > bar.len() - offset {
            return Err(format!(
                "its registers at {offset:#x} of {len:#x} bytes are beyond BAR {} of {:#x} bytes",
                place.bar,
                bar.len()
            ));
        }
        Ok(Registers { bar: Arc::clone(bar), offset, len })
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn read<T: LeInt>(&self, offset: usize) -> T {
        let register = self.check::<T>(offset);
        // SAFETY: mapped and aligned, as `check` saw; any bytes are an integer.
        T::from_le(unsafe { register.read_volatile() })
    }

    pub(super) fn write<T: LeInt>(&self, offset: usize, value: T) {
        let register = self.check::<T>(offset);
        // SAFETY: mapped and aligned, as `check` saw.
        unsafe { register.write_volatile(value.to_le()) }
    }

    fn check<T>(&self, offset: usize) -> *mut T {
        let inside = offset <= self.len && size_of::<T>() <= self.len - offset;
        let target = self.bar.as_ptr().wrapping_add(self.offset + offset).cast::<T>();
        assert!(
            inside && target.is_aligned(),
            "register of {} bytes at {offset:#x} of {:#x} in BAR of {:#x}",
            size_of::<T>(),
            self.len,
            self.bar.len()
        );
        target
    }
}

#[cfg(test)]
mod tests;
