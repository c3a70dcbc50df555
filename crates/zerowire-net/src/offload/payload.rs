//! A place in a guest's segments, which moves on as the frame is cut.

use zerowire_vhost::memory::{Segment, access};

/// How far the segments have been gone through. It belongs to one scatter list: with another one it
/// names other bytes, and never any outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    index: usize,
    offset: u32,
}

impl Cursor {
    /// `skip` bytes behind the first one.
    #[inline]
    pub fn at(segments: &[Segment], skip: usize) -> Self {
        let mut cursor = Self::default();
        cursor.take(segments, skip, |_| {});
        cursor
    }

    /// Gives the next `len` bytes to `each`, run by run, and moves on behind them; less if the
    /// segments end before.
    #[inline]
    pub fn take(&mut self, segments: &[Segment], len: usize, mut each: impl FnMut(Segment)) {
        let mut left = len;
        while left > 0
            && let Some(s) = segments.get(self.index)
        {
            let here = s.len.saturating_sub(self.offset);
            let n = (here as usize).min(left) as u32;
            if n > 0 {
                each(Segment { ptr: s.ptr.wrapping_add(self.offset as usize), len: n, region: s.region });
            }
            left -= n as usize;
            if n == here {
                (self.index, self.offset) = (self.index + 1, 0);
            } else {
                self.offset += n;
            }
        }
    }

    /// Copies the next bytes, as many as `to` has room for, and moves on behind them; less if the
    /// segments end before.
    #[inline]
    pub fn read(&mut self, segments: &[Segment], to: &mut [u8]) {
        let (len, mut done) = (to.len(), 0);
        self.take(segments, len, |run| done += access::read(&[run], 0, &mut to[done..]));
    }
}

#[cfg(test)]
mod tests;
