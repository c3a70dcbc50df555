//! Bytes in pieces of one length: they take hardly more memory than they are many, however many
//! come and go.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Bytes of a piece. Two of them may be partly unused at a time, the first and the last; shorter
/// ones would make longer lists, for the kernel too.
pub const PIECE: usize = 1024;

type Piece = Box<[u8; PIECE]>;

/// Pieces that a thread keeps for the bytes that wait next: as many as the default buffer of a
/// connection. Their old content is overwritten before anybody sees it.
const SPARE: usize = 256;

/// Entries of the list beyond those in use, give or take a quarter: fewer, and each message of 100
/// KiB would cost allocations.
const SPARE_ENTRIES: usize = 128;

thread_local!(static PIECES: RefCell<Vec<Piece>> = const { RefCell::new(Vec::new()) });

fn take() -> Piece {
    // A thread that is about to end has lost its list.
    let kept = PIECES.try_with(|kept| kept.borrow_mut().pop());
    kept.ok().flatten().unwrap_or_else(|| Box::new([0; PIECE]))
}

fn give(piece: Piece) {
    let _ = PIECES.try_with(|kept| keep(&mut kept.borrow_mut(), SPARE, piece));
}

/// Adds to a list that never takes more room than for `most`.
pub(super) fn keep<T>(kept: &mut Vec<T>, most: usize, one: T) {
    if kept.len() < most {
        let room = most - kept.len();
        kept.reserve_exact(room);
        kept.push(one);
    }
}

/// Makes room for one more entry, and not for twice as many.
pub(super) fn grow<T>(queue: &mut VecDeque<T>, least: usize) {
    if queue.len() == queue.capacity() {
        queue.reserve_exact(least.max(queue.len() / 8));
    }
}

/// Gives the room of entries back that are gone, but for `spare` and a quarter of those that are
/// left.
pub(super) fn shrink<T>(queue: &mut VecDeque<T>, spare: usize) {
    if queue.capacity() > queue.len() + queue.len() / 4 + spare {
        queue.shrink_to(queue.len() + queue.len() / 8);
    }
}

/// First in, first out.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// As many as `start` and `len` need.
    list: VecDeque<Piece>,
    /// Bytes of the first piece that were taken.
    start: usize,
    len: usize,
}

impl Pieces {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is worth keeping for the next bytes.
    pub fn is_small(&self) -> bool {
        self.list.is_empty() && self.list.capacity() <= 2 * SPARE_ENTRIES
    }

    /// Appends `len` bytes, which `fill` has to write, run by run: what a run has before is of no
    /// meaning.
    pub fn append(&mut self, len: usize, mut fill: impl FnMut(&mut [u8])) {
        let mut left = len;
        while left > 0 {
            let end = self.start + self.len;
            if end == self.list.len() * PIECE {
                grow(&mut self.list, SPARE_ENTRIES / 2);
                self.list.push_back(take());
            }
            let at = end % PIECE;
            let n = left.min(PIECE - at);
            if let Some(last) = self.list.back_mut() {
                fill(&mut last[at..at + n]);
            }
            self.len += n;
            left -= n;
        }
    }

    /// At most `max` bytes, `skip` bytes in, run by run.
    pub fn runs(&self, skip: usize, max: usize) -> impl Iterator<Item = &[u8]> {
        let mut left = max.min(self.len - skip);
        let from = self.start + skip;
        let mut at = from % PIECE;
        self.list.range((from / PIECE).min(self.list.len())..).map_while(move |piece| {
            let run = &piece[at..PIECE.min(at + left)];
            left -= run.len();
            at = 0;
            (!run.is_empty()).then_some(run)
        })
    }

    /// All bytes but the first `skip`, run by run, to be written.
    pub fn runs_mut(&mut self, skip: usize) -> impl Iterator<Item = &mut [u8]> {
        let mut left = self.len - skip;
        let from = self.start + skip;
        let mut at = from % PIECE;
        self.list.range_mut((from / PIECE).min(self.list.len())..).map(move |piece| {
            let run = &mut piece[at..PIECE.min(at + left)];
            left -= run.len();
            at = 0;
            run
        })
    }

    /// The first `n` bytes were taken.
    pub fn consume(&mut self, n: usize) {
        self.len -= n;
        self.start += n;
        if self.len == 0 {
            return self.clear();
        }
        while self.start >= PIECE {
            self.list.pop_front().into_iter().for_each(give);
            self.start -= PIECE;
        }
        shrink(&mut self.list, SPARE_ENTRIES);
    }

    /// The last `n` bytes go.
    pub fn drop_last(&mut self, n: usize) {
        self.len -= n;
        if self.len == 0 {
            return self.clear();
        }
        while self.list.len() * PIECE >= self.start + self.len + PIECE {
            self.list.pop_back().into_iter().for_each(give);
        }
        shrink(&mut self.list, SPARE_ENTRIES);
    }

    fn clear(&mut self) {
        self.list.drain(..).for_each(give);
        (self.start, self.len) = (0, 0);
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
