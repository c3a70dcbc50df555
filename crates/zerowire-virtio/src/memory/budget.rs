//! How much of guests' memory this process may pin.
//!
//! Registered memory (an AF_XDP UMEM, io_uring's fixed buffers) can't be swapped, ballooned or moved. The kernel bounds it by
//! RLIMIT_MEMLOCK for users without CAP_IPC_LOCK and not at all for others; the budget is the operator's own bound, for all VMs
//! of the process together. What is asked for first is given first, whole or not at all, and comes back with its
//! registration: no VM loses what it has to another one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

/// Memory would exceed the budget. The text is what the user reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{need_bytes} bytes can't be pinned: the budget (--memlock) is {limit_bytes} bytes for all VMs, of which {used_bytes} are \
     in use; raise it to {}, or use a port that pins nothing (tap with --pin off)",
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
}

/// A bound on pinned memory, and what is in use of it.
#[derive(Debug)]
pub struct PinBudget(Mutex<State>);

impl PinBudget {
    const fn new(limit: u64) -> Self {
        Self(Mutex::new(State { limit, used: 0 }))
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

    /// Bytes that are in use.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Takes `need_bytes` of the budget until the value is dropped.
    pub(crate) fn claim(&self, need_bytes: u64) -> Result<PinClaim<'_>, OverBudget> {
        let mut state = self.state();
        match state.used.checked_add(need_bytes).filter(|sum| *sum <= state.limit) {
            Some(sum) => state.used = sum,
            None => return Err(OverBudget { need_bytes, limit_bytes: state.limit, used_bytes: state.used }),
        }
        Ok(PinClaim { budget: self, bytes: need_bytes })
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
}

impl Drop for PinClaim<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes);
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
}
