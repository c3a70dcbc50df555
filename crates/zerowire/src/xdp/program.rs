//! The XDP program that steers received frames to sockets.
//!
//! It is five instructions long: a frame of queue n goes to the socket that a map has for n, and to the kernel's own stack
//! where there is none (Documentation/bpf/map_xskmap.rst). Program, map and link live as long as their descriptors: when the
//! value is dropped, or the process is killed, the interface is as it was. A program of somebody else's on the interface is
//! respected: attaching fails.
//!
//! All `unsafe` of bpf(2) is in this file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::error::XdpError;
use super::interface::Interface;
use super::socket::Socket;

// Commands and types of include/uapi/linux/bpf.h.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// Attach type of an XDP program.
const BPF_XDP: u32 = 37;
/// The program works on frames of several buffers, which a large MTU makes (since Linux 5.18).
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` (include/uapi/linux/if_link.h).
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// More queues than any interface has; the map takes 8 bytes for each.
const MAX_QUEUES: u32 = 4096;

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// In the driver where it can, else in the stack.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a packet of the frame: what zero-copy mode needs.
    Native,
    /// In the stack: any interface, slower.
    Generic,
}

/// The program on an interface, and the sockets that it steers to.
#[derive(Debug)]
pub struct Steering {
    interface: String,
    map: OwnedFd,
    hook: Hook,
    link: OwnedFd,
    _program: OwnedFd,
}

impl Steering {
    /// Attaches the program to an interface of this thread's network namespace. `queues`: how many can be steered.
    ///
    /// # Errors
    /// [`XdpError::NoInterface`], [`XdpError::Value`], and [`XdpError::System`] with EPERM (CAP_BPF and CAP_NET_ADMIN are
    /// needed), EBUSY (there is another program), EOPNOTSUPP (`native` without such a driver).
    pub fn attach(interface: &str, queues: u32, hook: Hook) -> Result<Self, XdpError> {
        if queues == 0 || queues > MAX_QUEUES {
            let rule = format!("take 1 to {MAX_QUEUES}");
            return Err(XdpError::Value { name: "the number of queues", value: queues.into(), rule });
        }
        let interface = Interface::open(interface)?;
        let what = |what: &str| format!("interface {}: {what}", interface.name());
        let map = new_map(queues).map_err(|e| {
            XdpError::system(what("a map of sockets (CAP_BPF and CAP_NET_ADMIN are needed)"), "bpf", e)
        })?;
        let program = load(&map, BPF_F_XDP_HAS_FRAGS).or_else(|_| load(&map, 0)).map_err(|e| {
            XdpError::system(what("the program (CAP_BPF and CAP_NET_ADMIN are needed)"), "bpf", e)
        })?;
        let attached = |hook, flags| link(&program, interface.index(), flags).map(|link| (link, hook));
        let native = || attached(Hook::Native, XDP_FLAGS_DRV_MODE);
        let generic = || attached(Hook::Generic, XDP_FLAGS_SKB_MODE);
        let result = match hook {
            Hook::Native => native(),
            Hook::Generic => generic(),
            Hook::Auto => native().or_else(|e| match e.raw_os_error() {
                // Somebody else's program: not to be bypassed by the other hook.
                Some(libc::EBUSY | libc::EEXIST) => Err(e),
                _ => generic(),
            }),
        };
        let (link, hook) = result.map_err(|e| {
            let why = match e.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    "another XDP program is attached ('ip link show' names it; end its owner)"
                }
                Some(libc::EOPNOTSUPP) => "its driver runs no XDP programs: use the generic hook",
                _ => "attaching the program",
            };
            XdpError::system(what(why), "bpf(BPF_LINK_CREATE)", e)
        })?;
        Ok(Self { interface: interface.name().to_owned(), map, hook, link, _program: program })
    }

    /// Where the program runs.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// Steers what the socket's queue receives to the socket, until it is closed, or another one takes its place.
    ///
    /// # Errors
    /// [`XdpError::System`]: E2BIG for a queue beyond those that the program was attached for; EINVAL for a socket without
    /// receive ring.
    pub fn steer(&self, socket: &Socket) -> Result<(), XdpError> {
        let value = socket.as_fd().as_raw_fd() as u32;
        self.update(BPF_MAP_UPDATE_ELEM, socket.queue(), Some(&value))
    }

    /// Leaves what a queue receives to the kernel again.
    ///
    /// # Errors
    /// [`XdpError::System`]: EINVAL for a queue that the map doesn't have.
    pub fn stop(&self, queue: u32) -> Result<(), XdpError> {
        self.update(BPF_MAP_DELETE_ELEM, queue, None)
    }

    fn update(&self, command: libc::c_int, key: u32, value: Option<&u32>) -> Result<(), XdpError> {
        /// For BPF_MAP_DELETE_ELEM, what is behind the key must be zero.
        #[repr(C)]
        struct Attr {
            map: u32,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let map = self.map.as_raw_fd() as u32;
        let (at, to) = (&raw const key as u64, value.map_or(0, |v| std::ptr::from_ref(v) as u64));
        // SAFETY: the kernel reads a key and a value of four bytes each, which live until the call returns.
        let done = unsafe { bpf(command, &Attr { map, pad: 0, key: at, value: to, flags: 0 }) };
        let what = || format!("interface {}: steering queue {key}", self.interface);
        done.map(drop).map_err(|e| XdpError::system(what(), "bpf", e))
    }
}

impl Drop for Steering {
    /// Takes the program off the interface at once: a child process that was just forked may hold the link a little longer.
    fn drop(&mut self) {
        let link = self.link.as_raw_fd() as u32;
        // SAFETY: the attributes of that command: a descriptor. Where it can't be done, the last descriptor does it.
        let _ = unsafe { bpf(BPF_LINK_DETACH, &link) };
    }
}

/// bpf(2).
///
/// # Safety
/// `A` is what `command` takes, without padding, and the addresses in it are valid for it.
unsafe fn bpf<A>(command: libc::c_int, attributes: &A) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes as the attributes have; the rest is by the contract.
    let r = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<A>()) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) }
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

fn new_map(entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
    }
    let attr =
        Attr { map_type: BPF_MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: entries, flags: 0 };
    // SAFETY: the head of the attributes of that command, without addresses.
    unsafe { bpf_new(BPF_MAP_CREATE, &attr) }
}

/// One instruction: opcode, destination and source register, offset, number
/// (Documentation/bpf/standardization/instruction-set.rst).
fn instruction(opcode: u8, to: u8, from: u8, offset: i16, number: i32) -> [u8; 8] {
    let [o0, o1] = offset.to_ne_bytes();
    let [n0, n1, n2, n3] = number.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    [opcode, registers, o0, o1, n0, n1, n2, n3]
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`.
fn code(map: i32) -> [[u8; 8]; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_NUMBER_64: u8 = 0x18;
    const MOVE_NUMBER: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// The number is the descriptor of a map.
    const PSEUDO_MAP_FD: u8 = 1;
    /// Offset of `rx_queue_index` in `struct xdp_md`.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    /// Number of the helper `bpf_redirect_map`.
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 2, 1, RX_QUEUE_INDEX, 0),
        instruction(LOAD_NUMBER_64, 1, PSEUDO_MAP_FD, 0, map),
        // The upper half of the number.
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_NUMBER, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

fn load(map: &OwnedFd, flags: u32) -> io::Result<OwnedFd> {
    /// The head of `union bpf_attr` for BPF_PROG_LOAD.
    #[repr(C)]
    struct Attr {
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
    let code = code(map.as_raw_fd());
    let attr = Attr {
        program_type: BPF_PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name: *b"zerowire_steer\0\0",
    };
    // SAFETY: the code and the licence live until the call returns.
    unsafe { bpf_new(BPF_PROG_LOAD, &attr) }
}

fn link(program: &OwnedFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    let attr = Attr { program: program.as_raw_fd() as u32, interface, attach_type: BPF_XDP, flags };
    // SAFETY: the head of the attributes of that command, without addresses.
    unsafe { bpf_new(BPF_LINK_CREATE, &attr) }
}
