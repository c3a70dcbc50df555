//! What time it is for the connections of a group.

#[cfg(feature = "testing")]
use std::time::Duration;
use std::time::Instant;

/// The monotonic clock. Tests and fuzz targets can let time pass without waiting for it.
#[derive(Debug, Default)]
pub(super) struct Clock {
    #[cfg(feature = "testing")]
    passed: Duration,
}

impl Clock {
    /// Now.
    #[cfg(not(feature = "testing"))]
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// Now, and what was let pass.
    #[cfg(feature = "testing")]
    pub fn now(&self) -> Instant {
        Instant::now() + self.passed
    }

    /// Lets time pass.
    #[cfg(feature = "testing")]
    pub fn pass(&mut self, time: Duration) {
        self.passed += time;
    }
}
