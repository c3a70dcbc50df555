//! What the next reads offer, from what the last frames were.

/// Frames up to this many bytes, virtio-net header included, are copied when nothing but such frames comes: a read into
/// one private buffer and a copy cost less than a scatter list of two entries.
pub const SMALL_MAX_BYTES: usize = 1024;

/// So many frames of a kind in a row change the offer.
const RUN: u32 = 32;

/// How the next frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Many reads into private memory.
    Small,
    /// Many reads, each into one chain.
    Each,
    /// Room for the longest frame.
    Long,
}

/// The forecast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    shape: Shape,
    mergeable: bool,
    ordinary: usize,
    /// Frames in a row that would have fitted a smaller shape.
    run: u32,
    /// The longest of the frames since long ones began to come.
    longest_seen: usize,
}

impl Forecast {
    /// For frames that are `ordinary` bytes long at most, unless they are to be segmented by the guest.
    pub(super) fn new(mergeable: bool, ordinary: usize) -> Self {
        Self { shape: Shape::Each, mergeable, ordinary, run: 0, longest_seen: 0 }
    }

    #[inline]
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// How long the next frame may well be, where long ones come.
    pub(super) fn likely(&self) -> usize {
        self.longest_seen
    }

    /// Waiting for room was in vain.
    pub(super) fn settle_for_less(&mut self) {
        self.longest_seen = 0;
    }

    /// A frame of `len` bytes took `chains` chains.
    #[inline]
    pub(super) fn note(&mut self, len: usize, chains: usize) {
        let fits_one = chains == 1 && (self.mergeable || len <= self.ordinary);
        if !fits_one {
            self.shape = Shape::Long;
            self.run = 0;
            self.longest_seen = self.longest_seen.max(len);
            return;
        }
        let smaller = match self.shape {
            Shape::Long => true,
            Shape::Each => len <= SMALL_MAX_BYTES,
            Shape::Small => {
                if len > SMALL_MAX_BYTES {
                    self.shape = Shape::Each;
                    self.run = 0;
                }
                return;
            }
        };
        self.run = if smaller { self.run + 1 } else { 0 };
        if self.run >= RUN {
            self.run = 0;
            self.longest_seen = 0;
            self.shape = if self.shape == Shape::Long { Shape::Each } else { Shape::Small };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_follows_the_frames() {
        let mut f = Forecast::new(true, 1534);
        assert_eq!(f.shape(), Shape::Each);
        for _ in 0..RUN {
            f.note(76, 1);
        }
        assert_eq!(f.shape(), Shape::Small);
        f.note(1512, 1);
        assert_eq!(f.shape(), Shape::Each);
        f.note(60_012, 40);
        assert_eq!((f.shape(), f.likely()), (Shape::Long, 60_012));
        for i in 0..RUN {
            assert_eq!(f.shape(), Shape::Long, "after {i} short frames");
            f.note(76, 1);
        }
        assert_eq!((f.shape(), f.likely()), (Shape::Each, 0));
    }

    #[test]
    fn frames_at_the_bound_do_not_count_as_small() {
        let mut f = Forecast::new(true, 1534);
        for _ in 0..10 * RUN {
            f.note(SMALL_MAX_BYTES + 1, 1);
        }
        assert_eq!(f.shape(), Shape::Each);
    }

    #[test]
    fn without_mergeable_buffers_length_alone_counts() {
        let mut f = Forecast::new(false, 1534);
        f.note(1535, 1);
        assert_eq!(f.shape(), Shape::Long);
    }
}
