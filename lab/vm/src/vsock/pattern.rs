//! Bytes that both ends can work out, without a period, so that a lost, doubled or
//! misplaced part shows and its place is known.

/// Bytes of a word.
const WORD: usize = 8;

/// The bytes of a seed: the outputs of SplitMix64 one after the other, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The pattern of a seed. Different seeds have nothing in common.
    pub fn new(seed: u64) -> Self {
        // Spread out: the words of neighbouring seeds must not be each other's, shifted.
        Self { seed: mix(seed.wrapping_add(1)) }
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        let skip = (offset % WORD as u64) as usize;
        let mut index = offset / WORD as u64;
        let (head, rest) = bytes.split_at_mut(if skip == 0 { 0 } else { (WORD - skip).min(bytes.len()) });
        if !head.is_empty() {
            let length = head.len();
            head.copy_from_slice(&self.word(index)[skip..skip + length]);
            index += 1;
        }
        for chunk in rest.chunks_mut(WORD) {
            let length = chunk.len();
            chunk.copy_from_slice(&self.word(index)[..length]);
            index += 1;
        }
    }

    /// The bytes from `offset` on, `length` of them.
    pub fn bytes(self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(offset, &mut bytes);
        bytes
    }

    /// The place of the first byte that is not the pattern's, counted from the
    /// beginning of the pattern; `bytes` should be those from `offset` on.
    pub fn first_difference(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let wanted = self.bytes(offset, bytes.len());
        if wanted == bytes {
            return None;
        }
        let place = bytes.iter().zip(&wanted).position(|(one, other)| one != other)?;
        Some(offset + place as u64)
    }

    fn word(self, index: u64) -> [u8; WORD] {
        mix(self.seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_the_same_as_in_the_whole() {
        let pattern = Pattern::new(7);
        let whole = pattern.bytes(0, 100);
        for offset in 0..40 {
            for length in 0..40 {
                assert_eq!(pattern.bytes(offset as u64, length), whole[offset..offset + length]);
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found_at_its_place() {
        let pattern = Pattern::new(0);
        let mut bytes = pattern.bytes(1000, 5000);
        assert_eq!(pattern.first_difference(1000, &bytes), None);
        bytes[4321] ^= 0x80;
        assert_eq!(pattern.first_difference(1000, &bytes), Some(5321));
        // A lost byte, and another seed.
        assert!(pattern.first_difference(1001, &pattern.bytes(1000, 5000)).is_some());
        assert!(Pattern::new(1).first_difference(0, &pattern.bytes(0, 8)).is_some());
    }
}
