//! Mappings: the few places where memory is mapped and unmapped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Leaves addresses out of core dumps: guests' data must not end up in a file of the host's.
pub(super) fn leave_out_of_dumps(at: *mut u8, len: usize) {
    // SAFETY: the advice changes no bytes; the kernel checks the range.
    unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTDUMP) };
}

/// A mapping of this process, unmapped on drop. Core dumps leave it out.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range that this value owns alone; what lies in it is reached only through raw
// pointers by code that states its own rules.
unsafe impl Send for Mapping {}
// SAFETY: as above; the value itself is immutable.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` at `offset` shared, for reading and writing.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let offset =
            libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                offset,
            )
        };
        Self::checked(ptr, len)
    }

    /// Maps `len` bytes of private zeroed memory. Pages that are never touched cost nothing.
    pub fn private(len: usize) -> io::Result<Self> {
        // SAFETY: as in `shared`.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        Self::checked(ptr, len)
    }

    fn checked(ptr: *mut libc::c_void, len: usize) -> io::Result<Self> {
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        leave_out_of_dumps(ptr.cast(), len);
        NonNull::new(ptr.cast())
            .map(|ptr| Self { ptr, len })
            .ok_or_else(|| io::Error::other("mapped at zero"))
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty; never so for one that was made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and nothing else unmaps it.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Whether core dumps leave out the mapping that has this address (proc_pid_smaps(5): `dd`).
    pub fn is_left_out(at: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
        let mut inside = false;
        for line in maps.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if first == "VmFlags:" && inside {
                return rest.split(' ').any(|flag| flag == "dd");
            }
            if let Some((start, end)) = first.split_once('-') {
                let bound = |text| usize::from_str_radix(text, 16).expect("an address");
                inside = (bound(start)..bound(end)).contains(&at.addr());
            }
        }
        panic!("{at:?} is not mapped")
    }

    #[test]
    fn core_dumps_leave_out_mappings_of_every_kind() {
        const LEN: usize = 2 << 20;
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, LEN as u64).expect("its length");
        assert!(is_left_out(Mapping::shared(file.as_fd(), 0, LEN).expect("a mapping").as_ptr()));
        assert!(is_left_out(Mapping::private(LEN).expect("a mapping").as_ptr()));
        assert!(!is_left_out(std::ptr::from_ref(&file).cast()), "other memory is dumped");
    }
}
