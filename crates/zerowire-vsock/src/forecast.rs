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
mod tests;
