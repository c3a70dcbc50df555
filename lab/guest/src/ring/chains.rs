//! Chains that are made once and offered as often as wanted, and receive buffers made of them.

use std::collections::VecDeque;

use super::{BufferPiece, DESC_LEN, DriverRing, Used, write_desc_at};
use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice};

/// Chains by number, with indirect tables (virtio 1.3 §2.7.5.3) or without.
#[derive(Debug)]
pub(crate) struct PreparedChains {
    /// Pieces of all chains, `most` a chain.
    pieces: Vec<BufferPiece>,
    most: usize,
    /// Pieces in use, by chain.
    counts: Vec<u16>,
    /// A table of `most` descriptors a chain.
    tables: Option<GuestSlice>,
}

impl PreparedChains {
    /// `count` chains of `most` pieces at most, empty as yet.
    pub(crate) fn new(
        memory: &GuestMemory,
        count: usize,
        most: usize,
        indirect: bool,
    ) -> Result<PreparedChains, GuestError> {
        let tables = indirect.then(|| memory.allocate(count * most * DESC_LEN, 64)).transpose()?;
        let nothing = BufferPiece { addr: GuestAddr(0), len: 0, writable: false };
        Ok(PreparedChains { pieces: vec![nothing; count * most], most, counts: vec![0; count], tables })
    }

    /// The most pieces of a chain.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Makes chain `number` of `pieces`.
    #[inline]
    pub(crate) fn set(&mut self, number: usize, pieces: impl IntoIterator<Item = BufferPiece>) {
        let base = number * self.most;
        let mut count = 0;
        for (place, piece) in self.pieces[base..base + self.most].iter_mut().zip(pieces) {
            *place = piece;
            count += 1;
        }
        self.counts[number] = count;
        let Some(tables) = &self.tables else { return };
        for (at, piece) in (0..count).zip(self.get(number)) {
            let (flags, next) = (piece.flags(at + 1 == count), at + 1);
            write_desc_at(tables, base + usize::from(at), piece.addr.0, piece.len, flags, next);
        }
    }

    /// The pieces of chain `number`.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> &[BufferPiece] {
        let base = number * self.most;
        &self.pieces[base..base + usize::from(self.counts[number])]
    }

    /// Adds chain `number` to the ring. False when the ring is full.
    #[inline]
    pub(crate) fn add(&self, ring: &mut DriverRing, number: usize, token: u32) -> bool {
        let pieces = self.get(number);
        let Some(tables) = &self.tables else { return ring.add(pieces, token) };
        let table = GuestAddr(tables.guest_addr().0 + (number * self.most * DESC_LEN) as u64);
        let writable = pieces.iter().filter(|piece| piece.writable).map(|piece| piece.len).sum();
        ring.add_indirect(table, (pieces.len() * DESC_LEN) as u32, writable, token)
    }
}

/// Receive buffers by number, each a chain.
#[derive(Debug)]
pub(crate) struct PostedBuffers {
    chains: PreparedChains,
    /// Buffers not posted, the longest unused first.
    pub idle: VecDeque<u32>,
    /// Buffers that the device has.
    pub posted: usize,
    /// The most that it may have.
    pub limit: usize,
}

impl PostedBuffers {
    /// Buffers for [`PostedBuffers::post`]; none is posted yet.
    pub(crate) fn new(chains: PreparedChains, limit: usize) -> PostedBuffers {
        let idle = (0..chains.counts.len() as u32).collect();
        PostedBuffers { chains, idle, posted: 0, limit }
    }

    /// Adds idle buffers until the ring is full or the limit is reached.
    #[inline]
    pub(crate) fn post(&mut self, ring: &mut DriverRing) {
        while self.posted < self.limit {
            let Some(&buffer) = self.idle.front() else { break };
            if !self.chains.add(ring, buffer as usize, buffer) {
                break;
            }
            self.idle.pop_front();
            self.posted += 1;
        }
    }

    /// Takes a buffer that the device gave back; its number is the token.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`].
    #[inline]
    pub(crate) fn reap(&mut self, ring: &mut DriverRing) -> Result<Option<Used>, GuestError> {
        let used = ring.reap()?;
        self.posted -= usize::from(used.is_some());
        Ok(used)
    }

    /// Address and bytes of every piece, posted or not: what the device may write.
    pub(crate) fn writable(&self) -> impl Iterator<Item = (GuestAddr, u32)> {
        self.chains.pieces.iter().map(|piece| (piece.addr, piece.len))
    }
}
