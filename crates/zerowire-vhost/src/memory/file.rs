//! What kind of file a front end has sent, known without asking its file system.
//!
//! A file system can be a process of the front end's (FUSE), or a server that is gone (NFS). A call
//! that it does not answer can't be interrupted: mmap(2) of such a file stops this process for
//! good, with all its VMs. Even close(2) is such a call.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, MemfdFlags, SealFlags, Statx, StatxFlags, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use thiserror::Error;
use zerowire_sys::map::Mapping;

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

/// Whether closing a descriptor asks no file system that may never answer, and does not linger as
/// sockets of the network can (SO_LINGER). A confined process on a tap can't tell sockets apart,
/// and serves no other VM.
pub(crate) fn closes_at_once(fd: impl AsFd) -> bool {
    let of_the_kernel = |kind| match kind {
        FileType::Fifo | FileType::Unknown => true,
        FileType::Socket => matches!(socket_domain(&fd), Ok(AddressFamily::UNIX) | Err(Errno::NOSYS)),
        _ => false,
    };
    check_memory(&fd).is_ok() || file_type(&fd).is_ok_and(of_the_kernel)
}

/// The type of a file as the kernel knows it.
fn file_type(fd: impl AsFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(known(fd, StatxFlags::TYPE)?.stx_mode.into()))
}

/// Bytes of a file.
///
/// # Errors
/// Those of statx(2).
pub fn file_len(fd: impl AsFd) -> io::Result<u64> {
    Ok(known(fd, StatxFlags::SIZE)?.stx_size)
}

/// New memory of `len` bytes in a file, which keeps this length.
///
/// # Errors
/// Those of memfd_create(2) and ftruncate(2).
pub fn memory_file(name: &str, len: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Bytes of a page of memory: that of huge pages where `file` lies on hugetlbfs.
///
/// # Errors
/// Those of statx(2) and mmap(2).
pub(crate) fn page_size(file: impl AsFd) -> io::Result<u64> {
    const PAGE: u64 = 4096;
    let block = u64::from(known(&file, StatxFlags::TYPE)?.stx_blksize);
    if block <= PAGE {
        return Ok(PAGE);
    }
    // tmpfs says so, too, where it may use huge pages. Of hugetlbfs a mapping begins with a whole
    // page (fs/hugetlbfs/inode.c).
    match Mapping::shared(file, PAGE, PAGE as usize) {
        Ok(_) => Ok(PAGE),
        Err(Errno::INVAL) => Ok(block),
        Err(e) => Err(e.into()),
    }
}

/// Whether two descriptors are of the same file.
pub(crate) fn is_same_file(a: impl AsFd, b: impl AsFd) -> bool {
    let id = |fd: &dyn AsFd| {
        let file = known(fd, StatxFlags::INO).ok()?;
        Some((file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
    };
    id(&a).is_some_and(|a| id(&b) == Some(a))
}

/// What the kernel knows of a file. fstat(2) would ask the file system.
fn known(fd: impl AsFd, what: StatxFlags) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what)
}

/// Whether a descriptor is an eventfd.
///
/// # Errors
/// The kernel doesn't tell what it is.
pub(crate) fn is_eventfd(fd: impl AsFd) -> io::Result<bool> {
    match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())) {
        Ok(link) => Ok(link.as_os_str() == "anon_inode:[eventfd]"),
        Err(_) => is_counter(fd),
    }
}

/// As [`is_eventfd`] says it without /proc. What a process of the front end's answers for (FUSE, a
/// pipe, a socket) has a type, and an eventfd has none. Like few files without one it refuses to be
/// read in less than 8 bytes, without waiting. Of those it alone can be written.
fn is_counter(fd: impl AsFd) -> io::Result<bool> {
    if file_type(&fd)? != FileType::Unknown {
        return Ok(false);
    }
    let mut few = [0; 4];
    let read = preadv2(&fd, &mut [IoSliceMut::new(&mut few)], u64::MAX, ReadWriteFlags::NOWAIT);
    Ok(read == Err(Errno::INVAL) && zerowire_sys::fd::takes_eight_bytes(&fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, Mode, OFlags};
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    };
    use zerowire_testkit::not_run;

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
    fn a_page_is_huge_on_hugetlbfs_alone() {
        let memfd = |flags| rustix::fs::memfd_create("test", flags | MemfdFlags::CLOEXEC).expect("a memfd");
        let page = |flags| page_size(memfd(flags)).expect("its page");
        assert_eq!(page(MemfdFlags::empty()), 4096);
        assert_eq!(page(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB), 2 << 20);
        match file_on_tmpfs_of_huge_pages() {
            Ok(file) => {
                assert_eq!(known(&file, StatxFlags::TYPE).expect("known").stx_blksize, 2 << 20);
                assert_eq!(page_size(file).expect("its page"), 4096);
            }
            Err(e) => not_run(&format!("a tmpfs with huge pages: {e}")),
        }
    }

    /// The file system goes with it.
    fn file_on_tmpfs_of_huge_pages() -> Result<OwnedFd, Errno> {
        let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(tmpfs.as_fd(), "huge", "always")?;
        fsconfig_create(tmpfs.as_fd())?;
        let root = fsmount(tmpfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        rustix::fs::openat(root, "memory", OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR)
    }

    #[test]
    fn files_of_file_systems_are_told_from_the_kernels_own() {
        let open = |path: &str| std::fs::File::open(path).expect(path);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (left, _right) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        let memory = tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs");
        let own: [std::os::fd::OwnedFd; 5] =
            [reader.into(), writer.into(), left.into(), eventfd, memory.into()];
        for fd in own {
            assert!(closes_at_once(&fd), "{fd:?}");
        }
        for path in ["/proc/self/exe", "/proc/self/maps", "/", "/dev/null"] {
            assert!(!closes_at_once(open(path)), "{path}");
        }
        assert!(!closes_at_once(std::net::TcpListener::bind("127.0.0.1:0").expect("loopback")));
    }

    #[test]
    fn an_eventfd_is_told_from_others() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(is_eventfd(&eventfd).expect("/proc"));
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert!(!is_eventfd(&reader).expect("/proc"));
    }

    /// What a process without /proc has.
    #[test]
    fn without_proc_a_counter_is_told_from_what_can_block() {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        for flags in [EventfdFlags::CLOEXEC, EventfdFlags::NONBLOCK, EventfdFlags::SEMAPHORE] {
            let counter = eventfd(7, flags).expect("an eventfd");
            assert!(is_counter(&counter).expect("told"));
            let mut count = [0; 8];
            rustix::io::read(&counter, &mut count).expect("what it held");
            let semaphore = flags == EventfdFlags::SEMAPHORE;
            assert_eq!(u64::from_ne_bytes(count), if semaphore { 1 } else { 7 }, "nothing was taken out");
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (left, _right) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let memfd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let null = std::fs::File::open("/dev/null").expect("a device");
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("a timer");
        let epoll =
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let files: [std::os::fd::OwnedFd; 7] =
            [reader.into(), writer.into(), left.into(), memfd, null.into(), timer, epoll];
        for file in files {
            assert!(!is_counter(&file).expect("told"), "{file:?}");
        }
    }
}
