//! What a batch of reads offers to the port.

use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;

use super::batch::{Read, ReadBatch, SCRATCH_BYTES, scratch_range};
use super::inlet::CopySide;
use crate::io::{Full, PortIo};
use crate::policy::MAX_IOV;

impl ReadBatch {
    /// One read for each of up to `want` chains, parsed for `need` bytes.
    #[inline]
    pub fn offer_each(
        &mut self,
        want: usize,
        need: usize,
        side: &mut CopySide,
        io: &mut PortIo,
        memory: &GuestMemory,
    ) -> Result<usize, RingError> {
        self.clear(io);
        for i in 0..want {
            if !side.ensure(i, need, memory)? {
                break;
            }
            let start = self.lists.end();
            let room = self.append(i, start, side);
            if room.and_then(|room| self.read_into((1, room), start, i, side)).is_err() {
                self.lists.truncate(start);
                break;
            }
        }
        Ok(self.reads.len())
    }

    /// Up to `want` reads, each for as many chains as hold the bytes that it needs. A read goes
    /// into its chains, or into scratch memory alone if `private`. So what arrives fits into what
    /// the guest has posted.
    #[inline]
    pub fn offer_runs(
        &mut self,
        want: usize,
        need: impl Fn(usize) -> usize,
        private: bool,
        side: &mut CopySide,
        io: &mut PortIo,
        memory: &GuestMemory,
    ) -> Result<usize, RingError> {
        self.clear(io);
        let mut first = 0;
        for read in 0..want {
            let start = self.lists.end();
            let (n, room) = self.chains_for(need(read), first, private, side, memory)?;
            let queued = n > 0
                && match private {
                    true => self.read_into((0, 0), start, read, side),
                    false => self.read_into((n, room), start, read, side),
                }
                .is_ok();
            if !queued {
                self.lists.truncate(start);
                break;
            }
            first += n;
        }
        Ok(self.reads.len())
    }

    /// How many chains from `first` on hold `need` bytes, and how many they hold; 0 where there are
    /// too few and more may come. Appends them to the scatter list, unless the read is `private`.
    #[inline]
    fn chains_for(
        &mut self,
        need: usize,
        first: usize,
        private: bool,
        side: &mut CopySide,
        memory: &GuestMemory,
    ) -> Result<(usize, usize), RingError> {
        let start = self.lists.end();
        let (mut n, mut room, mut entries) = (0, 0, 0);
        while room < need {
            let i = first + n;
            if i == side.chains.len() {
                let wanted = (need - room, (MAX_IOV - 1).saturating_sub(entries));
                let list = (!private).then_some(start);
                let Some((more, bytes)) = self.plain_chains(wanted, list, side, memory)? else {
                    return Ok((0, 0));
                };
                (n, room, entries) = (n + more, room + bytes, entries + more);
                if more > 0 {
                    continue;
                }
            }
            if !side.ensure(i, need - room, memory)? {
                // If these are all buffers that the ring can hold, the first read takes them.
                return Ok(if first == 0 && side.has_all_chains() { (n, room) } else { (0, 0) });
            }
            entries += side.chains.segments(i).len();
            if entries > MAX_IOV - 1 {
                break;
            }
            room += match private {
                true => side.chains.room(i),
                false => match self.append(i, start, side) {
                    Ok(room) => room,
                    Err(Full) => return Ok((0, 0)),
                },
            };
            n += 1;
        }
        Ok((n, room))
    }

    /// Takes up to `most` chains of the usual kind, one segment each, until they hold `need` bytes.
    /// Returns how many that is, and how many bytes they hold. Appends them to the scatter list
    /// that begins at entry `list`, if one is given; None where it has no room for them.
    #[inline]
    fn plain_chains(
        &mut self,
        (need, most): (usize, usize),
        list: Option<usize>,
        side: &mut CopySide,
        memory: &GuestMemory,
    ) -> Result<Option<(usize, usize)>, RingError> {
        let (lists, mut full) = (&mut self.lists, false);
        let each = |ptr, len| full |= list.is_some_and(|start| lists.extend(start, ptr, len).is_err());
        let taken = side.take_plain((need, most), memory, each)?;
        Ok((!full).then_some(taken))
    }

    /// Appends chain `i` to the scatter list that begins at entry `start`. Returns how many bytes
    /// it holds.
    ///
    /// # Errors
    /// It does not fit, and the list is useless.
    #[inline]
    fn append(&mut self, i: usize, start: usize, side: &CopySide) -> Result<usize, Full> {
        for s in side.chains.segments(i) {
            self.lists.extend(start, s.ptr, s.len as usize)?;
        }
        Ok(side.chains.room(i))
    }

    /// Forgets the batch before, which has run.
    #[inline]
    fn clear(&mut self, io: &mut PortIo) {
        self.lists.clear();
        self.reads.clear();
        io.clear();
    }

    /// Queues read number `read` into `n` chains, and into scratch memory behind them. The chains
    /// hold `room` bytes and are the scatter list from entry `start` on.
    ///
    /// # Errors
    /// It does not fit, and nothing was queued.
    #[inline]
    fn read_into(
        &mut self,
        (n, room): (usize, usize),
        start: usize,
        read: usize,
        side: &CopySide,
    ) -> Result<(), Full> {
        if room < side.longest() {
            self.lists.add_private(scratch_range(read, SCRATCH_BYTES))?;
        }
        self.reads.push(Read { chains: n, room, result: -libc::EAGAIN });
        self.lists.queue(read as u16, false, start);
        Ok(())
    }
}
