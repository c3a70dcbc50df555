//! A port that one process keeps open for another one, its child, which serves it.
//!
//! What the two sides of a port tell each other are texts. Who carries them reads none.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An answer with the descriptors that come along, or what the user reads.
pub type PortReply = Result<(String, Vec<OwnedFd>), String>;

/// The process that keeps a port open for this one. It may do here what this one may not.
pub trait PortKeeper: fmt::Debug + Send + Sync {
    /// A socket of any kind that was made in the port's network namespace. Requests about
    /// interfaces go by it.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Has it carry out a verb, and waits for that. Descriptors come along.
    ///
    /// # Errors
    /// What the user reads.
    fn ask(&self, verb: String, fds: &[BorrowedFd<'_>]) -> PortReply;

    /// Has it carry out a verb that it does not answer.
    fn tell(&self, verb: String);

    /// Whether it answers nothing any more. This process ends then, and with it all that was done
    /// for it.
    fn has_left(&self) -> bool {
        false
    }
}

/// Has the other process carry out a verb of a port, and waits for that. Descriptors come along.
///
/// # Errors
/// What the user reads.
pub(super) fn ask<A: DeserializeOwned>(
    keeper: &dyn PortKeeper,
    verb: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(A, Vec<OwnedFd>), String> {
    let (answer, fds) = keeper.ask(text(verb)?, fds)?;
    let another = |_| "the supervisor answers another question".to_owned();
    Ok((serde_json::from_str(&answer).map_err(another)?, fds))
}

/// What one side of a port tells the other one.
pub(super) fn text(told: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(told).map_err(|e| e.to_string())
}
