//! A port that one process, the supervisor, keeps open for another one, its child, which serves it.
//!
//! ```text
//!  supervisor, a KeptPort                               child, a Port
//!   hand ────────────── facts, descriptors ──────────▶   PortSpec::take_over
//!   carry_out  ◀─────── verb, descriptors ────────────   PortKeeper::ask
//!              ──────── answer, descriptors ─────────▶
//! ```
//!
//! Facts, verbs and answers are texts that the folder of the port writes and reads. Who carries
//! them reads none.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Port;
use crate::Policy;
use crate::link::LinkState;

/// What one side of a port tells the other one, with the descriptors that come along.
pub type PortText = (String, Vec<OwnedFd>);

/// A port that is open for a child.
pub trait KeptPort: Send + Sync {
    /// What the next child gets: facts and descriptors.
    ///
    /// # Errors
    /// What the user reads.
    fn hand(&self) -> Result<PortText, String>;

    /// Carries out what a child asks, which may be anything.
    fn carry_out(&self, verb: &str, fds: &[BorrowedFd<'_>]) -> PortAnswer;

    /// Queue pairs that ask in bursts, since each ring that starts takes some verbs; None where a
    /// child asks little.
    fn asking_pairs(&self) -> Option<usize> {
        None
    }

    /// The child has ended.
    fn part(&self) {}

    /// The name that the interface has now. Nobody waits for what a child has asked meanwhile.
    fn interface(&self) -> String;

    /// Whether the interface can carry frames.
    fn link_state(&self) -> LinkState {
        LinkState::by_name(&self.interface())
    }
}

/// What became of a verb.
#[derive(Debug)]
pub enum PortAnswer {
    /// It was carried out, or not; then the user reads why.
    Done(Result<PortText, String>),
    /// Nobody waits for an answer.
    Nothing,
    /// Another child has to go on with other descriptors, for this reason.
    Replace(String),
}

impl PortAnswer {
    /// Has `carry_out` carry out a verb, if the port has such a verb.
    pub(super) fn to<V: DeserializeOwned>(verb: &str, carry_out: impl FnOnce(V) -> Self) -> Self {
        let unknown = |_| Self::Done(Err("the port has no such verb".to_owned()));
        serde_json::from_str(verb).map_or_else(unknown, carry_out)
    }

    /// The answer that [`ask`] returns.
    pub(super) fn done(answer: Result<impl Serialize, String>, fds: Vec<OwnedFd>) -> Self {
        Self::Done(answer.and_then(|answer| Ok((text(&answer)?, fds))))
    }
}

/// The process that keeps a port open for this one. It may do here what this one may not.
pub trait PortKeeper: fmt::Debug + Send + Sync {
    /// A socket of any kind that was made in the port's network namespace. Requests about
    /// interfaces go by it.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Has it carry out a verb, and waits for the answer.
    ///
    /// # Errors
    /// What the user reads.
    fn ask(&self, verb: String, fds: &[BorrowedFd<'_>]) -> Result<PortText, String>;

    /// Has it carry out a verb that it does not answer.
    fn tell(&self, verb: String);

    /// Whether it answers nothing any more. This process ends then, and with it all that was done
    /// for it.
    fn has_left(&self) -> bool {
        false
    }
}

/// What a child takes its port over by.
pub struct PortParts<'a> {
    /// What [`KeptPort::hand`] returned.
    pub facts: &'a str,
    /// The descriptors that came along, of which the port takes its own.
    pub fds: &'a mut dyn Iterator<Item = OwnedFd>,
    /// Who keeps the port.
    pub keeper: Arc<dyn PortKeeper>,
}

impl PortParts<'_> {
    pub(super) fn facts<F: DeserializeOwned>(&self) -> Result<F, String> {
        serde_json::from_str(self.facts).map_err(|e| format!("what is known of its port: {e}"))
    }

    /// The next descriptor.
    pub(super) fn fd(&mut self) -> Result<OwnedFd, String> {
        self.fds.next().ok_or_else(|| "a descriptor is missing".to_owned())
    }
}

/// A port that is open, or was taken over, for a policy.
pub struct OpenPort(pub(crate) Box<dyn FnOnce(Policy) -> Box<dyn Port> + Send>);

impl OpenPort {
    pub(super) fn new<P: Port + 'static>(of: impl FnOnce(Policy) -> P + Send + 'static) -> Self {
        Self(Box::new(move |policy| Box::new(of(policy))))
    }
}

/// Has the other process carry out a verb of a port, and waits for the answer.
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
