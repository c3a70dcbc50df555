//! The checksum of a guest's memory.

use zerowire_vhost::memory::{Segment, access};
pub use zerowire_wire::checksum::Checksum;

/// Adds runs of guest memory.
pub trait AddGuest {
    /// Adds a run. The guest may write it meanwhile: the sum is then that of neither content.
    fn add_guest(&mut self, run: &Segment);
}

impl AddGuest for Checksum {
    #[inline]
    fn add_guest(&mut self, run: &Segment) {
        self.add_words(access::sum(run), run.len as usize);
    }
}

#[cfg(test)]
mod tests;
