//! A guest's memory, registered once for all queue pairs of its device.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zerowire_sys::xdp::{SocketMaker, Umem, UmemOptions, XdpError};
use zerowire_vhost::memory::{Composite, GuestMemory, Region, Segment};

use super::geometry::{CHUNK_BYTES, Geometry, PADDING_BYTES};
use super::handed::{Pinned, XdpAccess};
use super::slab::{HEAD_BYTES, PAIR_BYTES, PLACE_BYTES, head_at, receive_place_at, send_place_at};
use crate::port::xdp::XdpPin;

/// The registration, and what is needed to find a byte in it.
#[derive(Debug)]
pub struct VmUmem {
    pub(super) umem: Umem,
    _pinned: Pinned,
    composite: Composite,
    pub(super) geometry: Geometry,
    /// By queue pair: whether its part of the slab is in use.
    taken: Box<[AtomicBool]>,
    /// No other registration of this process has it.
    pub(super) id: u64,
    /// Bytes of the guest's memory, registered or not.
    memory_bytes: u64,
    spoilt: AtomicBool,
    /// The regions of the memory that it was made of.
    regions: Vec<u64>,
}

/// A queue pair's part of the slab, which no other value has. It keeps the registration.
#[derive(Debug)]
pub struct Slab {
    umem: Arc<VmUmem>,
    pair: usize,
    start: NonNull<u8>,
    /// Where it begins in the UMEM, bytes.
    at: u64,
}

// SAFETY: memory that belongs to no thread; one worker has the value.
unsafe impl Send for Slab {}

/// The kernel's limit was in the way: what a VM's owner can do about it, who can't have the memory
/// made smaller.
fn over_limit(error: XdpError, pin: XdpPin, is_confined: bool) -> XdpError {
    let XdpError::Memlock { need_bytes, limit_bytes } = error else { return error };
    let partial = match pin {
        XdpPin::All => ", or give the port pin=partial",
        // The registration asked for as much as the limit allows: other programs of the user have a
        // part of it.
        XdpPin::Partial => ", or give a --memlock below what other programs of this user leave",
        XdpPin::Off => "",
    };
    let capability = if is_confined { "CAP_IPC_LOCK and CAP_SYS_RESOURCE" } else { "CAP_IPC_LOCK" };
    let text = format!(
        "{need_bytes} bytes can't be locked: the limit of locked memory is {limit_bytes} bytes for all programs of this user; \
         raise it ('ulimit -l {}', or LimitMEMLOCK= in a unit), grant {capability}{partial}",
        need_bytes.div_ceil(1024)
    );
    XdpError::System {
        what: "guest memory and what belongs to it".to_owned(),
        call: "registration",
        cause: io::Error::other(text),
    }
}

impl VmUmem {
    /// Maps `memory`, or what of it may be pinned, a second time and registers that, with a slab
    /// for each of `pairs` queue pairs. All that is registered is pinned.
    ///
    /// # Errors
    /// Those of [`Umem::of`]; [`XdpError::System`] where memory can't be mapped, or
    /// exceeds the [budget](zerowire_vhost::memory::PinBudget).
    pub fn new(
        memory: &GuestMemory,
        geometry: Geometry,
        pairs: usize,
        pin: XdpPin,
        access: &XdpAccess,
    ) -> Result<Self, XdpError> {
        let mmap = |cause: io::Error| XdpError::System {
            what: format!("{} bytes of guest memory", memory.len()),
            call: "mmap",
            cause,
        };
        let slab = pairs * PAIR_BYTES;
        let beside = (PADDING_BYTES + slab) as u64;
        let most = if pin == XdpPin::Off { beside } else { beside + memory.len() };
        let claim = access.pin(beside, most);
        let claim = claim.map_err(|e| XdpError::System {
            what: format!("{} bytes of guest memory and what belongs to it", memory.len()),
            call: "registration",
            cause: io::Error::other(e),
        })?;
        let composite = Composite::new(memory, claim.bytes - beside, PADDING_BYTES, slab).map_err(mmap)?;
        let options = UmemOptions {
            chunk_bytes: CHUNK_BYTES,
            headroom_bytes: geometry.headroom_bytes(),
            unaligned: true,
            ..UmemOptions::default()
        };
        // No reference into the guest's part is ever made; those into the slab follow the rules of
        // `Slab`. What a late write into a buffer of a guest that is gone would change belongs to
        // that guest.
        let (range, part) = composite.range();
        let umem = Umem::of(range, part, options, Arc::new(access.clone()));
        let umem = umem.map_err(|e| over_limit(e, pin, access.is_confined()))?;
        let regions = memory.regions().iter().map(Region::id).collect();
        let memory_bytes = memory.len();
        let spoilt = AtomicBool::new(false);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let taken = (0..pairs).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { umem, _pinned: claim, composite, geometry, taken, id, memory_bytes, spoilt, regions })
    }

    /// Bytes of the guest's memory, where not all of it is registered: those that are, and all.
    pub fn part(&self) -> Option<(u64, u64)> {
        let bytes = self.composite.guest_bytes();
        (bytes < self.memory_bytes).then_some((bytes, self.memory_bytes))
    }

    /// Bytes of the registered memory whose pages are not the guest's any more; None if there are
    /// none, or nobody can tell.
    pub fn discarded(&self) -> Option<u64> {
        self.composite.discarded().filter(|bytes| *bytes > 0)
    }

    /// No other socket may use it from now on.
    pub fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
    }

    /// Whether it may be used for another socket.
    pub fn is_sound(&self) -> bool {
        !self.spoilt.load(Ordering::Relaxed)
    }

    /// Whether it is made of this memory.
    pub fn is_of(&self, memory: &GuestMemory) -> bool {
        memory.regions().iter().map(Region::id).eq(self.regions.iter().copied())
    }

    /// Whether `len` bytes from `address` on lie in one page: further ones need not be neighbours
    /// for a device.
    #[inline]
    pub fn in_one_page(&self, address: u64, len: u32) -> bool {
        let start = (self.composite.base().addr().get() as u64).wrapping_add(address);
        let last = start.wrapping_add(u64::from(len.max(1)) - 1);
        let page = if address < self.slab_at() { self.composite.smallest_page() } else { 4096 };
        (start ^ last) < page as u64
    }

    /// Where the slab begins, bytes: all of the guest's memory lies before it.
    #[inline]
    pub fn slab_at(&self) -> u64 {
        self.composite.slab_at() as u64
    }

    /// Where a segment of the memory begins in the UMEM, bytes; None where not all of it is part of
    /// that.
    #[inline]
    pub fn address(&self, segment: &Segment) -> Option<u64> {
        self.composite.address(segment)
    }

    /// The slab of a queue pair; None while that is in use.
    pub fn slab(self: &Arc<Self>, pair: usize) -> Option<Slab> {
        if self.taken.get(pair)?.swap(true, Ordering::Acquire) {
            return None;
        }
        let at = self.composite.slab_at() + pair * PAIR_BYTES;
        let start = self.composite.base().map_addr(|base| base.saturating_add(at));
        Some(Slab { umem: Arc::clone(self), pair, start, at: at as u64 })
    }
}

impl Slab {
    /// The head of loan `number`: its bytes, and its address in the UMEM. Not while the kernel has
    /// it.
    #[inline]
    pub fn head(&mut self, number: usize) -> (&mut [u8], u64) {
        self.part(head_at(number), HEAD_BYTES)
    }

    /// A place for a frame to send. Not while the kernel has it.
    #[inline]
    pub fn send_place(&mut self, place: u16) -> (&mut [u8], u64) {
        self.part(send_place_at(place), PLACE_BYTES)
    }

    /// The chunk of a place for a frame to receive.
    #[inline]
    pub fn receive_chunk(&self, place: u16) -> u64 {
        self.at + receive_place_at(place) as u64
    }

    /// `len` bytes from `offset` on of a place that a frame was received into. Not while the kernel
    /// has it.
    #[inline]
    pub fn received(&mut self, place: u16, offset: usize, len: usize) -> &mut [u8] {
        let offset = offset.min(PLACE_BYTES);
        self.part(receive_place_at(place) + offset, len.min(PLACE_BYTES - offset)).0
    }

    #[inline]
    fn part(&mut self, offset: usize, len: usize) -> (&mut [u8], u64) {
        // SAFETY: offsets are those of places within PAIR_BYTES, and lengths end with their place.
        // These bytes are mapped as long as `umem`, and this value's alone (see `VmUmem::slab`).
        // Callers don't ask for what the kernel has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) };
        (bytes, self.at + offset as u64)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(taken) = self.umem.taken.get(self.pair) {
            taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{BorrowedFd, OwnedFd};

    use zerowire_sys::xdp::OwnSockets;
    use zerowire_vhost::memory::RegionConfig;

    use super::*;
    use crate::port::xdp::XdpSpec;
    use crate::port::xdp::handed::{XdpAnswer, XdpOutcome, XdpVerb};
    use crate::port::{PortKeeper, PortText, kept};

    /// Opens sockets, and lets all memory be pinned.
    #[derive(Debug)]
    struct Opens;

    impl PortKeeper for Opens {
        fn socket(&self) -> BorrowedFd<'_> {
            unreachable!("a port has one of its own")
        }

        fn ask(&self, verb: String, _fds: &[BorrowedFd<'_>]) -> Result<PortText, String> {
            let (answer, fds) = match serde_json::from_str(&verb).expect("a verb") {
                XdpVerb::Pin { most_bytes, .. } => (XdpAnswer::Number(most_bytes), Vec::new()),
                XdpVerb::Open => (XdpAnswer::Done, vec![OwnSockets.open().map_err(|e| e.to_string())?]),
                _ => (XdpAnswer::Done, Vec::new()),
            };
            Ok((kept::text(&XdpOutcome::Ok(answer))?, fds))
        }

        fn tell(&self, _verb: String) {}
    }

    fn file_of(len: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, len).expect("its length");
        file
    }

    /// Needs the right to open an AF_XDP socket.
    #[test]
    fn a_part_of_the_slab_has_one_owner_at_a_time() {
        const LEN: u64 = 2 << 20;
        let region = RegionConfig { guest_addr: 0, len: LEN, user_addr: 0, offset: 0, file: file_of(LEN) };
        let memory = GuestMemory::new(vec![region]).expect("guest memory");
        let access = XdpAccess::take_over(&XdpSpec::new("none"), file_of(1), Arc::new(Opens));
        let umem = VmUmem::new(&memory, Geometry::new(1500, false), 2, XdpPin::Off, &access);
        let umem = Arc::new(umem.unwrap_or_else(|e| panic!("{e}")));
        let slab = |pair| umem.slab(pair);
        let (mut first, mut second) = (slab(0).expect("free"), slab(1).expect("free"));
        assert!(slab(0).is_none() && slab(1).is_none() && slab(2).is_none());
        for (value, slab) in [(1, &mut first), (2, &mut second)] {
            slab.head(0).0.fill(value);
            slab.received(u16::MAX, 0, PLACE_BYTES).fill(value);
        }
        assert_eq!((first.head(0).0[0], second.head(0).0[0]), (1, 2));
        drop(first);
        assert!(slab(0).is_some() && slab(1).is_none());
        assert!(slab(0).is_some(), "the one before has gone");
    }
}
