//! The memory of a mapped connection: two files, one of which the program can only read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerowire_wire::mapped::MapOptions;

use crate::memory::{Mapping, Segment, access};

/// What the program is given.
#[derive(Debug)]
pub struct ProgramFiles {
    /// Control page and header pages.
    pub headers: OwnedFd,
    /// Data pages.
    pub data: OwnedFd,
    /// Becomes readable to wake the program.
    pub ready: OwnedFd,
    /// Wakes this side.
    pub released: OwnedFd,
}

/// This side's view.
#[derive(Debug)]
pub(super) struct Memory {
    headers: Mapping,
    data: Mapping,
}

fn sealed_file(name: &str, len: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    Ok(file)
}

impl Memory {
    /// New files of the size that the options ask for, this side's mapping of them, and the socket
    /// that wakes the program.
    pub fn new(options: &MapOptions) -> io::Result<(Self, ProgramFiles, OwnedFd)> {
        let headers = sealed_file("zerowire-headers", options.headers_len())?;
        let data = sealed_file("zerowire-data", options.data_len())?;
        let memory = Self {
            headers: Mapping::shared(headers.as_fd(), 0, options.headers_len())?,
            data: Mapping::shared(data.as_fd(), 0, options.data_len())?,
        };
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&headers, size)?;
        // From here on the file can be mapped for reading only; the mapping above stays as it is.
        rustix::fs::fcntl_add_seals(&data, size | SealFlags::FUTURE_WRITE)?;
        // Not an eventfd: the program would share its open file, and could make this side's writing
        // wait.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (wake, ready) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let released = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok((memory, ProgramFiles { headers, data, ready, released }, wake))
    }

    /// A word of the control page or of the header pages, at an offset that the options give.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        self.headers.word(at)
    }

    /// Copies `len` bytes of guest memory, `skip` bytes into the segments, to the data pages.
    #[inline]
    pub fn fill(&mut self, at: usize, parts: &[Segment], skip: usize, len: usize) {
        access::read(parts, skip, self.bytes(at, len));
    }

    /// Copies private bytes to the data pages.
    pub fn fill_from(&mut self, at: usize, bytes: &[u8]) {
        self.bytes(at, bytes.len()).copy_from_slice(bytes);
    }

    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.data.len(), "an offset of the layout");
        // SAFETY: the range lies in the mapping, and this is the only view of it that can write.
        // The file is sealed against further ones, and the program's can only read.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(at), len) }
    }

    #[cfg(test)]
    pub fn data_for_tests(&mut self) -> &[u8] {
        let len = self.data.len();
        self.bytes(0, len)
    }
}
