//! Whether what waits for a guest waits for its receive buffers, and for how many of them.
//!
//! ```text
//!  Flowing --no buffer--> Starved --a batch, or any after 64 turns--> Flowing
//!     ^                      | 1 ms
//!     |  something moved     v
//!     +--------------------Retry --no buffer--> StarvedAny --any one--> Retry
//! ```

/// Turns after which any buffer of a starved guest will do.
const STARVED_TURNS: u32 = 64;

/// The state of a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxState {
    /// Nothing waits for buffers.
    Flowing,
    /// Something waits for a batch of buffers.
    Starved {
        /// Turns for which it has.
        turns: u32,
    },
    /// The wait for a batch has timed out: what is posted is used.
    Retry,
    /// That did not suffice: the next buffer wakes the thread.
    StarvedAny {
        /// Turns for which something has waited.
        turns: u32,
    },
}

impl RxState {
    /// Whether something waits for buffers.
    #[inline]
    pub fn is_starved(self) -> bool {
        matches!(self, Self::Starved { .. } | Self::StarvedAny { .. })
    }

    /// Whether something waits for a batch.
    pub fn waits_for_batch(self) -> bool {
        matches!(self, Self::Starved { .. })
    }

    /// Whether a single buffer is to wake the thread.
    pub fn takes_any(self) -> bool {
        matches!(self, Self::Retry | Self::StarvedAny { .. })
    }

    /// No buffer is left for what waits.
    pub fn starve(&mut self) {
        *self = match *self {
            Self::Flowing => Self::Starved { turns: 0 },
            Self::Retry => Self::StarvedAny { turns: 0 },
            starved => starved,
        };
    }

    /// There may be buffers: the guest has posted what was waited for, or it notifies.
    pub fn feed(&mut self) {
        *self = match *self {
            Self::Starved { .. } => Self::Flowing,
            Self::StarvedAny { .. } => Self::Retry,
            fed => fed,
        };
    }

    /// A turn in which `posted` buffers are there, where `batch` are waited for. Returns whether
    /// these are enough.
    pub fn look(&mut self, posted: u16, batch: u16) -> bool {
        let (Self::Starved { turns } | Self::StarvedAny { turns }) = self else { return true };
        *turns = turns.saturating_add(1);
        let enough = posted >= batch || (*turns > STARVED_TURNS && posted > 0);
        if enough {
            self.feed();
        }
        enough
    }

    /// Something went into buffers.
    pub fn moved(&mut self) {
        *self = match *self {
            Self::Retry => Self::Flowing,
            Self::StarvedAny { turns } => Self::Starved { turns },
            patient => patient,
        };
    }

    /// The time to wait for buffers is over. Returns whether they were waited for.
    pub fn give_up(&mut self) -> bool {
        let was_starved = self.is_starved();
        if was_starved {
            *self = Self::Retry;
        }
        was_starved
    }
}

#[cfg(test)]
mod tests;
