//! A child, and the next one when it dies.
//!
//! ```text
//! start a child ─▶ hand it what is open ─▶ it is ready ─▶ carry out what it asks
//!      ▲                                                           │
//!      └────────────── it died: say why, start another ◀───────────┘
//! ```
//!
//! A thread a keeper does all of it. What is open for the child belongs to its [`Charge`], and
//! stays open between two children.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use zerowire_confine::{ConfineReport, spawn_apart};
use zerowire_vhost::answer::{Reply, one_answer};

use super::channel::Channel;
use super::ending::{END_PATIENCE, end, join, words};
use super::lines::{LogRelay, VmNames};
use super::link::ChildLink;
use super::lock;
use super::message::short;
use super::pace::{RestartPace, wait_unless};

/// How long a child may take to start.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(10);

/// What a child is in charge of, and what it may ask.
pub(crate) trait Charge: Send + Sync + 'static {
    /// What a child says.
    type Word: DeserializeOwned + Send + 'static;

    /// The argument by which the program is such a child.
    const ARGUMENT: &str;

    /// The VMs that it serves, one at least at the start.
    fn vms(&self) -> VmNames;

    /// Whether nothing is left to serve: the child ends, and none follows.
    fn is_over(&self) -> bool;

    /// Gives a child what is open for it.
    fn hand(&self, channel: &Channel) -> Result<(), String>;

    /// A child has said this, with these descriptors.
    fn hear(&self, word: Self::Word, fds: Vec<OwnedFd>, link: &ChildLink<Self::Word>) -> Heard;

    /// A child has said what can't be understood, and ends.
    fn garbled(&self);

    /// A child has ended. Returns the name of each VM that the next one serves, and what that means
    /// for its front end, for the log.
    fn died(&self, why: &str) -> Vec<(String, String)>;
}

/// What a child's word means for its keeper.
pub(crate) enum Heard {
    /// Nothing.
    GoOn,
    /// It serves.
    Ready(ConfineReport),
    /// It has failed, or must end.
    Failed(String),
}

/// Keeps a child.
pub(crate) struct Keeper<C: Charge> {
    pub(crate) charge: C,
    /// The child that runs.
    link: Mutex<Option<Arc<ChildLink<C::Word>>>>,
    stops: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Starts the program as a child that serves these VMs, by this argument.
pub(crate) fn start_child(
    vms: VmNames,
    argument: &str,
    theirs: OwnedFd,
) -> std::io::Result<(Child, LogRelay)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(format!("zerowire: {}", vms.all().join(", "))).arg(argument);
    let (log, their_log) = LogRelay::start(vms)?;
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::from(their_log));
    // It may hold secrets of the host.
    command.env_clear();
    // The command goes at the end, and with it the child's end of the channel.
    Ok((spawn_apart(&mut command)?, log))
}

type Ready = Reply<Result<ConfineReport, String>>;

impl<C: Charge> Keeper<C> {
    /// Starts a child and waits until it serves.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn start(charge: C) -> Result<Arc<Self>, String> {
        let name = charge.vms().first();
        let (link, stops, thread) = (Mutex::new(None), AtomicBool::new(false), Mutex::new(None));
        let keeper = Arc::new(Self { charge, link, stops, thread });
        let (ready, started) = one_answer();
        let for_thread = keeper.clone();
        let thread = std::thread::Builder::new().name(format!("{name}-keep"));
        let thread = thread.spawn(move || for_thread.run(ready)).map_err(|e| e.to_string())?;
        *lock(&keeper.thread) = Some(thread);
        match started.wait(START_PATIENCE) {
            Ok(Ok(report)) => {
                keeper.tell(&report);
                Ok(keeper)
            }
            refused => {
                keeper.stop();
                let late = || format!("it did not start within {START_PATIENCE:?}");
                Err(refused.ok().and_then(Result::err).unwrap_or_else(late))
            }
        }
    }

    /// The log says what confines the child.
    fn tell(&self, report: &ConfineReport) {
        for vm in self.charge.vms().all() {
            match report.missing() {
                None => tracing::info!(vm, "served by a confined process"),
                Some(missing) => tracing::warn!(vm, "served by a confined process, without: {missing}"),
            }
        }
    }

    /// Starts one child after another.
    fn run(&self, ready: Ready) {
        let mut ready = Some(ready);
        let mut pace = RestartPace::default();
        loop {
            let why = self.serve(&mut ready).unwrap_or_else(|e| e);
            if self.stops.load(Ordering::Acquire) {
                return;
            }
            if let Some(ready) = ready.take() {
                let _ = ready.send(Err(why));
                return;
            }
            let wait = pace.died(Instant::now());
            for (vm, then) in self.charge.died(&why) {
                tracing::error!("{vm}: its process ended: {why}; another one takes its place{then}");
                if !wait.is_zero() {
                    tracing::warn!(
                        "{vm}: its processes end again and again: the next one starts in {wait:?}"
                    );
                }
            }
            if self.charge.is_over() {
                return;
            }
            wait_unless(&self.stops, wait);
        }
    }

    /// Starts a child and carries out what it asks until it ends. Returns why it did.
    fn serve(&self, ready: &mut Option<Ready>) -> Result<String, String> {
        let text = |e: std::io::Error| e.to_string();
        let (ours, theirs) = Channel::pair().map_err(text)?;
        let (mut child, _log) = start_child(self.charge.vms(), C::ARGUMENT, theirs)
            .map_err(|e| format!("it can't be started: {e}"))?;
        // Without it the end of the channel shows the death.
        let _ = ours.hear_until_death(&child);
        let link = Arc::new(ChildLink::new(ours));
        *lock(&self.link) = Some(link.clone());
        let failed = match self.charge.hand(&link.channel) {
            // Who stops the child from now on finds it.
            Ok(()) if self.stops.load(Ordering::Acquire) => None,
            Ok(()) => self.listen(&link, ready),
            Err(e) => Some(e),
        };
        *lock(&self.link) = None;
        link.close();
        let name = self.charge.vms().first();
        let status = end(&name, &mut child, END_PATIENCE, &self.stops).map_err(text)?;
        Ok(failed.unwrap_or_else(|| words(&status)))
    }

    /// Carries out what the child asks. Returns why it failed where that is known.
    fn listen(&self, link: &ChildLink<C::Word>, ready: &mut Option<Ready>) -> Option<String> {
        let mut is_ready = false;
        loop {
            let (word, fds) = match link.channel.receive() {
                Ok(Some(said)) => said,
                Ok(None) => return None,
                Err(e) => {
                    self.charge.garbled();
                    return Some(format!("its message can't be understood: {}", short(&e.to_string())));
                }
            };
            match self.charge.hear(word, fds, link) {
                Heard::GoOn if self.charge.is_over() => {
                    self.stops.store(true, Ordering::Release);
                    return None;
                }
                Heard::GoOn => {}
                Heard::Failed(why) => return Some(why),
                Heard::Ready(_) if is_ready => return Some("it says once more that it is ready".to_owned()),
                Heard::Ready(report) => {
                    is_ready = true;
                    match ready.take() {
                        Some(ready) => drop(ready.send(Ok(report))),
                        None => self.tell(&report),
                    }
                }
            }
        }
    }

    /// The child that runs.
    pub(crate) fn link(&self) -> Option<Arc<ChildLink<C::Word>>> {
        lock(&self.link).clone()
    }

    /// Has the child end, without waiting.
    pub(crate) fn ask_to_stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(link) = self.link() {
            link.close();
        }
    }

    /// Ends the child and waits for it.
    pub(crate) fn stop(&self) {
        self.ask_to_stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            join(&self.charge.vms().first(), thread);
        }
    }
}

/// For tests.
#[cfg(test)]
impl<C: Charge> Keeper<C> {
    /// A keeper without a thread, and the end of its child, which the test plays.
    pub(crate) fn played(charge: C) -> (Arc<Self>, Channel) {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let link = Mutex::new(Some(Arc::new(ChildLink::new(ours))));
        let (stops, thread) = (AtomicBool::new(false), Mutex::new(None));
        (Arc::new(Self { charge, link, stops, thread }), Channel::of(theirs))
    }
}
