//! What the program `zerowire` and those of the lab share: how they read a command line, log, speak
//! and end.
//!
//! The program `zerowire` itself is the binary of this package.
// They panic where nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod af_vsock;
pub mod bar;
pub mod columns;
pub mod logging;
pub mod outcome;
pub use zerowire_sys::signal as signals;
pub mod tips;
mod wrong;

pub use wrong::WrongArguments;
pub use zerowire_sys::lock;
