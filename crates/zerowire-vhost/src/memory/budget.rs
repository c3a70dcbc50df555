//! How much of guests' memory this process may pin.
//!
//! Registered memory (an AF_XDP UMEM) can't be swapped, ballooned or moved. The kernel bounds it by
//! RLIMIT_MEMLOCK for users without CAP_IPC_LOCK, and not at all for others. The budget is the
//! operator's own bound, for all VMs of the process together. The first request gets memory first,
//! whole or not at all. The memory comes back with its registration: no VM loses what it has to
//! another one.
//!
//! VMs that can do with a part (`pin=partial`) share: each has at most the budget divided by the
//! number of VMs. Requests for memory as a whole must leave these shares alone, so that each VM
//! gets its own whenever it comes.

use std::sync::Mutex;

use thiserror::Error;
use zerowire_sys::lock;

/// Memory would exceed the budget. The text is what the user reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{need_bytes} bytes can't be pinned: the budget (--memlock) is {limit_bytes} bytes for all VMs, of which {used_bytes} are \
     in use{}; {}use a port that pins nothing (tap, packet)",
    shares.text(),
    remedy(*enough_bytes, *shares)
)]
pub struct OverBudget {
    /// Bytes that were to be pinned.
    pub need_bytes: u64,
    /// The budget, bytes.
    pub limit_bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
    /// A budget that would do, bytes; None where none would.
    pub enough_bytes: Option<u64>,
    /// What VMs that share the budget have to do with it.
    pub shares: Shares,
}

/// What the shares of VMs with `pin=partial` have to do with memory that is over the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// No VM has one.
    None,
    /// So many bytes are kept for them.
    Kept(u64),
    /// This VM's share, of this many bytes, is too small.
    Own(u64),
}

impl Shares {
    fn text(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Kept(bytes) => format!(", and {bytes} are the shares of VMs with pin=partial"),
            Self::Own(bytes) => format!(", and {bytes} are each VM's share"),
        }
    }
}

fn remedy(enough_bytes: Option<u64>, shares: Shares) -> String {
    let raise = enough_bytes.map_or(String::new(), |bytes| format!("raise it to {bytes}, "));
    let partial = if let Shares::Own(_) = shares { "" } else { "give the port pin=partial, " };
    format!("{raise}{partial}or ")
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
        if self.limit == u64::MAX { self.limit } else { self.limit - self.shares() }
    }

    /// What is kept for the VMs that take a part.
    fn shares(&self) -> u64 {
        self.share() * self.parts
    }

    /// A budget with which `need` bytes more could be had as a whole; None where all VMs take a
    /// part.
    fn enough_for_whole(&self, need: u64) -> Option<u64> {
        let (vms, others) = (self.vms.max(1), self.vms.max(1) - self.parts);
        if others == 0 {
            return None;
        }
        let whole = self.whole.saturating_add(need).saturating_mul(vms).div_ceil(others);
        Some(whole.max(self.used.saturating_add(need)))
    }

    /// The same for a VM's share of `least` bytes.
    fn enough_for_part(&self, least: u64) -> u64 {
        least.saturating_mul(self.vms.max(1)).max(self.used.saturating_add(least))
    }
}

/// A bound on pinned memory, and what is in use of it.
#[derive(Debug)]
pub struct PinBudget(Mutex<State>);

impl PinBudget {
    const fn new(limit: u64) -> Self {
        Self(Mutex::new(State { limit, used: 0, whole: 0, vms: 1, parts: 0 }))
    }

    /// That of this process: unlimited until [`limit`](Self::limit) is called, so that the kernel's
    /// own bound is what counts.
    pub fn of_process() -> &'static Self {
        static BUDGET: PinBudget = PinBudget::new(u64::MAX);
        &BUDGET
    }

    /// Sets the bound, bytes. What is pinned stays so, also where that is more.
    pub fn limit(&self, bytes: u64) {
        lock(&self.0).limit = bytes;
    }

    /// Sets the bound where it is higher, bytes.
    pub fn limit_at_most(&self, bytes: u64) {
        let mut state = lock(&self.0);
        state.limit = state.limit.min(bytes);
    }

    /// The bound, bytes; the highest number without one.
    pub fn bound(&self) -> u64 {
        lock(&self.0).limit
    }

    /// Bytes that are in use.
    pub fn used(&self) -> u64 {
        lock(&self.0).used
    }

    /// Shares the budget among `vms` VMs, of which `parts` take what they are given.
    pub fn share_among(&self, vms: usize, parts: usize) {
        let mut state = lock(&self.0);
        (state.vms, state.parts) = (vms as u64, parts.min(vms) as u64);
    }

    /// Takes `need_bytes` of the budget until the value is dropped.
    pub fn claim(&self, need_bytes: u64) -> Result<PinClaim<'_>, OverBudget> {
        let mut state = lock(&self.0);
        let fits = |used: u64, limit: u64| used.checked_add(need_bytes).is_some_and(|sum| sum <= limit);
        if !fits(state.used, state.limit) || !fits(state.whole, state.for_whole()) {
            return Err(OverBudget {
                need_bytes,
                limit_bytes: state.limit,
                used_bytes: state.used,
                enough_bytes: state.enough_for_whole(need_bytes),
                shares: if state.parts == 0 { Shares::None } else { Shares::Kept(state.shares()) },
            });
        }
        state.used += need_bytes;
        state.whole += need_bytes;
        Ok(PinClaim { budget: self, bytes: need_bytes, whole: true })
    }

    /// Takes as much of a VM's share as there is, from `least` to `most` bytes.
    pub fn claim_part(&self, least: u64, most: u64) -> Result<PinClaim<'_>, OverBudget> {
        let mut state = lock(&self.0);
        let bytes = most.min(state.share()).min(state.limit.saturating_sub(state.used));
        if bytes < least {
            return Err(OverBudget {
                need_bytes: least,
                limit_bytes: state.limit,
                used_bytes: state.used,
                enough_bytes: Some(state.enough_for_part(least)),
                shares: Shares::Own(state.share()),
            });
        }
        state.used += bytes;
        Ok(PinClaim { budget: self, bytes, whole: false })
    }
}

/// A part of the budget; dropping it gives it back.
#[derive(Debug)]
pub struct PinClaim<'a> {
    budget: &'a PinBudget,
    bytes: u64,
    whole: bool,
}

impl PinClaim<'_> {
    /// Bytes that may be pinned.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for PinClaim<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.budget.0);
        state.used = state.used.saturating_sub(self.bytes);
        if self.whole {
            state.whole = state.whole.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
