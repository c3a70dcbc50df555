//! How much a run moves.

use zerowire_cli::logging;

/// A build without optimisation shows that a measurement works. Its figures mean nothing, so its
/// runs are short.
const SHARE: usize = if cfg!(debug_assertions) { 8 } else { 1 };

/// What a run moves for which an optimised build moves `count`: bytes, frames or round trips.
pub(crate) fn amount(count: usize) -> usize {
    (count / SHARE).max(1)
}

/// Tells the user of a build without optimisation; `is_shortened`: its runs are short.
pub fn warn_if_slow(is_shortened: bool) {
    if SHARE > 1 {
        let shortened = if is_shortened { "runs move an eighth, and " } else { "" };
        logging::say(&format!(
            "zerowire-bench: this build is not optimised: {shortened}the figures mean nothing; build it with --release"
        ));
    }
}
