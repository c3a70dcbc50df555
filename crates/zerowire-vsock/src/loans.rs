//! Chains of a VM's transmit ring that are lent to programs.

use super::mapped::DirectChain;

/// How many are lent, and which are owed to the guest.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Descriptors of the ring that are lent.
    pub(super) descriptors: usize,
    /// Chains that are the guest's again, and whose ring lies in memory that is gone for the
    /// moment.
    pub(super) owed: Vec<u16>,
}

impl Loans {
    /// Whether any chain is lent.
    pub(super) fn any(&self) -> bool {
        self.descriptors > 0
    }

    /// Whether a chain may be lent, of a ring of this size: at most half of it is.
    pub(super) fn may_lend(&self, chain: DirectChain, size: usize) -> bool {
        self.descriptors + usize::from(chain.descriptors) <= size / 2
    }

    /// Whether so large a part of a ring of this size is lent that any chain which comes back
    /// helps.
    pub(super) fn are_many(&self, size: usize) -> bool {
        self.descriptors > size / 4
    }

    /// A chain is lent.
    pub(super) fn lend(&mut self, chain: DirectChain) {
        self.descriptors += usize::from(chain.descriptors);
    }

    /// A chain came back.
    pub(super) fn end(&mut self, chain: DirectChain) {
        self.descriptors = self.descriptors.saturating_sub(usize::from(chain.descriptors));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_half_of_a_ring_is_lent() {
        let (mut loans, chain) = (Loans::default(), DirectChain { head: 3, descriptors: 2 });
        assert!(!loans.any() && !loans.are_many(16));
        for lent in [2, 4, 6, 8] {
            assert!(loans.may_lend(chain, 16));
            loans.lend(chain);
            assert_eq!((loans.descriptors, loans.are_many(16)), (lent, lent > 4));
        }
        assert!(!loans.may_lend(chain, 16) && !loans.may_lend(chain, 0));
        loans.end(chain);
        assert!(loans.may_lend(chain, 16) && loans.any());
    }
}
