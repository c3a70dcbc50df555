//! The buffers that C holds, by token.
//!
//! A token is a number that C may copy: the table (6 bits), the slot in it (26) and the use of that
//! slot (32). Giving a buffer back ends the use, so a second copy of the token no longer matches.
//! Receivers take the tables in turn. A table's lock is contended only when another thread gives
//! buffers back, or by more than 64 receivers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use zerowire::recv::Lease;
use zerowire_sys::lock;

const TABLE_BITS: u32 = 6;
const SLOT_BITS: u32 = 26;
const TABLES: usize = 1 << TABLE_BITS;
const SLOTS: usize = 1 << SLOT_BITS;

/// A place for a lease.
struct HeldSlot {
    /// Of the lease that is in it, or comes next: from 1 on, so that no token is 0.
    generation: u32,
    lease: Option<Lease>,
}

/// Slots, and which of them are free. They stay for the next leases, as many as were held at once.
struct HeldSlots {
    slots: Vec<HeldSlot>,
    free: Vec<u32>,
}

static HELD: [Mutex<HeldSlots>; TABLES] =
    [const { Mutex::new(HeldSlots { slots: Vec::new(), free: Vec::new() }) }; TABLES];

/// The table of a receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldTable(usize);

fn slots(table: usize) -> MutexGuard<'static, HeldSlots> {
    lock(&HELD[table % TABLES])
}

impl HeldTable {
    /// For one more receiver.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) % TABLES)
    }

    /// Opens the table, for a batch.
    pub(crate) fn open(self) -> Open {
        Open { table: self.0 as u64, slots: slots(self.0) }
    }
}

/// A table while leases are put into it.
pub(crate) struct Open {
    table: u64,
    slots: MutexGuard<'static, HeldSlots>,
}

impl Open {
    /// Whether one more fits.
    pub(crate) fn has_room(&self) -> bool {
        !self.slots.free.is_empty() || self.slots.slots.len() < SLOTS
    }

    /// Keeps a lease: its token. Ask [`Self::has_room`] before.
    pub(crate) fn keep(&mut self, lease: Lease) -> u64 {
        let HeldSlots { slots, free } = &mut *self.slots;
        let at = free.pop().map_or(slots.len(), |at| at as usize);
        if at == slots.len() {
            slots.push(HeldSlot { generation: 1, lease: None });
        }
        slots[at].lease = Some(lease);
        (u64::from(slots[at].generation) << 32) | (self.table << SLOT_BITS) | at as u64
    }
}

/// The lease of a token, once: `None` if it was taken before, or never was one.
pub(crate) fn take(token: u64) -> Option<Lease> {
    let at = token as usize % SLOTS;
    let mut held = slots((token >> SLOT_BITS) as usize % TABLES);
    let slot = held.slots.get_mut(at).filter(|slot| u64::from(slot.generation) == token >> 32)?;
    let lease = slot.lease.take()?;
    slot.generation = slot.generation.checked_add(1).unwrap_or(1);
    held.free.push(at as u32);
    Some(lease)
}
