//! The checksum of a guest's memory.

use zerowire_vhost::memory::{Segment, access};
pub use zerowire_wire::checksum::Checksum;

/// Adds a run of guest memory. The guest may write it meanwhile: the sum is then that of neither
/// content.
#[inline]
pub fn add_guest(sum: &mut Checksum, run: &Segment) {
    sum.add_words(access::sum(run), run.len as usize);
}

#[cfg(test)]
mod tests;
