//! The dirty log in zero-copy mode.

use anyhow::Result;
use zerowire_vmtest::runner::Env;

use super::Card;

/// `zw-xdp dirty` in the guest.
pub fn exact(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let words = format!("dirty {}", card.interface);
    card.serve(&words)
}
