//! Buffers of every kind, good ones and bad ones, in zero-copy mode.

use anyhow::Result;
use zerowire_vmtest::runner::Env;

use super::Card;

/// `zw-xdp posts` in the guest.
pub fn bounds(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let words = format!("posts {}", card.interface);
    card.serve(&words)
}
