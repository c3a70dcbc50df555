//! Calls that are only tried, to tell whether this kernel and this user may make them. Everything
//! made here is owned by the caller and is gone when it is dropped; nothing is shared with another
//! process.
//!
//! # Errors
//! Those of the system calls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check;
use crate::map::{Mapping, READ_WRITE};
use io_uring::types::{io_uring_region_desc, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg};
use io_uring::{IoUring, cqueue, squeue};
use rustix::mm::MapFlags;

/// `KVM_GET_API_VERSION` (include/uapi/linux/kvm.h): without argument.
const KVM_GET_API_VERSION: libc::Ioctl = 0xae00;
/// `IORING_REGISTER_ZCRX_IFQ` (include/uapi/linux/io_uring.h, since Linux 6.15).
const REGISTER_ZCRX_IFQ: libc::c_uint = 32;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TYPE_XDP: u32 = 6;

/// Version of the interface of an open /dev/kvm.
pub fn kvm_version(kvm: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: this ioctl takes no address.
    check(unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_GET_API_VERSION, 0) })
}

/// A socket that is closed on exec; constants of libc.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Memory of this process's own, of whole pages: private, or the start of `file` shared.
pub fn map(len: usize, file: Option<BorrowedFd<'_>>) -> io::Result<Mapping> {
    let none = MapFlags::empty();
    Ok(match file {
        None => Mapping::private_with(len, none),
        Some(file) => Mapping::shared_with(file, 0, len, READ_WRITE, none),
    }?)
}

/// Registers the first `len` bytes of `memory` with `ring` and lets go of them again.
pub fn register_and_release(ring: &IoUring, memory: &Mapping, len: usize) -> io::Result<()> {
    let iov = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: len.min(memory.len()) };
    // SAFETY: the range is mapped, and unregistered before this returns.
    unsafe { ring.submitter().register_buffers(&[iov]) }?;
    ring.submitter().unregister_buffers()
}

/// Registers a ring of `entries` provided buffers at `memory` and lets go of it again.
pub fn register_buffer_ring(ring: &IoUring, memory: &Mapping, entries: u16) -> io::Result<()> {
    assert!(usize::from(entries) * 16 <= memory.len());
    // SAFETY: the memory holds `entries` records of 16 bytes and outlives the registration, which
    // ends here.
    unsafe { ring.submitter().register_buf_ring_with_flags(memory.as_ptr() as u64, entries, 1, 0) }?;
    ring.submitter().unregister_buf_ring(1)
}

/// Tries to register `area` for zero-copy receive, with a refill ring of 64 entries in `refill`
/// (two pages). It goes with the ring.
pub fn register_zcrx(
    ring: &IoUring<squeue::Entry, cqueue::Entry32>,
    interface: u32,
    flags: u32,
    area: &Mapping,
    refill: &Mapping,
) -> io::Result<()> {
    let mut area =
        io_uring_zcrx_area_reg { addr: area.as_ptr() as u64, len: area.len() as u64, ..Default::default() };
    let mut region = io_uring_region_desc {
        user_addr: refill.as_ptr() as u64,
        size: refill.len() as u64,
        flags: io_uring::types::IORING_MEM_REGION_TYPE_USER,
        ..Default::default()
    };
    let mut reg = io_uring_zcrx_ifq_reg {
        if_idx: interface,
        rq_entries: 64,
        flags,
        area_ptr: &raw mut area as u64,
        region_ptr: &raw mut region as u64,
        ..Default::default()
    };
    // SAFETY: the kernel reads and fills the three structures, which live until it returns. It pins
    // the pages that they name, so the mappings may go first.
    let r = unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_ZCRX_IFQ, &raw mut reg, 1)
    };
    check(r as libc::c_int).map(drop)
}

/// Registers `memory` as AF_XDP memory of 4096-byte chunks (struct xdp_umem_reg,
/// include/uapi/linux/if_xdp.h).
pub fn register_umem(socket: BorrowedFd<'_>, memory: &Mapping) -> io::Result<()> {
    let words: [u64; 4] = [memory.as_ptr() as u64, memory.len() as u64, 4096, 0];
    // SAFETY: the kernel reads the structure and pins the pages that it names, so that the mapping
    // may go first.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_UMEM_REG,
            words.as_ptr().cast(),
            size_of_val(&words) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Loads the XDP program "return XDP_PASS"; it is attached to nothing and goes with the descriptor.
pub fn load_xdp_program() -> io::Result<OwnedFd> {
    /// The head of `union bpf_attr` for BPF_PROG_LOAD (include/uapi/linux/bpf.h).
    #[repr(C)]
    struct LoadAttr {
        prog_type: u32,
        instructions: u32,
        code: u64,
        license: u64,
        rest: [u64; 3],
    }
    // r0 = 2 (XDP_PASS); exit. Opcodes of Documentation/bpf/standardization/instruction-set.rst.
    let code: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_XDP,
        instructions: 2,
        code: code.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        rest: [0; 3],
    };
    // SAFETY: the kernel reads the attributes, the code and the licence, which live until it
    // returns.
    let r = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attr, size_of::<LoadAttr>()) };
    let fd = check(r as libc::c_int)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a child process could `unshare` these namespaces. The child does nothing else and is
/// reaped here.
pub fn unshare_in_child(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the child calls only unshare, errno and _exit, all of which are async-signal-safe.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: as above; the errno fits the exit status.
        unsafe {
            let failed = libc::unshare(flags) != 0;
            libc::_exit(if failed { *libc::__errno_location() } else { 0 });
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: waits for the child made above and fills `status`.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(io::Error::other("the child was killed")),
    }
}
