//! A UMEM: the memory that AF_XDP sockets send from and receive into, registered with the kernel.
//!
//! Memory: the pages are those of a mapping, the program's own or one that the caller shares
//! ([`Umem::of`]). The kernel pins them until the last socket is closed. The rings say who may
//! touch a byte. A chunk belongs to the kernel from its way into the fill or transmit ring until it
//! comes out of the receive or completion ring. The value makes no reference to the memory.
//!
//! Registration follows `struct xdp_umem_reg` (include/uapi/linux/if_xdp.h); the limits are those
//! of net/xdp/xdp_umem.c.

mod options;

use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::MapFlags;
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::XdpUmemReg;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use self::options::{KERNEL_HEADROOM_BYTES, MIN_CHUNK_BYTES, UmemOptions};
use super::error::XdpError;
use super::interface::Interface;
use crate::lock;
use crate::map::{HUGE_PAGE_BYTES, HUGE_PAGES, Mapping};

use super::socket::{RingSizes, SocketOptions, bind_to};

/// Opens sockets and binds them: this process, or another one for it.
pub trait SocketMaker: fmt::Debug + Send + Sync {
    /// A socket that is not bound.
    ///
    /// # Errors
    /// [`XdpError::NotPermitted`], [`XdpError::Unsupported`], [`XdpError::System`].
    fn open(&self) -> Result<OwnedFd, XdpError>;

    /// Binds a socket to a queue of the interface; with `shared` it shares the registration of that
    /// one.
    ///
    /// # Errors
    /// As [`Socket::bind`](super::Socket::bind). A queue that is busy is not waited for.
    fn bind(
        &self,
        socket: BorrowedFd<'_>,
        shared: Option<BorrowedFd<'_>>,
        interface: &Interface,
        options: &SocketOptions,
    ) -> Result<(), XdpError>;

    /// Whether this process may use neither sendto(2) nor recvfrom(2).
    fn is_confined(&self) -> bool {
        false
    }
}

/// This process itself.
#[derive(Clone, Copy, Debug)]
pub struct OwnSockets;

impl SocketMaker for OwnSockets {
    fn open(&self) -> Result<OwnedFd, XdpError> {
        new_socket()
    }

    fn bind(
        &self,
        socket: BorrowedFd<'_>,
        shared: Option<BorrowedFd<'_>>,
        interface: &Interface,
        options: &SocketOptions,
    ) -> Result<(), XdpError> {
        bind_to(socket, shared, interface, options)
    }
}

/// Registered memory. A clone is another handle of the same memory.
#[derive(Clone, Debug)]
pub struct Umem(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: Arc<Mapping>,
    /// The part of the mapping that is registered.
    part: Range<usize>,
    options: UmemOptions,
    maker: Arc<dyn SocketMaker>,
    sockets: Mutex<Sockets>,
    /// True: the memory is the program's own.
    is_own: bool,
}

/// The kernel keeps a registration with a socket; further sockets share that of one that is bound.
#[derive(Debug, Default)]
struct Sockets {
    /// Registered, and not yet bound.
    spare: Option<Spare>,
    bound: Vec<Bound>,
}

#[derive(Debug)]
struct Bound {
    socket: Weak<OwnedFd>,
    interface: u32,
    queue: u32,
}

/// A socket that the memory was registered with, not bound yet.
#[derive(Debug)]
pub(super) struct Spare {
    pub socket: OwnedFd,
    /// The lengths of its rings, once they were set: the kernel takes them once.
    pub rings: Option<RingSizes>,
}

/// A socket that knows the memory, before it is bound.
pub(super) enum Claim {
    /// The memory was registered with it.
    Registered(Spare),
    /// It shares what was registered with the other one, which is bound as long as that one's owner
    /// keeps it.
    Shares(OwnedFd, Weak<OwnedFd>),
}

impl Claim {
    pub(super) fn socket(&self) -> &OwnedFd {
        match self {
            Self::Registered(Spare { socket, .. }) | Self::Shares(socket, _) => socket,
        }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        match self {
            Self::Registered(Spare { socket, .. }) | Self::Shares(socket, _) => socket,
        }
    }

    /// Whether its rings have their lengths already.
    pub(super) fn has_rings(&self) -> bool {
        matches!(self, Self::Registered(Spare { rings: Some(_), .. }))
    }
}

impl Umem {
    /// Maps `len` bytes of zeroes and registers them. `len` is a multiple of the chunk length, and
    /// with `huge_pages` is rounded up to 2 MiB. Where the limit of locked memory is reached by
    /// what was closed just now, that is waited for ([`UmemOptions::release_timeout`]).
    ///
    /// # Errors
    /// [`XdpError::Value`], [`XdpError::NoMemory`], [`XdpError::NoHugePages`],
    /// [`XdpError::Memlock`], [`XdpError::NotPermitted`], [`XdpError::Unsupported`].
    pub fn new(len: usize, options: UmemOptions, huge_pages: bool) -> Result<Self, XdpError> {
        options.check(0, len)?;
        let too_much = XdpError::NoMemory { need_bytes: len as u64 };
        let len =
            if huge_pages { len.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(too_much)? } else { len };
        let need_bytes = len as u64;
        let pages = if huge_pages { HUGE_PAGES } else { MapFlags::empty() };
        let own = Mapping::private_with(len, MapFlags::POPULATE | pages);
        let own = own.and_then(Mapping::kept_from_children).map_err(|e| match e {
            Errno::NOMEM if huge_pages => {
                XdpError::NoHugePages { need_bytes, pages: need_bytes / HUGE_PAGE_BYTES as u64 }
            }
            Errno::NOMEM => XdpError::NoMemory { need_bytes },
            // RLIMIT_MEMLOCK with MCL_FUTURE.
            Errno::AGAIN => memlock(need_bytes),
            e => XdpError::system(format!("{need_bytes} bytes of frames"), "mmap", e),
        })?;
        Self::register(Arc::new(own), 0..len, options, Arc::new(OwnSockets), true)
    }

    /// Registers a part of a mapping of the caller's: guest RAM, a file, a composition of both. It
    /// stays mapped as long as the value and its sockets. `maker` makes the sockets.
    ///
    /// Addresses in the rings count from the start of the part. After pages are discarded
    /// (`MADV_DONTNEED` on private memory, `PUNCH_HOLE`, a balloon), an address no longer names the
    /// pages that the kernel has. Frames then go to pages that nobody sees.
    ///
    /// What is lent to the kernel (see the module) may change at any time. In zero-copy mode an
    /// interface can write to chunks of the fill ring until its queue is bound anew. This happens
    /// some milliseconds after the socket is closed. Reuse such pages for other things only when
    /// writes into them do no harm, or after that.
    ///
    /// # Errors
    /// As [`new`](Self::new), [`XdpError::NotMapped`], and those of the maker.
    pub fn of(
        memory: Arc<Mapping>,
        part: Range<usize>,
        options: UmemOptions,
        maker: Arc<dyn SocketMaker>,
    ) -> Result<Self, XdpError> {
        if part.start > part.end || part.end > memory.len() {
            let rule = format!("the memory has {} bytes", memory.len());
            return Err(XdpError::Value { name: "the end of the part", value: part.end as u64, rule });
        }
        options.check(memory.as_ptr() as usize + part.start, part.len())?;
        Self::register(memory, part, options, maker, false)
    }

    fn register(
        memory: Arc<Mapping>,
        part: Range<usize>,
        options: UmemOptions,
        maker: Arc<dyn SocketMaker>,
        is_own: bool,
    ) -> Result<Self, XdpError> {
        let sockets = Mutex::default();
        let umem = Self(Arc::new(Inner { memory, part, options, maker, sockets, is_own }));
        let spare = umem.0.registered_socket(options.release_timeout)?;
        lock(&umem.0.sockets).spare = Some(Spare { socket: spare, rings: None });
        Ok(umem)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.part.len()
    }

    /// How it is cut and used.
    #[inline]
    pub fn options(&self) -> &UmemOptions {
        &self.0.options
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.0.memory.base().map_addr(|base| base.saturating_add(self.0.part.start))
    }

    /// Checks that `len` bytes from `address` on are part of the memory, and gives them as a range.
    ///
    /// # Errors
    /// [`XdpError::Value`] with the address.
    #[inline]
    pub fn range(&self, address: u64, len: usize) -> Result<Range<usize>, XdpError> {
        let start = usize::try_from(address).ok();
        match start.and_then(|start| Some(start..start.checked_add(len)?)) {
            Some(range) if range.end <= self.len() => Ok(range),
            _ => Err(XdpError::Value {
                name: "an address",
                value: address,
                rule: format!("{len} bytes from there on are not within the {} of the memory", self.len()),
            }),
        }
    }

    /// Bytes of the memory, which are mapped, readable and writable as long as the value.
    ///
    /// A reference to them is one that nobody writes beside: the bytes are not lent to the kernel
    /// for it to write, and nobody else reads or writes them. Of bytes that are lent for sending,
    /// the kernel sends what it finds.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    #[inline]
    pub fn bytes(&self, address: u64, len: usize) -> Result<NonNull<[u8]>, XdpError> {
        let range = self.range(address, len)?;
        let start = self.base().map_addr(|base| base.saturating_add(range.start));
        Ok(NonNull::slice_from_raw_parts(start, len))
    }

    /// A socket for the memory that is not bound yet: the one that was registered, or a new one.
    /// Its fill ring may hold what was put there for a bind that failed.
    ///
    /// After the last socket was closed, the memory is registered again. The kernel may still count
    /// the old registration against the limit of locked memory. The claim waits for the kernel to
    /// release it, as long as for a busy queue.
    pub(super) fn claim(&self, interface: &Interface, options: &SocketOptions) -> Result<Claim, XdpError> {
        let mut sockets = lock(&self.0.sockets);
        if let Some(spare) = sockets.spare.take_if(|s| s.rings.is_none_or(|rings| rings == options.rings)) {
            return Ok(Claim::Registered(spare));
        }
        // Rings of other lengths take a registration of their own, once there is room for that.
        sockets.spare = None;
        sockets.bound.retain(|s| s.socket.strong_count() > 0);
        // The kernel would let such a socket share the rings of the other one, which is of no use
        // here.
        if sockets.bound.iter().any(|s| s.interface == interface.index() && s.queue == options.queue) {
            let (interface, queue) = (interface.name().to_owned(), options.queue);
            return Err(XdpError::Busy { interface, queue, waited: Duration::ZERO });
        }
        if let Some(other) = sockets.bound.first() {
            return Ok(Claim::Shares(self.0.maker.open()?, other.socket.clone()));
        }
        let socket = self.0.registered_socket(options.busy_timeout)?;
        Ok(Claim::Registered(Spare { socket, rings: None }))
    }

    /// Who opens and binds its sockets.
    pub(super) fn maker(&self) -> &dyn SocketMaker {
        &*self.0.maker
    }

    /// The queue that a socket was for is busy: it is kept with its registration, for the next
    /// claim. Registering a guest's memory takes a while, and the memory is pinned anew each time.
    pub(super) fn give_back(&self, claim: Claim, rings: RingSizes) {
        if let Claim::Registered(spare) = claim {
            lock(&self.0.sockets).spare = Some(Spare { rings: Some(rings), ..spare });
        }
    }

    /// Runs `f` with the other socket of a claim while nobody closes it; None where its owner is
    /// done with it.
    pub(super) fn with_other<R>(&self, other: &Weak<OwnedFd>, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        let sockets = lock(&self.0.sockets);
        let listed = sockets.bound.iter().any(|s| Weak::ptr_eq(&s.socket, other));
        let other = other.upgrade().filter(|_| listed)?;
        Some(f(&other))
    }

    /// A bound socket is about to be closed by its owner: from now on nobody else holds it
    /// ([`Self::with_other`]).
    pub(super) fn closes(&self, socket: &Arc<OwnedFd>) {
        lock(&self.0.sockets).bound.retain(|s| !std::ptr::eq(s.socket.as_ptr(), Arc::as_ptr(socket)));
    }

    /// Remembers a bound socket, so that others can share its registration.
    pub(super) fn bound(&self, socket: &Arc<OwnedFd>, interface: u32, queue: u32) {
        let socket = Arc::downgrade(socket);
        lock(&self.0.sockets).bound.push(Bound { socket, interface, queue });
    }
}

impl Inner {
    /// A socket that the memory is registered with. Registrations that the kernel has not released
    /// yet, of this or of other memory, may take up the limit of locked memory. If the memory fits
    /// the limit without them, this waits for them, at most `patience`.
    fn registered_socket(&self, patience: Duration) -> Result<OwnedFd, XdpError> {
        let start = Instant::now();
        loop {
            match self.try_register() {
                Err(XdpError::Memlock { need_bytes, limit_bytes })
                    if need_bytes <= limit_bytes && start.elapsed() < patience =>
                {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
                done => return done,
            }
        }
    }

    fn try_register(&self) -> Result<OwnedFd, XdpError> {
        let socket = self.maker.open()?;
        let need_bytes = self.part.len() as u64;
        let base = (self.memory.as_ptr() as usize + self.part.start) as u64;
        let registration = XdpUmemReg {
            addr: base,
            len: need_bytes,
            chunk_size: self.options.chunk_bytes,
            headroom: self.options.headroom_bytes,
            flags: self.options.flags(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&socket, registration).map_err(|e| match e {
            // The kernel says ENOBUFS past the limit; seccomp filters and old kernels say EPERM.
            Errno::NOBUFS | Errno::PERM => memlock(need_bytes),
            // ENOMEM is also said when some pages could be locked, and not all.
            Errno::NOMEM if self.is_own => XdpError::NoMemory { need_bytes },
            Errno::FAULT | Errno::NOMEM => XdpError::NotMapped { base, need_bytes },
            e => XdpError::system(
                format!("registering {need_bytes} bytes at {base:#x} with {:?}", self.options),
                "setsockopt(XDP_UMEM_REG)",
                e,
            ),
        })?;
        Ok(socket)
    }
}

pub(super) fn new_socket() -> Result<OwnedFd, XdpError> {
    let family = AddressFamily::from_raw(libc::AF_XDP as _);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::RAW, flags, None).map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => XdpError::NotPermitted,
        Errno::AFNOSUPPORT => XdpError::Unsupported,
        e => XdpError::system("a new socket", "socket(AF_XDP)", e),
    })
}

/// The limit of locked memory, if it was [read for good](read_limit_for_good).
static LIMIT: OnceLock<Option<u64>> = OnceLock::new();

/// Reads the limit of locked memory, which errors name, for a process that can't ask later.
pub fn read_limit_for_good() {
    LIMIT.get_or_init(locked_memory_limit);
}

/// The limit of locked memory, bytes; None without one.
pub fn locked_memory_limit() -> Option<u64> {
    let now = || rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    LIMIT.get().copied().unwrap_or_else(now)
}

fn memlock(need_bytes: u64) -> XdpError {
    match locked_memory_limit() {
        // Without a limit it was the memory itself.
        None => XdpError::NoMemory { need_bytes },
        Some(limit_bytes) => XdpError::Memlock { need_bytes, limit_bytes },
    }
}
