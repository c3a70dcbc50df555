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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 as it is written there.
    fn simple(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn of(bytes: &[u8]) -> Checksum {
        let mut sum = Checksum::new();
        sum.add(bytes);
        sum
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum.folded(), sum.finish()), (0xddf2, !0xddf2));
        assert_eq!(of(&[0xff, 0xff]).finish_nonzero(), 0xffff);
        assert_eq!((of(&[]).finish(), of(&[0x12]).folded()), (0xffff, 0x1200));
    }

    #[test]
    fn nothing_overflows() {
        let ones = vec![0xff; 1 << 20];
        assert_eq!(of(&ones).folded(), 0xffff);
        let mut many = Checksum::new();
        for _ in 0..1000 {
            many.add(&ones[..65_535]);
        }
        assert_eq!(many.folded(), simple(&ones[..2]));
    }

    #[test]
    fn a_word_can_be_replaced() {
        let mut sum = of(&[0x12, 0x34, 0xab, 0xcd]);
        sum.take_word(0xabcd);
        sum.add_word(0x0102);
        assert_eq!(sum.folded(), of(&[0x12, 0x34, 0x01, 0x02]).folded());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_cut_of_any_bytes_has_the_sum_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            shift in 0usize..8,
        ) {
            let shift = shift.min(bytes.len());
            let bytes = &bytes[shift..];
            let mut cuts: Vec<_> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut runs, mut sums, mut at) = (Checksum::new(), Checksum::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let run = &bytes[at..cut];
                runs.add(run);
                sums.add_sum(of(run));
                at = cut;
            }
            // 0 and 0xffff are the same number; only all zeros have the former.
            prop_assert_eq!(runs.folded(), simple(bytes));
            prop_assert_eq!(sums.folded(), simple(bytes));
        }
    }
}
