//! One VM of a supervisor: what is open for it, and what its child may ask.
//!
//! The descriptors stay open here, so a front end that connects between two children waits in the
//! socket's backlog, and a tap stays with its address and its bridge.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use zerowire_capture::Capture;
use zerowire_confine::Owner;
use zerowire_net::port::KeptPort;
use zerowire_net::{FrameGuard, Limits, LinkObserver, LinkState, ServerError, VmConfig, VmStats};
use zerowire_vhost::serve::{Listener, ServedStats, StartError, VmProcess};

use super::CHILD;
use super::message::{ChildOrder, ChildSetup, ChildWord, PortSetup, VmFigures};
use super::metadata::KeptMetadata;
use super::pace::AnswerPace;
use super::ports;
use crate::sandbox::capture::{CaptureRelay, KeptCapture, PATIENCE};
use crate::sandbox::channel::SEND_PATIENCE;
use crate::sandbox::cpu::CpuSum;
use crate::sandbox::keeper::{Charge, ChildEnd, Heard, Keeper};
use crate::sandbox::lines::VmNames;
use crate::sandbox::link::{self, ANSWER_PATIENCE};
use crate::sandbox::lock;
use crate::sandbox::message::{bounded_report, short};
use crate::sandbox::sessions::KeptSession;
use crate::sandbox::sums::Sums;

/// A running child, for those who ask it.
pub(super) type ChildLink = link::ChildLink<ChildWord>;

/// A question to a child.
pub(super) type Question = link::Question<ChildWord>;

/// What is done when a VM has gone.
type WhenGone = Box<dyn FnOnce() + Send>;

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
struct NetState {
    /// The child that runs.
    link: Option<Arc<ChildLink>>,
    /// What it and those before it have told.
    sums: Sums<VmFigures>,
    metadata: Option<KeptMetadata>,
    limits: Limits,
    guard: Option<FrameGuard>,
    capture: Option<KeptCapture>,
    /// The interface's state, if the guest is to see it.
    interface: Option<LinkState>,
}

/// What is known of the child that is heard.
struct HeardChild {
    session: KeptSession,
    pace: AnswerPace,
    /// True: it makes room for another one, and its port is not asked any more.
    replaced: bool,
}

impl HeardChild {
    fn new(port: &dyn KeptPort) -> Self {
        Self { session: KeptSession::default(), pace: AnswerPace::of(port), replaced: false }
    }
}

/// Metadata that the child was given. None without a child.
pub(super) struct AskedMetadata {
    metadata: KeptMetadata,
    question: Option<Question>,
}

/// A VM that a child serves.
pub(super) struct NetVm {
    config: VmConfig,
    common: Common,
    port: Box<dyn KeptPort>,
    /// A connection is the child's alone once it has it.
    listener: Mutex<Listener>,
    state: Mutex<NetState>,
    /// The thread of the keeper has it.
    child: Mutex<HeardChild>,
    /// How many calls of [`Self::drain`] have not given up. Above zero: the VM drains.
    drains: AtomicUsize,
    /// Ends the thread that follows the interface when it goes.
    pub(super) follower: Mutex<Option<OwnedFd>>,
    /// Done when the last child has ended.
    pub(super) gone: Mutex<Option<WhenGone>>,
}

impl NetVm {
    /// Opens what the VM needs, but for a socket that was `inherited`, and starts its child. `gone`
    /// is called when the last child has ended.
    pub(super) fn start(
        config: VmConfig,
        inherited: Option<Listener>,
        common: Common,
        capture: Option<&Capture>,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Keeper<Self>>, ServerError> {
        let vm = config.name.clone();
        let metadata = config.metadata.clone().map(KeptMetadata::read).transpose();
        let metadata = metadata.map_err(|text| ServerError::Metadata { vm: vm.clone(), text })?;
        let port = config.port.keep();
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
        let (limits, guard) = (config.limits, config.guard.clone());
        let sums = Sums::new(common.cpu.share());
        let state = NetState { sums, metadata, limits, guard, capture, interface, ..NetState::default() };
        let keeper = Keeper::start(Self {
            config,
            common,
            listener: Mutex::new(listener),
            state: Mutex::new(state),
            child: Mutex::new(HeardChild::new(&*port)),
            port,
            drains: AtomicUsize::new(0),
            follower: Mutex::default(),
            gone: Mutex::new(Some(Box::new(gone))),
        });
        let keeper = keeper.map_err(|text| ServerError::Process { vm: vm.clone(), text })?;
        // What has changed meanwhile waits in its socket.
        if let Err(cause) = observer.map_or(Ok(()), |observer| ports::follow(&keeper, &vm, observer)) {
            keeper.stop();
            return Err(resources(cause).into());
        }
        Ok(keeper)
    }

    /// The VM's name.
    pub(super) fn name(&self) -> String {
        self.config.name.clone()
    }

    /// Whether a front end may come after this one.
    fn is_lasting(&self) -> bool {
        lock(&self.listener).is_lasting()
    }

    /// Tells the child that runs, if one does. The next one learns it from its setup.
    ///
    /// # Errors
    /// It takes nothing now. It was not told.
    fn order(state: &NetState, order: &ChildOrder) -> Result<(), String> {
        let told = state.link.as_ref().map_or(Ok(()), |link| link.channel.send(order, &[]));
        told.map_err(|e| format!("it takes no order now: {e}: try again"))
    }

    /// The VM as it was configured, with the metadata, limits and guard that it has now.
    pub(super) fn config(&self) -> VmConfig {
        let state = lock(&self.state);
        let metadata = state.metadata.as_ref().map(|m| m.source.clone());
        self.config.clone().metadata(metadata).limits(state.limits).guard(state.guard.clone())
    }

    /// Gives the VM other limits. A child that starts later has them from the start.
    ///
    /// # Errors
    /// Those of [`Self::order`]: they are as before.
    pub(super) fn set_limits(&self, limits: Limits) -> Result<(), String> {
        let mut state = lock(&self.state);
        Self::order(&state, &ChildOrder::Limits(limits))?;
        state.limits = limits;
        Ok(())
    }

    /// Lets the guest send other frames. A child that starts later knows it from the start.
    ///
    /// # Errors
    /// Those of [`Self::order`]: the guard is as before.
    pub(super) fn set_guard(&self, guard: Option<FrameGuard>) -> Result<(), String> {
        let mut state = lock(&self.state);
        Self::order(&state, &ChildOrder::Guard(guard.as_ref().map(FrameGuard::to_string)))?;
        state.guard = guard;
        Ok(())
    }

    /// Asks the child whether it has carried out what it was told, without waiting. None: there is
    /// no child.
    ///
    /// # Errors
    /// It takes no question now.
    pub(super) fn ask_settled(&self) -> Result<Option<Question>, String> {
        let Some(link) = lock(&self.state).link.clone() else { return Ok(None) };
        // It carries out one order behind the other.
        let asked = link.ask(ChildOrder::Statistics, &[]);
        asked
            .map(Some)
            .map_err(|e| format!("it takes no question now: {e}: what was changed holds when it does"))
    }

    /// The interface that the guest is to see has this state.
    ///
    /// # Errors
    /// Those of [`Self::order`]: the guest sees the state of before.
    pub(super) fn tell_link(&self, interface: LinkState) -> Result<(), String> {
        let mut state = lock(&self.state);
        if state.interface != Some(interface) {
            Self::order(&state, &ChildOrder::Link(interface))?;
            state.interface = Some(interface);
        }
        Ok(())
    }

    /// Whether a front end is connected.
    pub(super) fn is_connected(&self) -> bool {
        lock(&self.state).sums.connected
    }

    /// Asks the child for statistics, without waiting.
    pub(super) fn ask_stats(&self) -> Option<Question> {
        let link = lock(&self.state).link.clone();
        link?.ask(ChildOrder::Statistics, &[]).ok()
    }

    /// What the VM has moved so far. A child that does not answer until `deadline` is shown as it
    /// was.
    pub(super) fn stats(&self, asked: Option<Question>, deadline: Instant) -> ServedStats<VmStats> {
        let told = asked.as_ref().and_then(|question| question.answer(deadline));
        // Before anything is locked that others wait for.
        let port = ports::state(&*self.port, &self.config.port);
        let mut state = lock(&self.state);
        // What another child has told before this one is counted already.
        let runs = state.link.as_ref().zip(asked).is_some_and(|(link, asked)| asked.was_asked(link));
        let mut child_answers = false;
        if let Some(ChildWord::Statistics(_, told)) = told.filter(|_| runs) {
            child_answers = !told.state.hangs;
            state.sums.told(told.told());
        }
        let mut vm = state.sums.stats(&self.config, port);
        vm.port_state.capture = state.capture.as_ref().map(KeptCapture::stats);
        ServedStats { vm, process: VmProcess { restarts: state.sums.restarts, child_answers } }
    }

    /// Has the VM's frames go to another capture, or to none: the child has until `deadline` to
    /// take that. Returns what takes those that are under way to the one before.
    pub(super) fn set_capture(&self, capture: Option<&Capture>, deadline: Instant) -> Option<CaptureRelay> {
        let mut state = lock(&self.state);
        let before = state.capture.take().and_then(|mut capture| capture.take_relay());
        if before.is_some()
            && let Err(e) = Self::order(&state, &ChildOrder::EndCapture)
        {
            tracing::warn!("{}: its process captures on for a while: {e}", self.config.name);
        }
        let mut capture = ports::captured(capture, &self.config);
        let begun = state.link.clone().zip(capture.as_mut()).map(|(link, capture)| {
            let order = ChildOrder::Capture(capture.snaplen);
            (link, order, capture.begin(&self.config.name))
        });
        state.capture = capture;
        // Nobody waits for descriptors to arrive with the state locked.
        drop(state);
        if let Some((link, order, begun)) = begun
            && let Err(e) = begun.and_then(|to| link.channel.send_when_few(&order, &[to.as_fd()], deadline))
        {
            tracing::error!("{}: nothing of it is captured: {e}", self.config.name);
        }
        before
    }

    /// Gives the child other metadata, without waiting for its answer. It waits until `deadline`
    /// while the kernel takes no descriptor.
    pub(super) fn ask_metadata(
        &self,
        metadata: KeptMetadata,
        deadline: Instant,
    ) -> Result<AskedMetadata, String> {
        let Some(link) = lock(&self.state).link.clone() else {
            return Ok(AskedMetadata { metadata, question: None });
        };
        let file = metadata.file()?;
        let order = |number| ChildOrder::Metadata(number, metadata.source.file.display().to_string());
        let asked = link.ask_when_few(order, &[file.as_fd()], deadline);
        Ok(AskedMetadata { metadata, question: Some(asked.map_err(|e| e.to_string())?) })
    }

    /// Keeps metadata for the children to come, if the present one takes them until `deadline`.
    pub(super) fn keep_metadata(&self, asked: AskedMetadata, deadline: Instant) -> Result<(), String> {
        let AskedMetadata { metadata, question } = asked;
        match question.as_ref().map(|question| question.answer(deadline)) {
            None | Some(Some(ChildWord::Metadata(_, None))) => {}
            Some(Some(ChildWord::Metadata(_, Some(refused)))) => return Err(short(&refused)),
            Some(_) => return Err("its process does not answer".to_owned()),
        }
        let mut state = lock(&self.state);
        let is_taken = |now| question.as_ref().is_some_and(|question| question.was_asked(now));
        if state.link.as_ref().is_some_and(|now| !is_taken(now)) {
            return Err("another process has just taken the place of its own: try again".to_owned());
        }
        state.metadata = Some(metadata);
        Ok(())
    }

    /// The present front end is the last one. Waits a while until the child has room for that.
    ///
    /// # Errors
    /// It has none: the VM is as before.
    pub(super) fn drain(&self) -> Result<(), String> {
        self.drains.fetch_add(1, Ordering::AcqRel);
        let link = lock(&self.state).link.clone();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        match link.map(|link| link.channel.send_until(&ChildOrder::Drain, &[], deadline)) {
            Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => {
                self.drains.fetch_sub(1, Ordering::AcqRel);
                Err(format!("it takes no order now: {e}: try again"))
            }
            // One that has ended is followed by one that knows it from the start.
            _ => {
                self.refuse();
                Ok(())
            }
        }
    }

    /// Refuses front ends from now on. The child has a copy of the socket.
    pub(super) fn refuse(&self) {
        lock(&self.listener).refuse();
    }

    /// Whether [`Self::drain`] was called, and has not given up.
    pub(super) fn is_draining(&self) -> bool {
        self.drains.load(Ordering::Acquire) > 0
    }
}

impl Charge for NetVm {
    type Word = ChildWord;

    const ARGUMENT: &str = CHILD;

    fn vms(&self) -> VmNames {
        VmNames::of([self.config.name.clone()])
    }

    fn span(&self) -> tracing::Span {
        tracing::error_span!("vm", name = self.config.name)
    }

    fn may_end(&self) -> bool {
        self.is_draining() || !self.is_lasting()
    }

    /// The child hears of all changes from then on.
    fn hand(&self, link: &Arc<ChildLink>) -> Result<(), String> {
        let config = &self.config;
        let (facts, descriptors) = self.port.hand()?;
        // Held until the link is there, so that no change falls between the two.
        let mut state = lock(&self.state);
        let port = PortSetup { spec: config.port.to_string(), facts, link: state.interface };
        let now = config.clone().limits(state.limits).guard(state.guard.clone());
        let setup = ChildSetup::of(&now, port, &self.common);
        let setup = ChildSetup { drains: self.is_draining(), ..setup };
        let file = state.metadata.as_ref().map(KeptMetadata::file).transpose()?;
        let mut listener = lock(&self.listener);
        // A child before may have had it refuse connections.
        listener.reopen().map_err(|e| e.to_string())?;
        let socket = listener.socket().ok_or("nobody listens")?;
        let NetState { capture, .. } = &mut *state;
        let snaplen = capture.as_ref().map(|capture| capture.snaplen);
        let stream = capture.as_mut().map(|capture| capture.begin(&config.name)).transpose();
        let stream = stream.map_err(|e| format!("its capture: {e}"))?;
        let opened = descriptors.iter().chain(&file).chain(&stream).map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(socket).chain(opened).collect();
        let order = ChildOrder::Start(Box::new(setup), snaplen);
        let deadline = Instant::now() + SEND_PATIENCE;
        link.channel.send_when_few(&order, &fds, deadline).map_err(|e| e.to_string())?;
        let mut child = lock(&self.child);
        (child.pace, child.replaced) = (AnswerPace::of(&*self.port), false);
        let (image, files) = child.session.give();
        let sent = link.channel.send_when_few(&ChildOrder::Session(image), &files, deadline);
        sent.map_err(|e| {
            child.session.not_given();
            e.to_string()
        })?;
        state.link = Some(link.clone());
        // A front end sees that the child has gone only if nobody else has the connection.
        if let Listener::Connected(stream) = &mut *listener {
            *stream = None;
        }
        Ok(())
    }

    fn hear(&self, word: ChildWord, fds: Vec<OwnedFd>, link: &ChildLink) -> Heard {
        let mut child = lock(&self.child);
        match word {
            ChildWord::Ready(report) => {
                child.session.begin();
                return Heard::Ready(bounded_report(&report));
            }
            ChildWord::Failed(why) => return Heard::Failed(short(&why)),
            ChildWord::Connected(now) => lock(&self.state).sums.connected = now,
            ChildWord::Last(stats) => {
                lock(&self.state).sums.told(stats.told());
                if child.replaced {
                    return Heard::End;
                }
            }
            ChildWord::Session(word) => child.session.hear(word, fds),
            ChildWord::Port(_) | ChildWord::Listen(_) if child.replaced => {}
            ChildWord::Listen(listens) => {
                let told = ports::listen(&mut lock(&self.listener), listens, &link.channel);
                std::thread::sleep(child.pace.answered(Instant::now()));
                return told.map_or(Heard::End, |()| Heard::GoOn);
            }
            ChildWord::Port(verb) => {
                let heard = match ports::answer(&*self.port, &verb, fds, &link.channel) {
                    Ok(()) => Heard::GoOn,
                    Err(None) => return Heard::End,
                    Err(Some(why)) => {
                        // It waits for no answer, and tells its last numbers then.
                        let _ = link.channel.send(&ChildOrder::Done(Err(why.clone())), &[]);
                        link.channel.send_no_more(ANSWER_PATIENCE);
                        child.replaced = true;
                        Heard::Replaced(why)
                    }
                };
                std::thread::sleep(child.pace.answered(Instant::now()));
                return heard;
            }
            word => link.take(word),
        }
        Heard::GoOn
    }

    fn garbled(&self) {
        lock(&self.child).session.forget();
    }

    /// No child is there to be told anything, and none has a front end.
    fn part(&self) {
        let mut state = lock(&self.state);
        state.link = None;
        state.sums.connected = false;
    }

    fn parted(&self) {
        self.port.part();
        // What it has captured is read to its end before another one begins.
        let relay = lock(&self.state).capture.as_mut().and_then(KeptCapture::take_relay);
        CaptureRelay::finish(relay, Instant::now() + PATIENCE);
    }

    fn died(&self, end: &ChildEnd) -> Option<Vec<(String, String)>> {
        let (name, why) = (&self.config.name, &end.why);
        lock(&self.state).sums.died(end.is_error.then_some(why));
        let mut child = lock(&self.child);
        let session = &mut child.session;
        let then = if end.is_error { session.died() } else { session.replaced() };
        if !self.is_lasting() {
            tracing::error!("{name}: its process ended, and its only connection with it: {why}");
            return None;
        }
        if self.is_draining() && !session.is_kept() {
            tracing::error!("{name}: its process ended, and its last front end is gone: {why}");
            return None;
        }
        lock(&self.state).sums.restarts += u64::from(end.is_error);
        Some(vec![(name.clone(), then)])
    }

    fn ended(&self) {
        lock(&self.child).session.forget();
    }

    fn last_act(&self) -> Option<WhenGone> {
        lock(&self.gone).take()
    }
}

#[cfg(test)]
pub(super) mod tests;
