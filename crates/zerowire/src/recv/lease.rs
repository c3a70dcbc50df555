//! Received bytes, lent to the program, and the memory that they lie in.

use super::refill::{Back, Returns};
use crate::area::Area;
use rustix::event::{EventfdFlags, eventfd};
use std::any::Any;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Slot of a lease of no bytes, which has nothing to give back.
const NO_SLOT: u32 = u32::MAX;

/// The most areas that are added to those at the start; io_uring has 1024 of one registration
/// (`ZCRX_MAX_AREAS`).
pub(crate) const MOST_ADDED: usize = 1023;

/// What a receiver and all of its leases share. It goes away with the last of them.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Keeps the memory mapped.
    first: Area,
    /// The same of areas that were added later: places for as many as there can be.
    added: OnceLock<Box<[OnceLock<Area>]>>,
    /// The list of slots that came back.
    pub(crate) returns: Returns,
    bell: OwnedFd,
    /// See [`Pool::keep`].
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Pool {
    /// The memory of `first`, and room for `slots` leases at a time.
    pub(crate) fn new(first: Area, slots: usize) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let added = OnceLock::new();
        Ok(Self { first, added, returns: Returns::new(slots), bell, kept: OnceLock::new() })
    }

    /// Keeps a value as long as the pool: one that, when it is dropped, lets others write the
    /// memory.
    pub(crate) fn keep(&self, value: Arc<dyn Any + Send + Sync>) {
        let _ = self.kept.set(value);
    }

    /// The memory.
    #[inline]
    pub(crate) fn area(&self, index: usize) -> Option<&Area> {
        if index == 0 { Some(&self.first) } else { self.added.get()?.get(index - 1)?.get() }
    }

    /// Takes one more area, which gets the next index. False: there are [`MOST_ADDED`] already. The
    /// receiver's thread only.
    pub(crate) fn add(&self, area: Area) -> bool {
        let places = self.added.get_or_init(|| (0..MOST_ADDED).map(|_| OnceLock::new()).collect());
        places.iter().find(|p| p.get().is_none()).is_some_and(|p| p.set(area).is_ok())
    }

    /// Readable when a slot came back while the receiver slept.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell unreadable again.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    #[cold]
    fn ring(&self) {
        // The only failure is a counter at its end, which is readable as well.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The receiver goes, and `lent` leases were not collected: they keep the memory until the last
    /// of them is dropped.
    pub(super) fn close(this: &Arc<Self>, lent: u32) {
        let leave = || std::mem::forget(Arc::clone(this));
        if this.returns.close(lent, leave) {
            // SAFETY: `leave` was called, which left one count behind, and no lease will take it.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(this)) };
        }
    }
}

/// Received bytes, in place. Read-only; any thread may hold it, as long as it likes.
///
/// Dropping it gives its buffer back: with one exchange of a word, and no system call unless the
/// receiver sleeps until a buffer is free. It may outlive the receiver and the connection. A lease
/// keeps a whole buffer ([`RecvOptions::buffer_bytes`](super::RecvOptions::buffer_bytes)), however
/// few its bytes. A program that wants to keep a few bytes for long copies them.
#[must_use = "dropping the lease gives the buffer back"]
pub struct Lease {
    /// As `Arc::as_ptr` gives it. The receiver keeps it alive until it has closed the pool; after
    /// that the leases that are out do. This lease is one of them until it has pushed its slot.
    /// Dangling in a lease without a slot.
    pool: NonNull<Pool>,
    at: NonNull<u8>,
    len: u32,
    slot: u32,
}

// SAFETY: a lease is a shared slice of memory that nobody writes while it lives, and a handle to a
// pool, which is `Sync`.
unsafe impl Send for Lease {}
// SAFETY: as above.
unsafe impl Sync for Lease {}

/// Bytes that the kernel has filled and let go of, under a slot that was taken from the book.
#[derive(Debug)]
pub(crate) struct Filled {
    area: usize,
    offset: usize,
    len: usize,
    slot: u32,
}

impl Filled {
    /// The bytes `offset..offset + len` of area `area`.
    ///
    /// # Safety
    /// The kernel has let go of these bytes, and nobody writes them before the slot has come back
    /// over the pool's list. No other value stands for the same slot.
    pub(crate) unsafe fn new(area: usize, offset: usize, len: usize, slot: u32) -> Self {
        Self { area, offset, len, slot }
    }

    /// The first `len` bytes of the buffer that the slot is, in back ends in which a slot is a
    /// buffer.
    ///
    /// # Safety
    /// As [`Filled::new`].
    pub(crate) unsafe fn buffer(slot: u32, len: usize, buffer_bytes: usize) -> Self {
        Self { area: 0, offset: slot as usize * buffer_bytes, len: len.min(buffer_bytes), slot }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Lease {
    /// Lends what was filled. `None` when it does not lie in the pool's memory. Whoever keeps the
    /// pool counts this lease in [`Pool::close`], before it lets go of the pool.
    pub(crate) fn new(pool: &Arc<Pool>, filled: Filled) -> Option<Self> {
        let Filled { area, offset, len, slot } = filled;
        let memory = pool.area(area)?;
        if offset.checked_add(len)? > memory.len() {
            return None;
        }
        let at = NonNull::new(memory.base().wrapping_add(offset))?;
        let pool = NonNull::new(Arc::as_ptr(pool).cast_mut())?;
        Some(Self { pool, at, len: u32::try_from(len).ok()?, slot })
    }

    /// A lease of nothing: an empty datagram.
    pub(crate) fn empty() -> Self {
        Self { pool: NonNull::dangling(), at: NonNull::dangling(), len: 0, slot: NO_SLOT }
    }
}

impl Deref for Lease {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `new` checked that the bytes lie in the pool's memory, which was zeroed at the
        // start and is mapped while `pool` lives. The maker of the `Filled` vouches that nobody
        // writes them.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if self.slot == NO_SLOT {
            return;
        }
        let pool = self.pool.as_ptr().cast_const();
        let hold = || {
            // SAFETY: this lease keeps the pool alive until its slot is pushed, and this is before
            // that.
            unsafe {
                Arc::increment_strong_count(pool);
                Arc::from_raw(pool)
            }
        };
        // SAFETY: as above; after the push the pool is touched only as the answer allows.
        match unsafe { (*pool).returns.push(self.slot, hold) } {
            Back::Listed | Back::Late => {}
            Back::Wake(pool) => pool.ring(),
            // SAFETY: the count that the receiver left behind is this lease's, the last one.
            Back::Last => unsafe { Arc::decrement_strong_count(pool) },
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("len", &self.len).field("slot", &self.slot).finish()
    }
}
