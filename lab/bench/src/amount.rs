//! How much a run moves.

/// A build without optimisation shows that a measurement works. Its figures mean nothing, so its
/// runs are short.
const SHARE: usize = if cfg!(debug_assertions) { 8 } else { 1 };

/// What a run moves for which an optimised build moves `count`: bytes, frames or round trips.
pub(crate) fn amount(count: usize) -> usize {
    (count / SHARE).max(1)
}
