//! The areas of a registration: one at the start, and those that were added (`ZCRX_CTRL_ADD_AREA`,
//! Linux 7.3).
//!
//! ```text
//!  area 0 | b0 | b1 | ...          a completion names area and offset in one word: token | offset;
//!  area 1 | b0 | b1 | b2 | ...     an entry of the refill ring gives them back in the same form
//! ```
//! The kernel takes free buffers of the first area that has any. It uses an area as soon as it was
//! added, for all rings of the registration. So a receiver may get a completion with a token that
//! it doesn't know. It then looks here, where the receiver that adds holds the lock until it has
//! noted the kernel's answer. Areas can't be taken away again, so tokens stay as they are.

use crate::area::Area;
use crate::recv::lease::MOST_ADDED;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerowire_sys::lock;
use zerowire_sys::uring::zcrx::AREA_SHIFT;

/// How an area is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct AreaCut {
    /// Its bytes.
    pub(super) area_bytes: usize,
    /// Bytes of a buffer, the same in all areas.
    pub(super) buffer_bytes: u32,
    /// Its number, above an offset's bits.
    pub(super) token: u64,
}

impl AreaCut {
    /// The bits of an offset that are the area's number.
    pub(super) const TOKEN: u64 = !((1 << AREA_SHIFT) - 1);

    /// Its buffers.
    pub(super) fn buffers(&self) -> usize {
        self.area_bytes / self.buffer_bytes.max(1) as usize
    }
}

/// All areas of one registration. See the module.
#[derive(Debug)]
pub(super) struct Areas {
    first: AreaCut,
    list: Mutex<Vec<(Area, AreaCut)>>,
    buffers: AtomicUsize,
}

impl Areas {
    /// One area.
    pub(super) fn new(area: Area, cut: AreaCut) -> Self {
        Self { first: cut, list: Mutex::new(vec![(area, cut)]), buffers: AtomicUsize::new(cut.buffers()) }
    }

    /// Bytes of a buffer.
    pub(super) fn buffer_bytes(&self) -> u32 {
        self.first.buffer_bytes
    }

    /// How many there are. It waits while one is being registered.
    pub(super) fn count(&self) -> usize {
        lock(&self.list).len()
    }

    /// Buffers of all of them.
    pub(super) fn buffers(&self) -> usize {
        self.buffers.load(Ordering::Relaxed)
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.buffers() * self.first.buffer_bytes as usize
    }

    /// One more, whose `area_bytes` are whole buffers: `register` makes it the kernel's, and gives
    /// its token. `None`: there are as many as there can be.
    pub(super) fn add(
        &self,
        area: Area,
        area_bytes: usize,
        register: impl FnOnce() -> io::Result<u64>,
    ) -> Option<io::Result<AreaCut>> {
        let mut list = lock(&self.list);
        if list.len() > MOST_ADDED {
            return None;
        }
        let token = match register() {
            Ok(token) => token,
            Err(e) => return Some(Err(e)),
        };
        if token & !AreaCut::TOKEN != 0 || list.iter().any(|(_, cut)| cut.token == token) {
            return Some(Err(io::Error::other(format!("the kernel names the new area {token:#x}"))));
        }
        let cut = AreaCut { area_bytes, token, ..self.first };
        list.push((area, cut));
        self.buffers.fetch_add(cut.buffers(), Ordering::Relaxed);
        Some(Ok(cut))
    }

    /// Those behind the first `known`; waits for one that is being added.
    pub(super) fn after(&self, known: usize) -> Vec<(Area, AreaCut)> {
        let list = lock(&self.list);
        list.get(known..).unwrap_or_default().to_vec()
    }
}

/// How many leases one connection may have, while areas are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// What was asked for.
    pub(super) asked: Option<usize>,
    /// Buffers of the program's length, of all areas.
    pub(super) buffers: usize,
}

impl Share {
    /// The share of `slots` leases at a time.
    pub(super) fn of(&self, slots: usize) -> usize {
        let whole = self.buffers.max(1);
        let share = self.asked.unwrap_or(whole / 4);
        (share.min(whole) * slots / whole).max(1)
    }
}

#[cfg(test)]
mod tests;
