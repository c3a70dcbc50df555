//! What can go wrong with AF_XDP. The text of each error is the message that the user reads.

use std::io;
use std::time::Duration;

/// Why memory can't be registered, or a socket not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// A value breaks a rule of the kernel.
    #[error("{name} is {value}: {rule}")]
    Value {
        /// What the value is of.
        name: &'static str,
        /// The value.
        value: u64,
        /// The rule.
        rule: String,
    },
    /// AF_XDP sockets are refused (EPERM).
    #[error(
        "no AF_XDP socket: not permitted; run as root, or grant CAP_NET_RAW (in a unit the drop-in xdp.conf)"
    )]
    NotPermitted,
    /// The kernel has no AF_XDP, or the unit may not use it (EAFNOSUPPORT).
    #[error(
        "no AF_XDP socket: this kernel or this unit has none; boot a kernel with CONFIG_XDP_SOCKETS, install the drop-in \
         xdp.conf (RestrictAddressFamilies=AF_XDP), or use a packet ring"
    )]
    Unsupported,
    /// The limit of locked memory is too low for the frames (ENOBUFS, EPERM, ENOMEM).
    #[error(
        "{need_bytes} bytes of frames can't be locked: the limit of locked memory is {limit_bytes} bytes for all programs of \
         this user; raise it ('ulimit -l {}', or LimitMEMLOCK= in a unit), grant CAP_IPC_LOCK, or ask for fewer frames",
        need_bytes.div_ceil(1024)
    )]
    Memlock {
        /// Bytes to register.
        need_bytes: u64,
        /// RLIMIT_MEMLOCK, bytes.
        limit_bytes: u64,
    },
    /// No memory for the frames.
    #[error("no memory for {need_bytes} bytes of frames: ask for fewer")]
    NoMemory {
        /// Bytes that were asked for.
        need_bytes: u64,
    },
    /// No huge pages for the frames.
    #[error(
        "no {pages} huge pages of 2 MiB for {need_bytes} bytes of frames: raise vm.nr_hugepages by that many, or use \
         normal pages"
    )]
    NoHugePages {
        /// Bytes that were asked for.
        need_bytes: u64,
        /// Pages that they are.
        pages: u64,
    },
    /// The memory isn't what can be registered: not mapped, or not writable (EFAULT).
    #[error(
        "{need_bytes} bytes at {base:#x} can't be registered: not all of them are mapped readable and writable"
    )]
    NotMapped {
        /// The first address.
        base: u64,
        /// Bytes to register.
        need_bytes: u64,
    },
    /// This network namespace doesn't have the interface (ENODEV).
    #[error("no interface {interface} in this network namespace: 'ip link' lists those that there are")]
    NoInterface {
        /// The name that was given.
        interface: String,
    },
    /// The interface is down (ENETDOWN).
    #[error("interface {interface} is down: 'ip link set {interface} up'")]
    Down {
        /// Name of the interface.
        interface: String,
    },
    /// The driver has no zero-copy mode, or not with these options (EOPNOTSUPP).
    #[error(
        "interface {interface}, queue {queue}: its driver has no zero-copy mode{}: use mode auto or copy",
        if *.multi_buffer { " for frames of several buffers" } else { "" }
    )]
    NoZeroCopy {
        /// Name of the interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Whether frames of several buffers were asked for.
        multi_buffer: bool,
    },
    /// The queue already has a socket with other memory (EBUSY).
    #[error(
        "queue {queue} of interface {interface} is in use by another AF_XDP socket (waited {waited:?}): end that program, \
         or take another queue"
    )]
    Busy {
        /// Name of the interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// How long the kernel was given to let go of an earlier socket.
        waited: Duration,
    },
    /// The interface has no such queue (EINVAL).
    #[error(
        "interface {interface} has no queue {queue}{}",
        .queues.map_or_else(
            || format!(": its numbers begin with 0; 'ls /sys/class/net/{}/queues' shows them", .interface),
            |n| format!(": it has {n}, numbered from 0; 'ethtool -L {}' changes that", .interface),
        )
    )]
    NoQueue {
        /// Name of the interface.
        interface: String,
        /// The queue that was asked for.
        queue: u32,
        /// Queues that it has, where the driver tells.
        queues: Option<u32>,
    },
    /// There is another XDP program on the interface (EBUSY, EEXIST).
    #[error("interface {interface} has another XDP program: {program}")]
    OtherProgram {
        /// Name of the interface.
        interface: String,
        /// Its name, its number, where it is attached, and the remedy.
        program: String,
    },
    /// What another process says that opens and binds sockets for this one, or who asks for a
    /// socket.
    #[error("{0}")]
    Told(String),
    /// A system call failed for another reason.
    #[error("{what}: {call} failed: {cause}")]
    System {
        /// What was being done.
        what: String,
        /// The call.
        call: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl XdpError {
    /// [`XdpError::System`]: `call` failed while `what` was being done.
    pub fn system(what: impl Into<String>, call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), call, cause: source.into() }
    }
}
