//! What kind of file a front end has sent, known without asking its file system.
//!
//! A file system can be a process of the front end's (FUSE), or a server that is gone (NFS). A call
//! that it does not answer can't be interrupted: mmap(2) of such a file stops this process for
//! good, with all its VMs.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use thiserror::Error;

/// The file may not be mapped.
#[derive(Debug, Error)]
#[error(
    "its file is neither shared memory nor on hugetlbfs: use a memfd (QEMU: memory-backend-memfd,share=on), or a file on \
     /dev/shm, another tmpfs or hugetlbfs (memory-backend-file,share=on,mem-path=/dev/shm)"
)]
pub struct NotMemory;

/// Takes memfds and files on tmpfs and hugetlbfs, all others are refused: the kernel keeps seals of
/// those alone (mm/memfd.c, `memfd_file_seals_ptr`).
pub(crate) fn check_memory(file: impl AsFd) -> Result<(), NotMemory> {
    rustix::fs::fcntl_get_seals(file).map(|_| ()).map_err(|_| NotMemory)
}

/// Whether a descriptor is an eventfd.
///
/// # Errors
/// /proc is not there.
pub(crate) fn is_eventfd(fd: impl AsFd) -> io::Result<bool> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))?;
    Ok(link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_taken_and_no_other_file() {
        let memfd = |flags| {
            let name = "test";
            rustix::fs::memfd_create(name, flags | rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd")
        };
        assert!(check_memory(memfd(rustix::fs::MemfdFlags::empty())).is_ok());
        assert!(check_memory(memfd(rustix::fs::MemfdFlags::HUGETLB)).is_ok());
        assert!(check_memory(tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs")).is_ok());
        for path in ["/proc/self/maps", "/dev/zero", "/proc/self/exe"] {
            assert!(check_memory(std::fs::File::open(path).expect(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn an_eventfd_is_told_from_others() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(is_eventfd(&eventfd).expect("/proc"));
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert!(!is_eventfd(&reader).expect("/proc"));
    }
}
