//! Chains that are made once and offered as often as wanted, and receive buffers made of them.

use std::collections::VecDeque;

use super::{BufferPiece, DESC_LEN, DESC_NEXT, DESC_WRITE, DriverRing, Used, write_desc_at};
use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice};

/// Indirect tables in guest memory, one a chain (virtio 1.3 §2.7.5.3).
#[derive(Debug)]
pub(crate) struct IndirectTables {
    memory: GuestSlice,
    /// Descriptors of each table.
    entries: usize,
}

impl IndirectTables {
    /// Memory for `count` tables of `entries` descriptors.
    pub(crate) fn new(
        memory: &GuestMemory,
        count: usize,
        entries: usize,
    ) -> Result<IndirectTables, GuestError> {
        Ok(IndirectTables { memory: memory.allocate(count * entries * DESC_LEN, 64)?, entries })
    }

    /// The most descriptors of a table.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Writes table `number`.
    #[inline]
    pub(crate) fn write(&self, number: usize, pieces: &[BufferPiece]) {
        for (at, piece) in pieces.iter().enumerate() {
            let mut flags = if at + 1 < pieces.len() { DESC_NEXT } else { 0 };
            if piece.writable {
                flags |= DESC_WRITE;
            }
            let index = number * self.entries + at;
            write_desc_at(&self.memory, index, piece.addr.0, piece.len, flags, at as u16 + 1);
        }
    }

    /// Adds the chain in table `number`, whose pieces these are. False when no descriptor is free.
    #[inline]
    pub(crate) fn add(
        &self,
        ring: &mut DriverRing,
        number: usize,
        pieces: &[BufferPiece],
        token: u32,
    ) -> bool {
        let offset = number * self.entries * DESC_LEN;
        let table = GuestAddr(self.memory.guest_addr().0 + offset as u64);
        let writable = pieces.iter().filter(|piece| piece.writable).map(|piece| piece.len).sum();
        ring.add_indirect(table, (pieces.len() * DESC_LEN) as u32, writable, token)
    }
}

/// Chains by number, with indirect tables or without.
#[derive(Debug)]
pub(crate) struct PreparedChains {
    /// Pieces of all chains, `most` a chain.
    pieces: Vec<BufferPiece>,
    most: usize,
    /// Pieces in use, by chain.
    counts: Vec<u16>,
    tables: Option<IndirectTables>,
}

impl PreparedChains {
    /// `count` chains of `most` pieces at most, empty as yet.
    pub(crate) fn new(
        memory: &GuestMemory,
        count: usize,
        most: usize,
        indirect: bool,
    ) -> Result<PreparedChains, GuestError> {
        let tables = match indirect {
            true => Some(IndirectTables::new(memory, count, most)?),
            false => None,
        };
        let nothing = BufferPiece { addr: GuestAddr(0), len: 0, writable: false };
        Ok(PreparedChains { pieces: vec![nothing; count * most], most, counts: vec![0; count], tables })
    }

    /// Makes chain `number` of `pieces`.
    pub(crate) fn set(&mut self, number: usize, pieces: impl IntoIterator<Item = BufferPiece>) {
        let chain = &mut self.pieces[number * self.most..(number + 1) * self.most];
        let mut count = 0;
        for (place, piece) in chain.iter_mut().zip(pieces) {
            *place = piece;
            count += 1;
        }
        self.counts[number] = count;
        if let Some(tables) = &self.tables {
            tables.write(number, self.get(number));
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
        match &self.tables {
            Some(tables) => tables.add(ring, number, self.get(number), token),
            None => ring.add(self.get(number), token),
        }
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
