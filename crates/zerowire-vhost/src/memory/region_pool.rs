//! How many memory regions the VMs of a process may have.
//!
//! A region is a mapping; it takes two once its file was truncated, and on an AF_XDP port one more.
//! The kernel bounds the mappings of a process (vm.max_map_count, 65530 by default). So each VM has
//! [`OWN_REGIONS`] for itself, and what it has beyond that comes from a pool. One that uses the
//! pool up takes nothing from what another one is sure of.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Regions that each VM can have, whatever the others have.
pub const OWN_REGIONS: usize = 64;

/// Regions beyond these, of all VMs of the process together.
pub const SHARED_REGIONS: usize = 4096;

/// The pool of this process.
pub static POOL: RegionPool = RegionPool(AtomicUsize::new(0));

/// Regions that were taken from it.
#[derive(Debug)]
pub struct RegionPool(AtomicUsize);

/// A region of the pool; dropping it gives it back.
#[derive(Debug)]
pub struct PooledRegion(&'static RegionPool);

impl RegionPool {
    /// One more; None where all are taken.
    pub fn take(&'static self) -> Option<PooledRegion> {
        let more = |taken| (taken < SHARED_REGIONS).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| PooledRegion(self))
    }
}

impl Drop for PooledRegion {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_so_many_regions_and_gets_them_back() {
        static POOL: RegionPool = RegionPool(AtomicUsize::new(0));
        let mut taken: Vec<_> = (0..SHARED_REGIONS).map_while(|_| POOL.take()).collect();
        assert_eq!(taken.len(), SHARED_REGIONS);
        assert!(POOL.take().is_none());
        taken.truncate(SHARED_REGIONS - 2);
        let _two = (POOL.take().expect("one"), POOL.take().expect("another one"));
        assert!(POOL.take().is_none());
    }
}
