//! The memory of a mapped connection: two files, one of which the program can only read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerowire_sys::map::SealedMap;
use zerowire_vhost::memory::{Mapping, Segment, access, memory_file};
use zerowire_wire::mapped::MapOptions;

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
    data: SealedMap,
}

impl Memory {
    /// New files of the size that the options ask for, this side's mapping of them, and the socket
    /// that wakes the program.
    pub fn new(options: &MapOptions) -> io::Result<(Self, ProgramFiles, OwnedFd)> {
        let len = options.headers_len();
        let headers = memory_file("zerowire-headers", len as u64)?;
        let header_pages = Mapping::shared(headers.as_fd(), 0, len)?;
        let (data_pages, data) = SealedMap::new("zerowire-data", options.data_len())?;
        let memory = Self { headers: header_pages, data: data_pages };
        // Not an eventfd: the program would share its open file, and could make this side's writing
        // wait.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (wake, ready) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        zerowire_sys::socket::refuse_descriptors(&wake)?;
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
        access::read(parts, skip, &mut self.data[at..at + len]);
    }

    /// Copies private bytes to the data pages.
    pub fn fill_from(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[cfg(test)]
    pub fn data_for_tests(&mut self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use zerowire_sys::socket::{SO_PASSRIGHTS, get_int};

    use super::*;

    /// A kernel before Linux 6.16 does not know the option.
    #[test]
    fn the_socket_that_wakes_a_program_takes_no_descriptors() {
        let (_, _, wake) = Memory::new(&MapOptions::default()).expect("memory");
        assert_ne!(get_int(&wake, libc::SOL_SOCKET, SO_PASSRIGHTS).ok(), Some(1));
    }
}
