//! A supervisor and its confined children, whatever they serve.
//!
//! ```text
//! supervisor                       channel         child
//!  keeper: starts it, hands over ◀─────────▶ confined; descriptors and nothing else
//!  link: questions, answers
//!  lines: its log                ◀─────────  standard error
//!  sessions: of its front ends
//!  capture: its frames           ◀─────────  a socket, while they are captured
//! ```
//!
//! [`choice`] settles whether there are any. What a child serves, what it is handed and what it may
//! ask is that of the command:
//! `net/sandbox/`, `vsock/sandbox/`.

pub(crate) mod capture;
pub(crate) mod channel;
pub(crate) mod child;
mod choice;
pub(crate) mod cpu;
pub(crate) mod ending;
pub(crate) mod figures;
pub(crate) mod keeper;
pub(crate) mod lines;
pub(crate) mod link;
pub(crate) mod message;
pub(crate) mod pace;
pub(crate) mod roster;
pub(crate) mod sessions;
pub(crate) mod sums;

pub(crate) use zerowire_cli::lock;
use zerowire_confine::Owner;

use crate::access;
pub use choice::{SandboxArg, trial};
pub(crate) use choice::{obstacle, refused};

/// Nobody.
pub const NOBODY: Owner = Owner { user: 65534, group: 65534 };

/// A user with the group of the same number, or the one that /etc/passwd names.
pub fn owner(text: &str) -> Result<Owner, String> {
    let user = access::owner(text)?;
    Ok(Owner { user, group: access::main_group(text).unwrap_or(user) })
}

/// Whether this process was started as a child by `argument` alone. Only a supervisor gives such an
/// argument, so it is not in the help.
pub(crate) fn is_child(argument: &str) -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|a| a == argument) && arguments.next().is_none()
}
