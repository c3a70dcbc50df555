//! For measuring: pieces that completions name are lent, dropped, collected and written to the
//! refill ring, as in a receiver. The kernel has no part in it: this module makes the completions,
//! and marks the ring as taken.

use super::super::areas::{AreaCut, Areas};
use super::super::shared::SharedIfq;
use super::super::state::{ZcrxState, recv_data};
use crate::recv::receiver::new_core;
use crate::recv::testing::connect;
use crate::recv::{Arrival, RecvError, RecvOptions, core::RecvState};
use std::sync::Arc;
use zerowire_sys::uring::wide::{CQE_F_MORE, WideCqe};
use zerowire_sys::uring::zcrx::ZcrxRegion;

const PAGE: usize = 4096;

/// See the module.
pub(in crate::recv) struct Cycle {
    core: RecvState,
    state: ZcrxState,
    shared: SharedIfq,
    /// The page that the next completion names, and how many there are.
    next: u64,
    pages: u64,
}

impl Cycle {
    /// One connection on an area of pages, of which it may hold all.
    pub(in crate::recv) fn new(options: &RecvOptions) -> Result<Self, RecvError> {
        let mut core = new_core(options)?;
        connect(&mut core);
        let Some(area) = core.pool.area(0).cloned() else { return Err(RecvError::NotAvailable("zcrx")) };
        let slots = core.holdings.slots();
        let cut = AreaCut { area_bytes: area.len(), buffer_bytes: PAGE as u32, token: 0 };
        let region =
            ZcrxRegion::alone(slots.next_power_of_two() as u32).map_err(RecvError::system("mmap"))?;
        let shared = SharedIfq::new(Areas::new(area, cut), None, Arc::new(region));
        let mut state = ZcrxState::new(slots, &core.pool, Arc::clone(&shared.areas), None);
        state.requests.add(0);
        let _ = state.next_arm(&core);
        Ok(Self { core, state, shared, next: 0, pages: slots as u64 })
    }

    /// Takes up to `count` completions of a page each.
    pub(in crate::recv) fn lend(&mut self, count: usize, out: &mut Vec<Arrival>) {
        let Self { core, state, next, pages, .. } = self;
        let mut left = count.min(core.holdings.free());
        state.take_all(core, || {
            left = left.checked_sub(1)?;
            let extra = *next * PAGE as u64;
            *next = (*next + 1) % *pages;
            Some(WideCqe { user_data: recv_data(0), result: PAGE as i32, flags: CQE_F_MORE, extra })
        });
        core.take_arrivals(out);
    }

    /// Collects what was dropped and hands it to the kernel.
    pub(in crate::recv) fn refill(&mut self) {
        self.core.collect(|slot| self.state.returned(slot));
        self.core.eased.clear();
        self.shared.publish(&mut self.state.waiting);
        self.shared.region.take_all();
    }
}
