//! How long the next message of a host program will be.

/// After this many messages in a row that are no longer than one before, the next one is expected
/// not to be longer. It is read without a look at its length; where it is longer, all of it is
/// copied once.
const SURE: u8 = 16;

/// The longest message that is expected, bytes: for longer ones a call more makes no difference.
const SHORT: u32 = 64 << 10;

/// What the messages of a connection were like so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageForecast {
    /// The longest message so far, bytes.
    longest: u32,
    /// How many came since that were no longer, up to where that counts.
    no_longer: u8,
}

impl MessageForecast {
    /// A message of `len` bytes came.
    pub fn came(&mut self, len: u32) {
        if len > self.longest {
            (self.longest, self.no_longer) = (len, 0);
        } else if self.no_longer < SURE {
            self.no_longer += 1;
        } else if self.longest > SHORT {
            // What was long may be over.
            (self.longest, self.no_longer) = (len, 0);
        }
    }

    /// How long the next message is at most, bytes, if that is known.
    pub fn expected(&self) -> Option<usize> {
        (self.no_longer >= SURE && self.longest <= SHORT).then_some(self.longest as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_messages_that_are_no_longer_tell_of_the_next_one() {
        let mut f = MessageForecast::default();
        f.came(100);
        for n in 0..16 {
            assert_eq!(f.expected(), None, "after {n}");
            f.came(n);
        }
        assert_eq!(f.expected(), Some(100));
        f.came(101);
        assert_eq!(f.expected(), None, "one was longer");
        (0..16).for_each(|_| f.came(101));
        assert_eq!(f.expected(), Some(101));
    }

    #[test]
    fn long_messages_are_measured_and_forgotten() {
        let mut f = MessageForecast::default();
        f.came(SHORT + 1);
        (0..16).for_each(|_| f.came(7));
        assert_eq!(f.expected(), None, "one as long may come");
        f.came(7);
        (0..16).for_each(|_| f.came(7));
        assert_eq!(f.expected(), Some(7));
    }
}
