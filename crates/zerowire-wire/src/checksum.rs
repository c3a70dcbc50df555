//! The internet checksum (RFC 1071).
//!
//! Words are added as they lie in memory, 32 bits at a time into 64. So no carry is lost, and the
//! compiler makes vector code of the loop. A sum in the other byte order is the same sum with its
//! bytes exchanged.

/// Bytes of a round of the inner loop.
const ROUND: usize = 64;

/// A sum of bytes that follow each other, not yet inverted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// In the machine's byte order; below 2^63 as long as less than 2^31 runs are added.
    sum: u64,
    /// An odd number of bytes so far: the next byte is the lower half of a word.
    odd: bool,
}

impl Checksum {
    /// The sum of nothing.
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Adds bytes.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.add_words(words(bytes), bytes.len());
    }

    /// Adds a run of `len` bytes whose words somebody else has added. `sum` has them as they lie in
    /// memory, 32 bits at a time, the last one filled up with zeros.
    #[inline]
    pub fn add_words(&mut self, sum: u64, len: usize) {
        let folded = fold(sum);
        self.sum += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= len % 2 == 1;
    }

    /// Adds a number that stands in a header as a word of 16 bits, wherever that is: between two
    /// runs of an even length.
    #[inline]
    pub fn add_word(&mut self, word: u16) {
        debug_assert!(!self.odd, "a word lies at an even place");
        self.sum += u64::from(word.to_be());
    }

    /// Takes a word out again that was added. The sum of nothing but it becomes 0xffff, which is
    /// the same in ones' complement.
    #[inline]
    pub fn take_word(&mut self, word: u16) {
        self.add_word(!word);
    }

    /// Adds a sum of bytes that follow.
    #[inline]
    pub fn add_sum(&mut self, other: Self) {
        self.add_words(other.sum, usize::from(other.odd));
    }

    /// The sum as a number.
    #[inline]
    pub fn folded(&self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// What belongs into a checksum field: the inverted sum.
    #[inline]
    pub fn finish(&self) -> u16 {
        !self.folded()
    }

    /// The same for a field in which 0 means "without a checksum" (RFC 768): 0xffff, which is the
    /// same number, stands for it.
    #[inline]
    pub fn finish_nonzero(&self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            n => n,
        }
    }
}

/// Both halves together until nothing is left above 16 bits.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The sum of bytes as words in the machine's byte order, the last one filled up with zeros.
#[inline]
fn words(bytes: &[u8]) -> u64 {
    let (rounds, rest) = bytes.as_chunks::<ROUND>();
    // Neighbours in a vector register: one addition each for as many words as it holds.
    let mut lanes = [0u64; ROUND / 4];
    for round in rounds {
        for (lane, word) in lanes.iter_mut().zip(round.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (whole, last) = rest.as_chunks::<4>();
    let mut tail = [0u8; 4];
    tail[..last.len()].copy_from_slice(last);
    let sum: u64 = lanes.iter().sum();
    sum + whole.iter().chain([&tail]).map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>()
}

#[cfg(test)]
mod tests;
