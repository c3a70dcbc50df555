//! One ring for many senders.

use super::EngineError;
use super::core::EngineState;
use crate::area::Area;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use zerowire_sys::lock;
use zerowire_sys::uring::ring::Threads;
use zerowire_wire::setters;

/// What happens when an area can't be registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// An error.
    Required,
    /// Payloads are sent from it all the same, at the price of looking their pages up;
    /// [`Engine::describe`] says why.
    #[default]
    IfAllowed,
}

/// How an engine is made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Payloads that one system call may hand over: 1 to 32768, rounded up to a power of two.
    pub submissions: u32,
    /// Notifications that fit the shared queue. Set it to about as many as are lent at a time. The
    /// kernel keeps further ones and loses none, but each round then costs a system call.
    pub completions: u32,
    /// Which threads use the engine and its senders.
    pub threads: Threads,
    /// What happens when an area can't be registered.
    pub registration: Registration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            submissions: 256,
            completions: 4096,
            threads: Threads::One,
            registration: Registration::IfAllowed,
        }
    }
}

impl EngineOptions {
    setters! {
        submissions: u32,
        completions: u32,
        threads: Threads,
        registration: Registration,
    }

    /// For a sender alone: as many completions as it lends at a time by default, in little locked
    /// memory.
    pub(crate) fn for_one_sender() -> Self {
        Self { submissions: 64, completions: 1024, ..Self::default() }
    }
}

/// One io_uring for many senders: `Sender::on` puts a socket on it. It holds the areas that are
/// registered, and costs one descriptor (and one of a pipe) however many sockets there are. It must
/// not be used, nor dropped with senders that lend, in a child after `fork`: the ring's memory is
/// not there.
///
/// A sender's calls read the notifications of all senders of its engine; each sender reports its
/// own.
#[derive(Clone)]
pub struct Engine(Arc<User>);

/// The handle that `Engine`s share: the core counts it as one user. Callers' callbacks are called
/// without the core's lock.
struct User {
    core: Arc<Mutex<EngineState>>,
    watch: OnceLock<Arc<OwnedFd>>,
}

impl Drop for User {
    fn drop(&mut self) {
        lock(&self.core).users -= 1;
    }
}

impl Engine {
    /// Sets the ring up and registers the areas.
    ///
    /// # Errors
    /// [`EngineError::Refused`] where io_uring is forbidden or absent; with
    /// [`Registration::Required`] the error of the first area that can't be registered.
    pub fn new(options: &EngineOptions, areas: &[Area]) -> Result<Self, EngineError> {
        let core = make(options, areas)?;
        Ok(Self(Arc::new(User { core: Arc::new(Mutex::new(core)), watch: OnceLock::new() })))
    }

    /// Registers one more area, or does nothing if it is registered. Its pages are pinned until the
    /// engine and its senders are gone.
    ///
    /// # Errors
    /// [`EngineError::Memlock`] and others; the engine works on.
    pub fn register(&self, area: &Area) -> Result<(), EngineError> {
        lock(&self.0.core).register(area)
    }

    /// For event loops: a descriptor that is readable (level-triggered) when notifications are
    /// there for any of its senders. Then call [`Sender::poll`](crate::send::Sender::poll) on each
    /// sender with something outstanding; if none has, on any one of them. It may be readable for
    /// nothing: results of what was sent signal it, too, and so does what senders left that ended.
    /// A sender with nothing outstanding reads that in a poll that follows another one, with
    /// nothing sent in between.
    ///
    /// Only for waiting: don't read, write or change it. From the first call of this on, which
    /// makes two descriptors, each notification costs a little more.
    ///
    /// # Errors
    /// [`EngineError::WrongThread`]; [`EngineError::Watch`] when there are no descriptors left.
    pub fn watch(&self) -> Result<BorrowedFd<'_>, EngineError> {
        let watch = match self.0.watch.get() {
            Some(watch) => watch,
            None => {
                let made = lock(&self.0.core).watch()?;
                self.0.watch.get_or_init(|| made)
            }
        };
        Ok(watch.as_fd())
    }

    /// Loans of all senders of this engine that are not back.
    pub fn outstanding(&self) -> usize {
        lock(&self.0.core).book.outstanding
    }

    /// Times that the queue of completions was too short. Nothing is lost by that.
    pub fn overflows(&self) -> u64 {
        lock(&self.0.core).counts.overflows
    }

    /// What runs, for people.
    pub fn describe(&self) -> String {
        describe(&lock(&self.0.core))
    }

    pub(crate) fn is_own_thread(&self) -> bool {
        lock(&self.0.core).is_own_thread()
    }

    pub(super) fn core(&self) -> &Arc<Mutex<EngineState>> {
        &self.0.core
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engine").field(&self.describe()).finish()
    }
}

pub(super) fn make(options: &EngineOptions, areas: &[Area]) -> Result<EngineState, EngineError> {
    let mut core = EngineState::new(options)?;
    for area in areas {
        match core.register(area) {
            Ok(()) => {}
            Err(e) if options.registration == Registration::Required => return Err(e),
            Err(e) => {
                tracing::warn!("{e}");
                core.areas.refusal = Some(e.to_string());
            }
        }
    }
    Ok(core)
}

pub(super) fn describe(core: &EngineState) -> String {
    if let Some(why) = &core.closed {
        return EngineError::Closed(why.clone()).to_string();
    }
    let mut text = format!("io_uring ({})", core.facts.flags);
    match core.areas.bytes() {
        0 => text.push_str(", no registered memory"),
        n => text.push_str(&format!(", {n} bytes registered")),
    }
    if core.areas.bytes() > 0 && !core.facts.features.registered_vectors {
        text.push_str(", payloads of several segments unregistered (Linux 6.15 can)");
    }
    if !core.facts.features.report_usage {
        text.push_str(", this kernel does not say when it copies (Linux 6.2 does)");
    }
    if let Some(why) = &core.areas.refusal {
        text.push_str(&format!("; an area is not registered: {why}"));
    }
    text
}
