//! What the next reads offer, from what the last frames were.

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
pub struct Forecast {
    pub(super) shape: Shape,
    mergeable: bool,
    /// How long frames are at most that the guest need not segment.
    pub(super) ordinary: usize,
    /// Frames up to this many bytes are copied when nothing but such frames comes.
    copybreak: usize,
    /// Frames in a row that would have fitted a smaller shape.
    run: u32,
    /// The longest of the frames that took several chains, since the first of them came: the next
    /// one may well be as long.
    pub(super) longest_seen: usize,
    /// The length of the last frame: the next ones are likely to be as long.
    pub(super) last_len: usize,
}

impl Forecast {
    /// For frames that are `ordinary` bytes long at most, unless the guest has to segment them.
    pub(super) fn new(mergeable: bool, ordinary: usize, copybreak: usize) -> Self {
        Self { shape: Shape::Each, mergeable, ordinary, copybreak, run: 0, longest_seen: 0, last_len: 0 }
    }

    /// The same, with nothing known of the frames.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.mergeable, self.ordinary, self.copybreak)
    }

    /// Whether a frame of `len` bytes is better copied.
    #[inline]
    pub(super) fn is_small(&self, len: usize) -> bool {
        len <= self.copybreak
    }

    /// A frame of `len` bytes took `chains` chains.
    #[inline]
    pub(super) fn note(&mut self, len: usize, chains: usize) {
        self.last_len = len;
        let small = self.is_small(len);
        let fits_one = chains == 1 && (self.mergeable || len <= self.ordinary);
        if !small && !fits_one {
            self.shape = Shape::Long;
            self.run = 0;
            self.longest_seen = self.longest_seen.max(len);
            return;
        }
        let smaller = match self.shape {
            Shape::Long => true,
            Shape::Each => small,
            Shape::Small => {
                if !small {
                    (self.shape, self.run, self.longest_seen) = (Shape::Each, 0, 0);
                } else if chains > 1 {
                    self.longest_seen = self.longest_seen.max(len);
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
mod tests;
