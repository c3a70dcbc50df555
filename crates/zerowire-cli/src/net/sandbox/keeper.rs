//! One VM of a supervisor: what is open for it, and the child that serves it.
//!
//! ```text
//! open ─▶ start a child ─▶ hand it what is open ─▶ Ready ─▶ carry out what it asks
//!            ▲                                                  │
//!            └────────── it died: say why, start another ◀──────┘
//! ```
//!
//! The descriptors stay open here, so a front end that connects between two children waits in the
//! socket's backlog, and a tap stays with its address and its bridge. A thread a VM does all of it.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use zerowire_capture::Capture;
use zerowire_confine::{ConfineReport, Owner};
use zerowire_net::{Limits, LinkObserver, LinkState, MetadataSource, ServerError, VmConfig, VmStats};
use zerowire_vhost::answer::{Reply, one_answer};
use zerowire_vhost::serve::{Listener, StartError};

use super::CHILD;
use super::message::{ChildOrder, ChildSetup, ChildWord};
use super::metadata::KeptMetadata;
use super::ports::{self, KeptPort, PortSetup};
use super::sums::Sums;
use crate::sandbox::capture::{CaptureRelay, KeptCapture, PATIENCE};
use crate::sandbox::channel::Channel;
use crate::sandbox::cpu::CpuSum;
use crate::sandbox::ending::{END_PATIENCE, end, join, words};
use crate::sandbox::keeper::{START_PATIENCE, start_child};
use crate::sandbox::lines::VmNames;
use crate::sandbox::link::{self, ANSWER_PATIENCE};
use crate::sandbox::lock;
use crate::sandbox::message::{Rates, bounded_report, short};
use crate::sandbox::pace::{RestartPace, wait_unless};
use crate::sandbox::sessions::KeptSession;

/// A running child, for those who ask it.
pub(super) type ChildLink = link::ChildLink<ChildWord>;

/// What hears that the first child serves, or why not.
type Ready = Reply<Result<ConfineReport, String>>;

/// A question to a child.
pub(super) type Question = link::Question<ChildWord>;

/// What all children have in common.
#[derive(Clone, Debug)]
pub(super) struct Common {
    /// Whom they belong to.
    pub owner: Owner,
    /// What they log.
    pub log: String,
    /// CPU time of all of them.
    pub cpu: CpuSum,
}

/// What changes while the VM is served.
#[derive(Default)]
struct KeeperState {
    /// The child that runs.
    link: Option<Arc<ChildLink>>,
    /// What it and those before it have told.
    sums: Sums,
    metadata: Option<KeptMetadata>,
    limits: Limits,
    capture: Option<KeptCapture>,
    /// The interface's state, if the guest is to see it.
    interface: Option<LinkState>,
}

/// How a child ended.
enum ChildEnd {
    /// It was asked to.
    Asked,
    /// By itself.
    Died(String),
    /// The next one goes on with other descriptors.
    Replaced(String),
}

/// A VM with its child.
pub(super) struct VmKeeper {
    config: VmConfig,
    common: Common,
    port: KeptPort,
    /// A connection is the child's alone once it has it.
    listener: Mutex<Listener>,
    state: Mutex<KeeperState>,
    stops: AtomicBool,
    drains: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Held while the child takes other metadata.
    metadata_turn: Mutex<()>,
    /// Ends the thread that follows the interface when it goes.
    pub(super) follower: Mutex<Option<OwnedFd>>,
}

impl VmKeeper {
    /// Opens what the VM needs, but for a socket that was `inherited`, and starts its child. `gone`
    /// is called when a drained VM has ended.
    pub(super) fn start(
        config: VmConfig,
        inherited: Option<Listener>,
        common: Common,
        capture: Option<&Capture>,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, ServerError> {
        let vm = config.name.clone();
        let metadata = config.metadata.clone().map(KeptMetadata::read).transpose();
        let metadata = metadata.map_err(|text| ServerError::Metadata { vm: vm.clone(), text })?;
        let port = KeptPort::open(&config.port);
        let port = port.map_err(|cause| ServerError::Port { vm: vm.clone(), cause })?;
        let resources = |cause| StartError::Resources { vm: vm.clone(), cause };
        let observer = config.port.followed().map(LinkObserver::new).transpose();
        let mut observer = observer.map_err(resources)?;
        // The socket comes last: who sees it finds everything else in place.
        let made = || Listener::new(&config.endpoint, &config.access);
        let listener = inherited.map_or_else(made, Ok);
        let listener = listener.map_err(|cause| StartError::Listen { vm: vm.clone(), cause })?;
        let capture = ports::captured(capture, &config);
        let interface = observer.as_mut().map(LinkObserver::look);
        let limits = config.limits;
        let sums = Sums::new(common.cpu.share());
        let state = KeeperState { sums, metadata, limits, capture, interface, ..KeeperState::default() };
        let keeper = Arc::new(Self {
            config,
            common,
            port,
            listener: Mutex::new(listener),
            state: Mutex::new(state),
            stops: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            thread: Mutex::new(None),
            metadata_turn: Mutex::new(()),
            follower: Mutex::default(),
        });
        let (ready, started) = one_answer();
        let for_thread = keeper.clone();
        let thread = std::thread::Builder::new().name(format!("{vm}-keep"));
        let thread = thread.spawn(move || {
            let _lines = tracing::error_span!("vm", name = for_thread.config.name).entered();
            for_thread.run(ready);
            let drained = for_thread.drains.load(Ordering::Acquire);
            drop(for_thread);
            if drained {
                gone();
            }
        });
        *lock(&keeper.thread) = Some(thread.map_err(resources)?);
        if let Err(cause) = observer.map_or(Ok(()), |observer| ports::follow(&keeper, &vm, observer)) {
            keeper.stop();
            return Err(resources(cause).into());
        }
        match started.wait(START_PATIENCE) {
            Ok(Ok(report)) => {
                keeper.tell(&report);
                Ok(keeper)
            }
            refused => {
                keeper.stop();
                let late = || format!("it did not start within {START_PATIENCE:?}");
                let text = refused.ok().and_then(Result::err).unwrap_or_else(late);
                Err(ServerError::Process { vm, text })
            }
        }
    }

    /// The log says what confines the child.
    fn tell(&self, report: &ConfineReport) {
        let vm = &self.config.name;
        match report.missing() {
            None => tracing::info!(vm, "served by a confined process"),
            Some(missing) => tracing::warn!(vm, "served by a confined process, without: {missing}"),
        }
    }

    /// Starts one child after another.
    fn run(&self, ready: Ready) {
        let name = &self.config.name;
        let mut ready = Some(ready);
        let (mut pace, mut session) = (RestartPace::default(), KeptSession::default());
        loop {
            let end = self.serve(&mut ready, &mut session).unwrap_or_else(ChildEnd::Died);
            let (why, is_error) = match end {
                ChildEnd::Asked => return,
                _ if self.stops.load(Ordering::Acquire) => return,
                ChildEnd::Died(why) => (why, true),
                ChildEnd::Replaced(why) => (why, false),
            };
            if let Some(ready) = ready.take() {
                let _ = ready.send(Err(why));
                return;
            }
            lock(&self.state).sums.died(is_error.then(|| why.clone()));
            let then = if is_error { session.died() } else { session.replaced() };
            let wait = pace.died(Instant::now());
            if !self.is_lasting() {
                return tracing::error!("{name}: its process ended, and its only connection with it: {why}");
            }
            if self.is_draining() && !session.is_kept() {
                return tracing::error!("{name}: its process ended, and its last front end is gone: {why}");
            }
            match is_error {
                true => {
                    tracing::error!("{name}: its process ended: {why}; another one takes its place{then}")
                }
                false => tracing::info!("{name}: {why}; another process takes the place of its own{then}"),
            }
            if !wait.is_zero() {
                tracing::warn!("{name}: its processes end again and again: the next one starts in {wait:?}");
                wait_unless(&self.stops, wait);
            }
        }
    }

    /// Whether a front end may come after this one.
    fn is_lasting(&self) -> bool {
        lock(&self.listener).is_lasting()
    }

    /// Whether a child serves the VM, or will.
    pub(super) fn is_alive(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Starts a child and carries out what it asks until it ends.
    fn serve(&self, ready: &mut Option<Ready>, session: &mut KeptSession) -> Result<ChildEnd, String> {
        let text = |e: std::io::Error| e.to_string();
        let (ours, theirs) = Channel::pair().map_err(text)?;
        let (mut child, _log) = start_child(VmNames::of([self.config.name.clone()]), CHILD, theirs)
            .map_err(|e| format!("it can't be started: {e}"))?;
        // Without it the end of the channel shows the death.
        let _ = ours.hear_until_death(&child);
        let link = Arc::new(ChildLink::new(ours));
        let failed = match self.hand(&link, session) {
            // Who stops the VM from now on finds the child.
            Ok(()) if self.stops.load(Ordering::Acquire) => None,
            Ok(()) => self.listen(&link, ready, session),
            Err(e) => Some(ChildEnd::Died(e)),
        };
        self.part();
        link.close();
        let status = end(&self.config.name, &mut child, END_PATIENCE, &self.stops);
        self.port.part();
        // What it has captured is read to its end before another one begins.
        let relay = lock(&self.state).capture.as_mut().and_then(KeptCapture::take_relay);
        if let Some(relay) = relay {
            relay.finish(Instant::now() + PATIENCE);
        }
        let asked = self.stops.load(Ordering::Acquire)
            || (failed.is_none()
                && (self.is_draining() || !self.is_lasting())
                && status.as_ref().is_ok_and(ExitStatus::success));
        match failed {
            _ if asked => Ok(ChildEnd::Asked),
            Some(end) => Ok(end),
            None => Ok(ChildEnd::Died(status.map_or_else(text, |status| words(&status)))),
        }
    }

    /// Gives the child what is open for it. It hears of all changes from then on.
    fn hand(&self, link: &Arc<ChildLink>, session: &mut KeptSession) -> Result<(), String> {
        let config = &self.config;
        let (kind, descriptors) = self.port.hand().map_err(|e| e.to_string())?;
        // Held until the link is there, so that no change falls between the two.
        let mut state = lock(&self.state);
        let port = PortSetup { spec: config.port.to_string(), kind, link: state.interface };
        let setup = ChildSetup::of(config, port, state.limits, &self.common);
        let setup = ChildSetup { drains: self.is_draining(), ..setup };
        let file = state.metadata.as_ref().map(KeptMetadata::file).transpose()?;
        let mut listener = lock(&self.listener);
        let socket = listener.socket().ok_or("nobody listens")?;
        let KeeperState { capture, .. } = &mut *state;
        let snaplen = capture.as_ref().map(|capture| capture.snaplen);
        let stream = capture.as_mut().map(|capture| capture.begin(&config.name)).transpose();
        let stream = stream.map_err(|e| format!("its capture: {e}"))?;
        let opened = descriptors.iter().chain(&file).chain(&stream).map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(socket).chain(opened).collect();
        let order = ChildOrder::Start(Box::new(setup), snaplen);
        link.channel.send(&order, &fds).map_err(|e| e.to_string())?;
        let (image, files) = session.give();
        link.channel.send(&ChildOrder::Session(image), &files).map_err(|e| e.to_string())?;
        state.link = Some(link.clone());
        // A front end sees that the child has gone only if nobody else has the connection.
        if let Listener::Connected(stream) = &mut *listener {
            *stream = None;
        }
        Ok(())
    }

    /// No child is there to be told anything, and none has a front end.
    fn part(&self) {
        let mut state = lock(&self.state);
        state.link = None;
        state.sums.set_connected(false);
    }

    /// Carries out what the child asks. Returns how it ended where that is known.
    fn listen(
        &self,
        link: &ChildLink,
        ready: &mut Option<Ready>,
        session: &mut KeptSession,
    ) -> Option<ChildEnd> {
        let died = |why: &str| Some(ChildEnd::Died(short(why)));
        let (mut is_ready, mut replaced, mut pace) = (false, None, self.port.pace());
        loop {
            match link.channel.receive::<ChildWord>() {
                Ok(Some((ChildWord::Ready(_), _))) if is_ready => {
                    return died("it says once more that it is ready");
                }
                Ok(Some((ChildWord::Ready(report), _))) => {
                    is_ready = true;
                    session.begin();
                    self.begin(bounded_report(&report), ready.take());
                }
                Ok(Some((ChildWord::Failed(why), _))) => return died(&why),
                Ok(Some((ChildWord::Connected(now), _))) => lock(&self.state).sums.set_connected(now),
                Ok(Some((ChildWord::Last(stats), _))) => {
                    lock(&self.state).sums.told(stats.bounded());
                    if replaced.is_some() {
                        return replaced;
                    }
                }
                Ok(Some((ChildWord::Session(word), fds))) => session.hear(word, fds),
                Ok(Some((ChildWord::Port(_), _))) if replaced.is_some() => {}
                Ok(Some((ChildWord::Port(verb), fds))) => {
                    if let Err(ended) = self.port.answer(verb, fds, &link.channel) {
                        let why = ended?;
                        // It waits for no answer, and tells its last numbers then.
                        let _ = link.channel.send(&ChildOrder::PortDone(Some(why.clone())), &[]);
                        link.channel.send_no_more(ANSWER_PATIENCE);
                        replaced = Some(ChildEnd::Replaced(why));
                    }
                    std::thread::sleep(pace.answered(Instant::now()));
                }
                Ok(Some((word, _))) => link.take(word),
                Ok(None) => return replaced,
                Err(_) if replaced.is_some() => return replaced,
                Err(e) => {
                    session.forget();
                    return died(&format!("its message can't be understood: {e}"));
                }
            }
        }
    }

    /// The child serves the VM.
    fn begin(&self, report: ConfineReport, ready: Option<Ready>) {
        match ready {
            Some(ready) => drop(ready.send(Ok(report))),
            None => self.tell(&report),
        }
    }

    /// Tells the child that runs, if one does. The next one learns it from its setup.
    fn order(state: &KeeperState, order: &ChildOrder) {
        if let Some(link) = &state.link {
            let _ = link.channel.send(order, &[]);
        }
    }

    /// The VM as it was configured, with the metadata and limits that it has now.
    pub(super) fn config(&self) -> VmConfig {
        let state = lock(&self.state);
        let metadata = state.metadata.as_ref().map(|m| m.source.clone());
        VmConfig { metadata, limits: state.limits, ..self.config.clone() }
    }

    /// Gives the VM other limits. A child that starts later has them from the start.
    pub(super) fn set_limits(&self, limits: Limits) {
        let mut state = lock(&self.state);
        state.limits = limits;
        Self::order(&state, &ChildOrder::Limits(Rates::of(limits)));
    }

    /// The interface that the guest is to see has this state.
    pub(super) fn tell_link(&self, interface: LinkState) {
        let mut state = lock(&self.state);
        if state.interface.replace(interface) != Some(interface) {
            Self::order(&state, &ChildOrder::Link(interface));
        }
    }

    /// Whether a front end is connected.
    pub(super) fn is_connected(&self) -> bool {
        lock(&self.state).sums.is_connected()
    }

    /// Asks the child for statistics, without waiting.
    pub(super) fn ask_stats(&self) -> Option<Question> {
        let link = lock(&self.state).link.clone();
        link?.ask(ChildOrder::Statistics, &[])
    }

    /// What the VM has moved so far. A child that does not answer until `deadline` is shown as it
    /// was.
    pub(super) fn stats(&self, asked: Option<Question>, deadline: Instant) -> VmStats {
        let told = asked.as_ref().and_then(|question| question.answer(deadline));
        // Before anything is locked that others wait for.
        let port = self.port.state();
        let mut state = lock(&self.state);
        // What another child has told before this one is counted already.
        let runs = state.link.as_ref().zip(asked).is_some_and(|(link, asked)| asked.was_asked(link));
        if let Some(ChildWord::Statistics(_, told)) = told.filter(|_| runs) {
            state.sums.told(told.bounded());
        }
        let mut vm = state.sums.stats(&self.config, port);
        vm.port_state.capture = state.capture.as_ref().map(KeptCapture::stats);
        vm
    }

    /// Has the VM's frames go to another capture, or to none. Returns what takes those that are
    /// under way to the one before.
    pub(super) fn set_capture(&self, capture: Option<&Capture>) -> Option<CaptureRelay> {
        let mut state = lock(&self.state);
        let before = state.capture.take().and_then(|mut capture| capture.take_relay());
        if before.is_some() {
            Self::order(&state, &ChildOrder::EndCapture);
        }
        let mut capture = ports::captured(capture, &self.config);
        if let Some((link, capture)) = state.link.as_ref().zip(capture.as_mut()) {
            let (snaplen, begun) = (capture.snaplen, capture.begin(&self.config.name));
            let sent = begun.and_then(|to| link.channel.send(&ChildOrder::Capture(snaplen), &[to.as_fd()]));
            if let Err(e) = sent {
                tracing::error!("{}: nothing of it is captured: {e}", self.config.name);
            }
        }
        state.capture = capture;
        before
    }

    /// Gives the VM other metadata.
    pub(super) fn set_metadata(&self, source: MetadataSource) -> Result<(), String> {
        let _turn = lock(&self.metadata_turn);
        let metadata = KeptMetadata::read(source)?;
        let Some(link) = lock(&self.state).link.clone() else { return self.keep_metadata(metadata, None) };
        let file = metadata.file()?;
        let question = link.ask(ChildOrder::Metadata, &[file.as_fd()]);
        let deadline = Instant::now() + ANSWER_PATIENCE;
        match question.and_then(|question| question.answer(deadline)) {
            Some(ChildWord::Metadata(_, None)) => self.keep_metadata(metadata, Some(&link)),
            Some(ChildWord::Metadata(_, Some(refused))) => Err(short(&refused)),
            _ => Err("its process does not answer".to_owned()),
        }
    }

    /// Keeps metadata for the children to come. `taken` is the child that has them.
    fn keep_metadata(&self, metadata: KeptMetadata, taken: Option<&Arc<ChildLink>>) -> Result<(), String> {
        let mut state = lock(&self.state);
        let others = state.link.as_ref().filter(|now| taken.is_none_or(|taken| !Arc::ptr_eq(now, taken)));
        if others.is_some() {
            return Err("another process has just taken the place of its own: try again".to_owned());
        }
        state.metadata = Some(metadata);
        Ok(())
    }

    /// The present front end is the last one.
    pub(super) fn drain(&self) {
        self.drains.store(true, Ordering::Release);
        Self::order(&lock(&self.state), &ChildOrder::Drain);
    }

    /// Whether [`Self::drain`] was called.
    pub(super) fn is_draining(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    /// Has the child end, without waiting.
    pub(super) fn ask_to_stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(link) = &lock(&self.state).link {
            link.close();
        }
    }

    /// Ends the child and waits for it.
    pub(super) fn stop(&self) {
        self.ask_to_stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            join(&self.config.name, thread);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
