//! Payload that stays in the guest's memory: its descriptors are lent until the program releases
//! the window.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use zerowire_vhost::memory::{GuestMemory, ReadOnlyRegion, Segment};

/// A chain that is lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectChain {
    /// Its head.
    pub head: u16,
    /// Descriptors of the ring's table that it takes: with an indirect table one.
    pub descriptors: u16,
}

/// What of one window is lent.
#[derive(Debug, Default)]
struct WindowLoan {
    chains: Vec<DirectChain>,
    /// When the first of these was lent.
    since: Option<Instant>,
    /// The program has the window.
    published: bool,
}

/// What was lent to a program.
///
/// How many chains may be lent is bounded for all of a VM's connections together; this keeps the
/// bound in time. Chains can't be taken back while the program may read them. So past the hold time
/// nothing more is lent to it, until all is back.
#[derive(Debug)]
pub struct Direct {
    /// The identities of the regions that the program has mapped.
    regions: Vec<u64>,
    /// For each window.
    loans: Vec<WindowLoan>,
    /// Chains of windows that came back and are filled again already.
    back: Vec<DirectChain>,
    /// Chains that are lent, those in `back` included.
    pub lent: usize,
    /// How long a chain may be lent before further payload is copied.
    hold: Duration,
    /// One was lent for longer, and not all are back yet.
    overdue: bool,
}

impl Direct {
    /// For a program that has these regions mapped.
    pub fn new(regions: &[ReadOnlyRegion], windows: u32, hold: Duration) -> Self {
        Self {
            regions: regions.iter().map(|r| r.id).collect(),
            loans: (0..windows).map(|_| WindowLoan::default()).collect(),
            back: Vec::new(),
            lent: 0,
            hold,
            overdue: false,
        }
    }

    /// Where a segment lies for the program: region and offset. None where it has not mapped that
    /// memory.
    pub fn place(&self, memory: &GuestMemory, s: &Segment) -> Option<(u32, u64)> {
        let region = memory.regions().get(usize::from(s.region))?;
        let index = self.regions.iter().position(|id| *id == region.id())?;
        Some((index as u32, (s.ptr.addr() - region.ptr().addr()) as u64))
    }

    /// The window came back and is filled anew: what it held before must not be taken for what it
    /// holds now.
    pub fn begin(&mut self, window: u32) {
        let loan = &mut self.loans[window as usize];
        if std::mem::take(&mut loan.published) {
            self.back.append(&mut loan.chains);
            loan.since = None;
        }
    }

    /// A chain is lent as a part of this window.
    pub fn lend(&mut self, window: u32, chain: DirectChain, now: Instant) {
        let loan = &mut self.loans[window as usize];
        loan.chains.push(chain);
        loan.since.get_or_insert(now);
        self.lent += 1;
    }

    /// The window was published.
    pub fn published(&mut self, window: u32) {
        let loan = &mut self.loans[window as usize];
        loan.published = !loan.chains.is_empty();
    }

    /// Descriptors of the ring that the lent chains take.
    #[cfg(feature = "testing")]
    pub fn descriptors(&self) -> usize {
        let chains = self.loans.iter().flat_map(|l| &l.chains).chain(&self.back);
        chains.map(|c| usize::from(c.descriptors)).sum()
    }

    /// Whether more may be lent: not from the moment on that a chain is lent for longer than the
    /// hold time, until all are back.
    pub fn may_lend(&mut self, now: Instant) -> bool {
        if self.lent == 0 {
            self.overdue = false;
        } else if !self.overdue {
            let late = |at: &Instant| now.saturating_duration_since(*at) > self.hold;
            self.overdue = self.loans.iter().filter_map(|l| l.since.as_ref()).any(late);
        }
        !self.overdue
    }

    /// Whether the program has this window, and chains with it.
    pub fn is_out(&self, window: u32) -> bool {
        self.loans[window as usize].published
    }

    /// Windows for which that is so.
    pub fn out(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.loans.len() as u32).filter(|w| self.is_out(*w))
    }

    /// Whether chains of windows that are filled again wait to be taken back.
    pub fn has_back(&self) -> bool {
        !self.back.is_empty()
    }

    /// Chains of windows that are filled again already.
    pub fn take_begun(&mut self, chains: &mut Vec<DirectChain>) {
        self.lent -= self.back.len();
        chains.append(&mut self.back);
    }

    /// The window came back: its chains are the guest's again.
    pub fn take_back(&mut self, window: u32, chains: &mut Vec<DirectChain>) {
        let loan = &mut self.loans[window as usize];
        self.lent -= loan.chains.len();
        chains.append(&mut loan.chains);
        (loan.since, loan.published) = (None, false);
    }

    /// All chains, of windows that came back or not.
    pub fn take_all(&mut self, chains: &mut Vec<DirectChain>) {
        self.take_begun(chains);
        for w in 0..self.loans.len() as u32 {
            self.take_back(w, chains);
        }
    }
}

/// The table of regions that goes to the program: for each its offset in the file, and its length.
pub fn region_table(regions: &[ReadOnlyRegion]) -> Vec<u8> {
    regions.iter().flat_map(|r| [r.offset.to_le_bytes(), r.len.to_le_bytes()]).flatten().collect()
}

/// The descriptors of the regions, in the same order.
pub fn files(regions: &[ReadOnlyRegion]) -> impl Iterator<Item = &OwnedFd> {
    regions.iter().map(|r| &r.file)
}
