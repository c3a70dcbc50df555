//! Chains that were taken from the ring and not posted.

use std::collections::VecDeque;

use super::SlabSide;
use crate::port::xdp::posted::Order;
use crate::receive::Given;

/// Which chains are kept, and the order in which chains were taken.
#[derive(Debug)]
pub struct KeptChains {
    /// Numbers in `order` of the chains that are kept.
    pub(super) numbers: VecDeque<u16>,
    pub(super) order: Order,
}

impl KeptChains {
    /// None, for a ring of `ring_size` entries.
    pub(super) fn new(ring_size: u16) -> Self {
        Self { numbers: VecDeque::with_capacity(64), order: Order::new(ring_size) }
    }

    /// The last chain of the guest's side was taken, and is kept.
    #[inline]
    pub(super) fn add(&mut self, side: &SlabSide) {
        let head = side.chains.heads().next_back().unwrap_or(0);
        self.numbers.push_back(self.order.take(head));
    }
}

impl Given for KeptChains {
    const AHEAD: bool = true;

    #[inline]
    fn given(&mut self, _len: usize, chains: usize) {
        for _ in 0..chains {
            if let Some(number) = self.numbers.pop_front() {
                self.order.used(number);
            }
        }
    }
}
