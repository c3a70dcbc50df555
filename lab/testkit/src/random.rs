//! Numbers that look random and are the same in each run.

/// A sequence of such numbers (xorshift64).
pub struct Random(u64);

impl Random {
    /// The sequence of this seed, which is not 0.
    pub fn new(seed: u64) -> Self {
        assert_ne!(seed, 0, "a seed of which nothing but 0 follows");
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`. Leaves out the lowest bits, which hardly differ behind a small seed.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 16) as usize % n
    }
}
