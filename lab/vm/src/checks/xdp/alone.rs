//! Ports in zero-copy mode that `zw-xdp` in the guest checks by itself: this program only serves
//! the frames of the card.

use anyhow::Result;
use zerowire_vmtest::runner::Env;

use super::Card;

/// Cycles of attaching and detaching. A cycle takes an emulated guest 0.2 to 0.5 s, in which the
/// driver resets queues and waits for its RCU several times. What is held has to be exactly as
/// before, so one leak in 50 cycles is seen. The hundreds of cycles in copy mode are those
/// of zerowire-net's test xdp_leaks.
const CYCLES: u32 = 50;

/// Ports come and go, and nothing is left behind.
pub fn cycles(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    card.serve(&format!("cycles {} {CYCLES}", card.interface))
}

/// The dirty log has the pages of what the guest was given, and no other.
pub fn dirty(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    card.serve(&format!("dirty {}", card.interface))
}

/// Buffers of every kind, good ones and bad ones.
pub fn posts(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    card.serve(&format!("posts {}", card.interface))
}
