//! Ports in zero-copy mode come and go, and nothing is left behind.

use anyhow::Result;
use zerowire_vmtest::runner::Env;

use super::Card;

/// Cycles of attaching and detaching. A cycle takes an emulated guest 0.2 to 0.5 s, in which the
/// driver resets queues and waits for its RCU several times. What is held has to be exactly as
/// before, so one leak in 50 cycles is seen. The hundreds of cycles in copy mode are those
/// of zerowire-net's test xdp_leaks.
const CYCLES: u32 = 50;

/// `zw-xdp cycles` in the guest.
pub fn many(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let words = format!("cycles {} {CYCLES}", card.interface);
    card.serve(&words)
}
