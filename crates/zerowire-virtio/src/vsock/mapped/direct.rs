//! Payload that stays in the guest's memory: its descriptors are lent until the program releases the window.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::memory::{GuestMemory, ReadOnlyRegion, Segment};

/// How long a program may hold a direct window before further payload is copied: the guest's descriptors are few.
pub const HOLD_TIME: Duration = Duration::from_millis(50);

/// What was lent to a program.
#[derive(Debug)]
pub struct Direct {
    /// Pieces of guest memory that the program has mapped: their identity, region, and place in it.
    pieces: Vec<(u64, u32, u64)>,
    /// Heads of the chains in each window.
    heads: Vec<Vec<u16>>,
    /// When each window was published.
    since: Vec<Option<Instant>>,
    /// Chains of windows that came back and are filled again already.
    back: Vec<u16>,
    lent: usize,
}

impl Direct {
    /// For a program that has these regions mapped.
    pub fn new(regions: &[ReadOnlyRegion], windows: u32) -> Self {
        let pieces = regions.iter().enumerate();
        Self {
            pieces: pieces
                .flat_map(|(i, r)| r.pieces.iter().map(move |(id, at)| (*id, i as u32, *at)))
                .collect(),
            heads: vec![Vec::new(); windows as usize],
            since: vec![None; windows as usize],
            back: Vec::new(),
            lent: 0,
        }
    }

    /// Where a segment lies for the program: region and offset. None where it has not mapped that memory.
    pub fn place(&self, memory: &GuestMemory, s: &Segment) -> Option<(u32, u64)> {
        let piece = memory.pieces().get(usize::from(s.piece))?;
        let (_, region, start) = self.pieces.iter().find(|(id, ..)| *id == piece.id())?;
        Some((*region, start + (s.ptr.addr() - piece.ptr().addr()) as u64))
    }

    /// The window came back and is filled anew: what it held before must not be taken for what it holds now.
    pub fn begin(&mut self, window: u32) {
        if self.since[window as usize].take().is_some() {
            self.back.append(&mut self.heads[window as usize]);
        }
    }

    /// A chain is lent as a part of this window.
    pub fn lend(&mut self, window: u32, head: u16) {
        self.heads[window as usize].push(head);
        self.lent += 1;
    }

    /// The window was published.
    pub fn published(&mut self, window: u32) {
        if !self.heads[window as usize].is_empty() {
            self.since[window as usize] = Some(Instant::now());
        }
    }

    /// Chains that are lent.
    pub fn lent(&self) -> usize {
        self.lent
    }

    /// Whether the program holds a window for too long.
    pub fn is_held(&self) -> bool {
        self.lent > 0 && self.since.iter().flatten().any(|at| at.elapsed() > HOLD_TIME)
    }

    /// Windows that were published and hold chains.
    pub fn out(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.heads.len() as u32).filter(|w| self.since[*w as usize].is_some())
    }

    /// Whether chains of windows that are filled again wait to be taken back.
    pub fn has_back(&self) -> bool {
        !self.back.is_empty()
    }

    /// Chains of windows that are filled again already.
    pub fn take_begun(&mut self, heads: &mut Vec<u16>) {
        self.lent -= self.back.len();
        heads.append(&mut self.back);
    }

    /// The window came back: its chains are the guest's again.
    pub fn take_back(&mut self, window: u32, heads: &mut Vec<u16>) {
        let own = &mut self.heads[window as usize];
        self.lent -= own.len();
        heads.append(own);
        self.since[window as usize] = None;
    }

    /// All chains, of windows that came back or not.
    pub fn take_all(&mut self, heads: &mut Vec<u16>) {
        self.take_begun(heads);
        for w in 0..self.heads.len() as u32 {
            self.take_back(w, heads);
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
