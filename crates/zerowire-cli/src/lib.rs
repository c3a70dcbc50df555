//! What the demonstrations and the commands share: how they speak, and how they show the ledger.
//!
//! The program `zerowire` itself is the binary of this package.

pub mod columns;
pub mod story;
