//! bpf(2): all `unsafe` of it.
//!
//! Commands, types and attributes are those of include/uapi/linux/bpf.h; of each `union bpf_attr`
//! the head that the command needs is given, without padding.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::syscall::checked;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// Attach type of an XDP program.
const BPF_XDP: u32 = 37;
/// The program works on frames of several buffers, which a large MTU makes (since Linux 5.18).
pub(super) const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` (include/uapi/linux/if_link.h).
pub(super) const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
pub(super) const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// A map from 32-bit numbers to values of one kind.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    value_bytes: usize,
}

impl Map {
    /// Sockets by queue.
    pub(super) fn of_sockets(entries: u32) -> io::Result<Self> {
        Self::new(BPF_MAP_TYPE_XSKMAP, 4, entries)
    }

    /// An array of values, all zero.
    pub(super) fn array(value_bytes: usize, entries: u32) -> io::Result<Self> {
        Self::new(BPF_MAP_TYPE_ARRAY, value_bytes, entries)
    }

    fn new(map_type: u32, value_bytes: usize, entries: u32) -> io::Result<Self> {
        // Type, bytes of a key and of a value, entries, flags.
        let attr = [map_type, 4, value_bytes as u32, entries, 0];
        // SAFETY: the head of the attributes of this command, without addresses.
        let fd = unsafe { bpf_new(BPF_MAP_CREATE, &attr)? };
        Ok(Self { fd, value_bytes })
    }

    /// The descriptor's number, for instructions.
    pub(super) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Sets what is behind a key.
    pub(super) fn set(&self, key: u32, value: &[u8]) -> io::Result<()> {
        if value.len() != self.value_bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the kernel reads a value of as many bytes as the map was made for.
        unsafe { self.element(BPF_MAP_UPDATE_ELEM, key, value.as_ptr() as u64) }
    }

    /// What is behind a key.
    pub(super) fn get(&self, key: u32) -> io::Result<Vec<u8>> {
        let mut value = vec![0u8; self.value_bytes];
        // SAFETY: the kernel writes a value of as many bytes as the map was made for.
        unsafe { self.element(BPF_MAP_LOOKUP_ELEM, key, value.as_mut_ptr() as u64)? };
        Ok(value)
    }

    /// Takes away what is behind a key.
    pub(super) fn remove(&self, key: u32) -> io::Result<()> {
        // For this command what stands behind the key must be zero.
        // SAFETY: no value.
        unsafe { self.element(BPF_MAP_DELETE_ELEM, key, 0) }
    }

    /// # Safety
    /// `value` is what the command takes: zero, or the address of `value_bytes` bytes.
    unsafe fn element(&self, command: libc::c_int, key: u32, value: u64) -> io::Result<()> {
        #[repr(C)]
        struct Attr {
            map: u32,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let attr =
            Attr { map: self.fd.as_raw_fd() as u32, pad: 0, key: &raw const key as u64, value, flags: 0 };
        // SAFETY: the key has four bytes, and lives until the call returns; the value by the
        // contract.
        unsafe { bpf(command, &attr) }.map(drop)
    }
}

/// Loads an XDP program.
pub(super) fn load(code: &[[u8; 8]], name: [u8; 16], flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LoadAttr {
        program_type: u32,
        instructions: u32,
        code: u64,
        licence: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let attr = LoadAttr {
        program_type: BPF_PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name,
    };
    // SAFETY: the code and the licence live until the call returns.
    unsafe { bpf_new(BPF_PROG_LOAD, &attr) }
}

/// Attaches a program to an interface, as long as the descriptor that comes back is open.
pub(super) fn link(program: &OwnedFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    // Program, interface, where it is attached, flags.
    let attr = [program.as_raw_fd() as u32, interface, BPF_XDP, flags];
    // SAFETY: the head of the attributes of this command, without addresses.
    unsafe { bpf_new(BPF_LINK_CREATE, &attr) }
}

/// Takes the program of a link off its interface at once.
pub(super) fn detach(link: &OwnedFd) -> io::Result<()> {
    let link = link.as_raw_fd() as u32;
    // SAFETY: the attributes of this command: a descriptor.
    unsafe { bpf(BPF_LINK_DETACH, &link) }.map(drop)
}

/// The name of a loaded program, by its number; empty where it was loaded without one.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    /// The head of `struct bpf_prog_info` up to the name.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        type_and_id: [u32; 2],
        tag: [u8; 8],
        /// Of two listings of the code: their lengths, and where the kernel writes them.
        lengths: [u32; 2],
        addresses: [u64; 2],
        load_time: u64,
        uid: u32,
        map_count: u32,
        maps: u64,
        name: [u8; 16],
    }
    #[repr(C)]
    struct ById {
        id: u32,
        next: u32,
        flags: u32,
    }
    #[repr(C)]
    struct Ask {
        fd: u32,
        bytes: u32,
        info: u64,
    }
    // SAFETY: the attributes of this command, without addresses.
    let fd = unsafe { bpf_new(BPF_PROG_GET_FD_BY_ID, &ById { id, next: 0, flags: 0 })? };
    let mut info = Info::default();
    let ask = Ask { fd: fd.as_raw_fd() as u32, bytes: size_of::<Info>() as u32, info: &raw mut info as u64 };
    // SAFETY: the kernel writes at most as many bytes as the value has; the addresses in it are
    // zero, so that it writes nowhere else.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &ask)? };
    let end = info.name.iter().position(|b| *b == 0).unwrap_or(info.name.len());
    Ok(String::from_utf8_lossy(&info.name[..end]).into_owned())
}

/// bpf(2).
///
/// # Safety
/// `A` is what `command` takes, without padding, and the addresses in it are valid for it.
unsafe fn bpf<A>(command: libc::c_int, attributes: &A) -> io::Result<i32> {
    let arguments = [command as usize, std::ptr::from_ref(attributes) as usize, size_of::<A>(), 0, 0, 0];
    // SAFETY: the kernel reads as many bytes as the attributes have; the rest is by the contract.
    unsafe { checked(libc::SYS_bpf, arguments) }.map(|r| r as i32)
}

/// The same for a command that makes a descriptor.
///
/// # Safety
/// As [`bpf`], and `command` is one that makes a descriptor.
unsafe fn bpf_new<A>(command: libc::c_int, attributes: &A) -> io::Result<OwnedFd> {
    // SAFETY: by the contract.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
