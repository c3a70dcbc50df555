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

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use zerowire_confine::{ChildProcess, ConfineReport};
use zerowire_vhost::answer::{Reply, one_answer};

use super::channel::Channel;
use super::child::start_itself;
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

    /// What the lines of its thread belong to.
    fn span(&self) -> tracing::Span {
        tracing::Span::none()
    }

    /// Whether nothing is left to serve: the child that runs ends, and none follows.
    fn is_over(&self) -> bool {
        false
    }

    /// Whether a child may end by itself, and none follows.
    fn may_end(&self) -> bool {
        false
    }

    /// Gives a child what is open for it.
    fn hand(&self, link: &Arc<ChildLink<Self::Word>>) -> Result<(), String>;

    /// A child has said this, with these descriptors.
    fn hear(&self, word: Self::Word, fds: Vec<OwnedFd>, link: &ChildLink<Self::Word>) -> Heard;

    /// A child has said what can't be understood, and ends.
    fn garbled(&self);

    /// A child is left, and ends.
    fn part(&self) {}

    /// The child that was left has ended.
    fn parted(&self) {}

    /// A child has ended and was not asked to. Returns the name of each VM that the next one has,
    /// and what that means for its front end, for the log; None where no child follows.
    fn died(&self, end: &ChildEnd) -> Option<Vec<(String, String)>>;

    /// The last child has ended. What may take long to close is closed here, by its own thread.
    fn ended(&self) {}

    /// What is done when the last child has ended, and the thread has let go of this.
    fn last_act(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }
}

/// How a child ended that was not asked to.
pub(crate) struct ChildEnd {
    pub(crate) why: String,
    /// False: it has made room for the next one, which goes on with other descriptors.
    pub(crate) is_error: bool,
}

impl ChildEnd {
    fn died(why: String) -> Self {
        Self { why, is_error: true }
    }
}

/// What a child's word means for its keeper.
pub(crate) enum Heard {
    /// Nothing.
    GoOn,
    /// It serves.
    Ready(ConfineReport),
    /// It has failed, or must end.
    Failed(String),
    /// It makes room for another one, for this reason, and may tell its last words.
    Replaced(String),
    /// These were its last words, or it is gone.
    End,
}

/// Keeps a child.
pub(crate) struct Keeper<C: Charge> {
    pub(crate) charge: C,
    /// The child that runs.
    link: Mutex<Option<Arc<ChildLink<C::Word>>>>,
    stops: AtomicBool,
    /// True: who has stopped it needs what the child has. The thread waits for its end.
    waits: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Starts the program as a child that serves these VMs, by this argument. It has no environment,
/// which may hold secrets of the host.
pub(crate) fn start_child(
    vms: VmNames,
    argument: &str,
    theirs: OwnedFd,
) -> std::io::Result<(ChildProcess, LogRelay)> {
    let name = format!("zerowire: {}", vms.all().join(", "));
    let (log, their_log) = LogRelay::start(vms)?;
    let nothing = std::fs::File::options().write(true).open("/dev/null")?;
    // The child's ends of the channel and the log go at the end.
    Ok((start_itself(&[&name, argument], [theirs.as_fd(), nothing.as_fd(), their_log.as_fd()])?, log))
}

type Ready = Reply<Result<ConfineReport, String>>;

impl<C: Charge> Keeper<C> {
    /// Without a child.
    pub(crate) fn new(charge: C) -> Self {
        let (stops, waits) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { charge, link: Mutex::new(None), stops, waits, thread: Mutex::new(None) }
    }

    /// Starts a child and waits until it serves.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn start(charge: C) -> Result<Arc<Self>, String> {
        let name = charge.vms().first();
        let keeper = Arc::new(Self::new(charge));
        let (ready, started) = one_answer();
        let for_thread = keeper.clone();
        let thread = std::thread::Builder::new().name(format!("{name}-keep"));
        let thread = thread.spawn(move || {
            let _lines = for_thread.charge.span().entered();
            for_thread.run(ready);
            for_thread.charge.ended();
            let act = for_thread.charge.last_act();
            drop(for_thread);
            if let Some(act) = act {
                act();
            }
        });
        *lock(&keeper.thread) = Some(thread.map_err(|e| e.to_string())?);
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
            let end = self.serve(&mut ready).unwrap_or_else(|why| Some(ChildEnd::died(why)));
            let Some(end) = end.filter(|_| !self.stops.load(Ordering::Acquire)) else { return };
            if let Some(ready) = ready.take() {
                let _ = ready.send(Err(end.why));
                return;
            }
            let wait = pace.died(Instant::now());
            let Some(next) = self.charge.died(&end) else { return };
            let ChildEnd { why, is_error } = end;
            for (vm, then) in next {
                if is_error {
                    tracing::error!("{vm}: its process ended: {why}; another one takes its place{then}");
                } else {
                    tracing::info!("{vm}: {why}; another process takes the place of its own{then}");
                }
                if !wait.is_zero() {
                    tracing::warn!(
                        "{vm}: its processes end again and again: the next one starts in {wait:?}"
                    );
                }
            }
            wait_unless(&self.stops, wait);
        }
    }

    /// Starts a child and carries out what it asks until it ends. Returns how it did; None where it
    /// was asked to, or may.
    fn serve(&self, ready: &mut Option<Ready>) -> Result<Option<ChildEnd>, String> {
        let text = |e: std::io::Error| e.to_string();
        let (ours, theirs) = Channel::pair().map_err(text)?;
        let (mut child, _log) = start_child(self.charge.vms(), C::ARGUMENT, theirs)
            .map_err(|e| format!("it can't be started: {e}"))?;
        // Without it the end of the channel shows the death.
        let _ = ours.hear_until_death(&child);
        let link = Arc::new(ChildLink::new(ours));
        *lock(&self.link) = Some(link.clone());
        let failed = match self.charge.hand(&link) {
            // Who stops the child from now on finds it.
            Ok(()) if self.stops.load(Ordering::Acquire) => None,
            Ok(()) => self.listen(&link, ready),
            Err(e) => Some(ChildEnd::died(e)),
        };
        *lock(&self.link) = None;
        self.charge.part();
        link.close();
        let gives_up = || self.stops.load(Ordering::Acquire) && !self.waits.load(Ordering::Acquire);
        let status = end(&self.charge.vms().first(), &mut child, END_PATIENCE, gives_up);
        self.charge.parted();
        if failed.is_none() && self.charge.may_end() && status.as_ref().is_ok_and(ExitStatus::success) {
            return Ok(None);
        }
        let by_status = || ChildEnd::died(status.map_or_else(text, |status| words(&status)));
        Ok(Some(failed.unwrap_or_else(by_status)))
    }

    /// Carries out what the child asks. Returns how it ended where that is known.
    pub(crate) fn listen(&self, link: &ChildLink<C::Word>, ready: &mut Option<Ready>) -> Option<ChildEnd> {
        let died = |why| Some(ChildEnd::died(why));
        let (mut is_ready, mut replaced) = (false, None);
        loop {
            let (word, fds) = match link.channel.receive() {
                Ok(Some(said)) => said,
                Ok(None) => return replaced,
                Err(_) if replaced.is_some() => return replaced,
                Err(e) => {
                    self.charge.garbled();
                    return died(format!("its message can't be understood: {}", short(&e.to_string())));
                }
            };
            match self.charge.hear(word, fds, link) {
                Heard::GoOn if self.charge.is_over() => {
                    self.stops.store(true, Ordering::Release);
                    return None;
                }
                Heard::GoOn => {}
                Heard::Failed(why) => return died(why),
                Heard::Replaced(why) => replaced = Some(ChildEnd { why, is_error: false }),
                Heard::End => return replaced,
                Heard::Ready(_) if is_ready => return died("it says once more that it is ready".to_owned()),
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

    /// Whether a child serves the VMs, or will.
    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Has the child end, without waiting.
    pub(crate) fn ask_to_stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(link) = self.link() {
            link.close();
        }
    }

    /// Ends the child and waits for it, but not for ever.
    pub(crate) fn stop(&self) {
        self.join_thread();
    }

    /// The same. False: the kernel holds it up. The thread then waits for its end, and does its
    /// last act behind that.
    pub(crate) fn remove(&self) -> bool {
        self.waits.store(true, Ordering::Release);
        self.join_thread()
    }

    fn join_thread(&self) -> bool {
        self.ask_to_stop();
        let thread = lock(&self.thread).take();
        thread.is_none_or(|thread| join(&self.charge.vms().first(), thread))
    }
}

/// For tests.
#[cfg(test)]
impl<C: Charge> Keeper<C> {
    /// A keeper without a thread, and the end of its child, which the test plays.
    pub(crate) fn played(charge: C) -> (Arc<Self>, Channel) {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let link = Mutex::new(Some(Arc::new(ChildLink::new(ours))));
        (Arc::new(Self { link, ..Self::new(charge) }), Channel::of(theirs))
    }

    /// Gives it a thread, which does its last act when `held` ends.
    pub(crate) fn run_until(self: &Arc<Self>, held: std::sync::mpsc::Receiver<()>) {
        let keeper = self.clone();
        *lock(&self.thread) = Some(std::thread::spawn(move || {
            let _ = held.recv();
            let act = keeper.charge.last_act();
            drop(keeper);
            act.into_iter().for_each(|act| act());
        }));
    }
}
