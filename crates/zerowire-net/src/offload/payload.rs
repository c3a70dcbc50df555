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
}

impl Cursor {
    /// Copies the next bytes, as many as `to` has room for, and moves on behind them; less if the
    /// segments end before.
    #[inline]
    pub fn read(&mut self, segments: &[Segment], to: &mut [u8]) {
        let (len, mut done) = (to.len(), 0);
        self.take(segments, len, |run| done += access::read(&[run], 0, &mut to[done..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_each_other_and_end_with_the_segments() {
        let segments: Vec<_> = [(0x1000, 3), (0x2000, 1), (0x3000, 5)]
            .map(|(at, len)| Segment { ptr: std::ptr::without_provenance_mut(at), len, region: 7 })
            .into();
        let mut cursor = Cursor::at(&segments, 1);
        let mut next = |len| {
            let mut runs = Vec::new();
            cursor.take(&segments, len, |s| runs.push((s.ptr.addr(), s.len, s.region)));
            runs
        };
        assert_eq!(next(0), []);
        assert_eq!(next(2), [(0x1001, 2, 7)]);
        assert_eq!(next(3), [(0x2000, 1, 7), (0x3000, 2, 7)]);
        assert_eq!(next(100), [(0x3002, 3, 7)]);
        assert_eq!(next(1), []);
        assert_eq!(Cursor::at(&segments, 1000), cursor);
    }

    #[test]
    fn bytes_are_read_one_behind_the_other() {
        let bytes: Vec<u8> = (0..200).collect();
        let segments = crate::offload::testing::segments_of(&bytes, 7);
        let mut cursor = Cursor::at(&segments, 5);
        let mut to = [0; 90];
        cursor.read(&segments, &mut to);
        assert_eq!(to[..], bytes[5..95]);
        cursor.read(&segments, &mut to);
        assert_eq!(to[..], bytes[95..185]);
        cursor.read(&segments, &mut to);
        assert_eq!((&to[..15], to[15]), (&bytes[185..], 110), "no more than there is");
    }
}
