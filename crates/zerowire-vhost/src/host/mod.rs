//! What serves virtqueues, whatever device they belong to.
//!
//! A control thread has a `RingClient`, each of whose calls becomes a `RingCommand`. The thread
//! that serves the rings is a `RingThread`. `carry_out` does for it what is the same for every
//! device. Its loop is a `turns::TurnLoop`.
//!
//! **Who owns what.** A ring's descriptors and the pointers into its memory belong to its
//! `HostRing`. The serving thread has that from the ring's start to its stop. A command is answered
//! when nothing of what it replaced is in use any more.

mod client;
pub mod command;
mod kicks;
pub mod mailbox;
mod ring;
mod setup;
pub mod turns;
pub(crate) mod writers;

pub use client::{RingClient, wait_for};
pub use command::{At, RingCommand, RingThread, carry_out, refuse_all};
pub use kicks::{KickHistogram, KickTimes};
pub use ring::HostRing;
pub use setup::{RingSetup, RingState};
