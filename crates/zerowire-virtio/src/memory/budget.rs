//! How much of guests' memory this process may pin.
//!
//! Registered memory (an AF_XDP UMEM, io_uring's fixed buffers) can't be swapped, ballooned or moved. The kernel bounds it by
//! RLIMIT_MEMLOCK for users without CAP_IPC_LOCK and not at all for others; the budget is the operator's own bound, for all VMs
//! of the process together. What is asked for first is given first, whole or not at all, and comes back with its
//! registration: no VM loses what it has to another one.
//!
//! VMs that can do with a part (`--pin partial`) share: each has at most the budget divided by the number of VMs, and what is
//! asked for as a whole has to leave their shares alone, so that each gets its own whenever it comes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

/// Memory would exceed the budget. The text is what the user reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{need_bytes} bytes can't be pinned: the budget (--memlock) is {limit_bytes} bytes for all VMs, of which {used_bytes} are \
     in use; raise it to {}, give --pin partial, or use a port that pins nothing (tap with --pin off)",
    used_bytes.saturating_add(*need_bytes)
)]
pub struct OverBudget {
    /// Bytes that were to be pinned.
    pub need_bytes: u64,
    /// The budget, bytes.
    pub limit_bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
}

#[derive(Debug)]
struct State {
    limit: u64,
    used: u64,
    /// Of that, what was asked for as a whole.
    whole: u64,
    /// VMs, and those of them that take a part.
    vms: u64,
    parts: u64,
}

impl State {
    /// What one of the VMs that take a part gets at most.
    fn share(&self) -> u64 {
        self.limit / self.vms.max(1)
    }

    /// What all together may have as a whole.
    fn for_whole(&self) -> u64 {
        if self.limit == u64::MAX { self.limit } else { self.limit - self.share() * self.parts }
    }
}

/// A bound on pinned memory, and what is in use of it.
#[derive(Debug)]
pub struct PinBudget(Mutex<State>);

impl PinBudget {
    const fn new(limit: u64) -> Self {
        Self(Mutex::new(State { limit, used: 0, whole: 0, vms: 1, parts: 0 }))
    }

    /// That of this process: unlimited until [`limit`](Self::limit) is called, so that the kernel's own bound is what counts.
    pub fn of_process() -> &'static Self {
        static BUDGET: PinBudget = PinBudget::new(u64::MAX);
        &BUDGET
    }

    /// Sets the bound, bytes. What is pinned stays so, also where that is more.
    pub fn limit(&self, bytes: u64) {
        self.state().limit = bytes;
    }

    /// Sets the bound where it is higher, bytes.
    pub fn limit_at_most(&self, bytes: u64) {
        let mut state = self.state();
        state.limit = state.limit.min(bytes);
    }

    /// Bytes that are in use.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Shares the budget among `vms` VMs, of which `parts` take what they are given.
    pub fn share_among(&self, vms: usize, parts: usize) {
        let mut state = self.state();
        (state.vms, state.parts) = (vms as u64, parts.min(vms) as u64);
    }

    /// Takes `need_bytes` of the budget until the value is dropped.
    pub(crate) fn claim(&self, need_bytes: u64) -> Result<PinClaim<'_>, OverBudget> {
        let mut state = self.state();
        let (limit_bytes, limit) = (state.for_whole(), state.limit);
        let fits = |used: u64, limit: u64| used.checked_add(need_bytes).is_some_and(|sum| sum <= limit);
        if !fits(state.used, limit) || !fits(state.whole, limit_bytes) {
            let used_bytes = if limit_bytes == limit { state.used } else { state.whole };
            return Err(OverBudget { need_bytes, limit_bytes, used_bytes });
        }
        state.used += need_bytes;
        state.whole += need_bytes;
        Ok(PinClaim { budget: self, bytes: need_bytes, whole: true })
    }

    /// Takes as much of a VM's share as there is, from `least` to `most` bytes.
    pub(crate) fn claim_part(&self, least: u64, most: u64) -> Result<PinClaim<'_>, OverBudget> {
        let mut state = self.state();
        let bytes = most.min(state.share()).min(state.limit.saturating_sub(state.used));
        if bytes < least {
            let (limit_bytes, used_bytes) = (state.limit, state.used);
            return Err(OverBudget { need_bytes: least, limit_bytes, used_bytes });
        }
        state.used += bytes;
        Ok(PinClaim { budget: self, bytes, whole: false })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of the budget; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct PinClaim<'a> {
    budget: &'a PinBudget,
    bytes: u64,
    whole: bool,
}

impl PinClaim<'_> {
    /// Bytes that may be pinned.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for PinClaim<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes);
        if self.whole {
            state.whole = state.whole.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_had_again() {
        let budget = PinBudget::new(100);
        let first = budget.claim(60).expect("within the budget");
        let error = budget.claim(41).expect_err("too much");
        assert_eq!(error, OverBudget { need_bytes: 41, limit_bytes: 100, used_bytes: 60 });
        assert!(error.to_string().contains("raise it to 101"), "{error}");
        let second = budget.claim(40).expect("exactly what is left");
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 40);
        budget.limit(10);
        assert!(budget.claim(1).is_err(), "more is in use than there may be");
        drop(second);
        assert!(budget.claim(u64::MAX).is_err() && budget.claim(10).is_ok());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn each_vm_has_its_share_whoever_comes_first() {
        let budget = PinBudget::new(100);
        budget.share_among(3, 2);
        let a = budget.claim_part(10, 1000).expect("a share");
        assert_eq!(a.bytes(), 33);
        // The third VM, which takes all or nothing, leaves the others' shares alone.
        assert!(budget.claim(35).is_err());
        let whole = budget.claim(34).expect("what is left");
        assert!(budget.claim(1).is_err());
        let b = budget.claim_part(10, 20).expect("less than its share");
        assert_eq!((b.bytes(), budget.used()), (20, 87));
        let error = budget.claim_part(34, 34).expect_err("more than its share");
        assert_eq!(error.need_bytes, 34);
        drop((a, b, whole));
        assert_eq!(budget.used(), 0);
        budget.share_among(1, 0);
        assert!(budget.claim(100).is_ok());
    }

    #[test]
    fn without_a_bound_each_has_what_it_wants() {
        let budget = PinBudget::new(u64::MAX);
        budget.share_among(2, 2);
        assert_eq!(budget.claim_part(1, 1 << 40).expect("all of it").bytes(), 1 << 40);
        assert!(budget.claim(1 << 40).is_ok());
    }
}
