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

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use zerowire_confine::{ConfineReport, Owner, spawn_apart};
use zerowire_metadata::TokenPolicy;
use zerowire_net::port::PortSpec;
use zerowire_net::port::tap::Tap;
use zerowire_net::{Limits, MetadataSource, PathMode, ServerError, VmConfig, VmStats};
use zerowire_vhost::serve::{Listener, StartError};

use super::CHILD;
use super::channel::Channel;
use super::lines;
use super::link::{ANSWER_PATIENCE, ChildLink};
use super::message::{ChildOrder, ChildSetup, ChildWord, Rates};
use super::pace::RestartPace;
use super::sums::Sums;

/// How long a child may take to start.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a child may take to end once its supervisor has left it. Its threads have 5 s.
const END_PATIENCE: Duration = Duration::from_secs(6);
/// The pause between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);

/// What all children have in common.
#[derive(Clone, Debug)]
pub(super) struct Common {
    /// Whom they belong to.
    pub owner: Owner,
    /// What they log.
    pub log: String,
}

/// What changes while the VM is served.
#[derive(Default)]
struct KeeperState {
    /// The child that runs.
    link: Option<Arc<ChildLink>>,
    /// What it and those before it have told.
    sums: Sums,
    metadata: Option<MetadataSource>,
    limits: Limits,
}

/// How a child ended.
enum ChildEnd {
    /// It was asked to.
    Asked,
    /// By itself.
    Died(String),
}

/// A VM with its child.
pub(super) struct Keeper {
    config: VmConfig,
    common: Common,
    tap: Tap,
    listener: Listener,
    state: Mutex<KeeperState>,
    stops: AtomicBool,
    drains: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Locks, also behind a thread that has panicked with the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Opens what the VM needs and starts its child. `gone` is called when a drained VM has ended.
    pub(super) fn start(
        config: VmConfig,
        common: Common,
        gone: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Arc<Self>, ServerError> {
        let vm = config.name.clone();
        let PortSpec::Tap(spec) = &config.port else {
            return Err(StartError::Limit { vm, text: super::no_tap(&config.port) }.into());
        };
        if let Some(source) = &config.metadata {
            source.load().map_err(|text| ServerError::Metadata { vm: vm.clone(), text })?;
        }
        let tap = Tap::open(spec).map_err(|e| ServerError::Port { vm: vm.clone(), cause: e.into() })?;
        // The socket comes last: who sees it finds everything else in place.
        let listener = Listener::new(&config.endpoint, &config.access)
            .map_err(|cause| StartError::Listen { vm: vm.clone(), cause })?;
        let state = KeeperState {
            metadata: config.metadata.clone(),
            limits: config.limits,
            ..KeeperState::default()
        };
        let keeper = Arc::new(Self {
            config,
            common,
            tap,
            listener,
            state: Mutex::new(state),
            stops: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let (ready, started) = sync_channel(1);
        let for_thread = keeper.clone();
        let thread = std::thread::Builder::new().name(format!("{vm}-keep"));
        let thread = thread.spawn(move || {
            for_thread.run(ready);
            let name = for_thread.config.name.clone();
            let drained = for_thread.drains.load(Ordering::Acquire);
            drop(for_thread);
            if drained {
                gone(&name);
            }
        });
        let thread = thread.map_err(|cause| StartError::Resources { vm: vm.clone(), cause })?;
        *lock(&keeper.thread) = Some(thread);
        match started.recv_timeout(START_PATIENCE) {
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
        let name = &self.config.name;
        match report.missing() {
            None => tracing::info!("{name}: served by a confined process"),
            Some(missing) => tracing::warn!("{name}: served by a confined process, without: {missing}"),
        }
    }

    /// Starts one child after another.
    fn run(&self, ready: SyncSender<Result<ConfineReport, String>>) {
        let name = &self.config.name;
        let mut ready = Some(ready);
        let mut pace = RestartPace::default();
        loop {
            let end = self.serve(&mut ready).unwrap_or_else(ChildEnd::Died);
            let why = match end {
                ChildEnd::Asked => return,
                ChildEnd::Died(_) if self.stops.load(Ordering::Acquire) => return,
                ChildEnd::Died(why) => why,
            };
            if let Some(ready) = ready.take() {
                let _ = ready.send(Err(why));
                return;
            }
            let wait = pace.died(Instant::now());
            tracing::error!("{name}: its process ended: {why}; another one takes its place");
            lock(&self.state).sums.died(why);
            if !wait.is_zero() {
                tracing::warn!("{name}: its processes end again and again: the next one starts in {wait:?}");
                self.sleep(wait);
            }
        }
    }

    /// Waits, unless the VM is stopped.
    fn sleep(&self, wait: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < wait && !self.stops.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a child and carries out what it asks until it ends.
    fn serve(
        &self,
        ready: &mut Option<SyncSender<Result<ConfineReport, String>>>,
    ) -> Result<ChildEnd, String> {
        let text = |e: std::io::Error| e.to_string();
        let (ours, theirs) = Channel::pair().map_err(text)?;
        let mut child = self.spawn(theirs).map_err(|e| format!("it can't be started: {e}"))?;
        let link = Arc::new(ChildLink::new(ours));
        let handed = self.hand(&link.channel);
        lock(&self.state).link = Some(link.clone());
        let failed = match handed {
            // Who stops the VM from now on finds the child.
            Ok(()) if self.stops.load(Ordering::Acquire) => None,
            Ok(()) => self.listen(&link, ready),
            Err(e) => Some(e),
        };
        lock(&self.state).link = None;
        link.close();
        let status = end(&mut child);
        let asked = self.stops.load(Ordering::Acquire)
            || (self.drains.load(Ordering::Acquire) && status.as_ref().is_ok_and(ExitStatus::success));
        match failed {
            _ if asked => Ok(ChildEnd::Asked),
            Some(failed) => Ok(ChildEnd::Died(failed)),
            None => Ok(ChildEnd::Died(status.map_or_else(text, |status| words(&status)))),
        }
    }

    fn spawn(&self, theirs: OwnedFd) -> std::io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(format!("zerowire: {}", self.config.name)).arg(CHILD);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        // The command goes at the end, and with it the child's end of the channel.
        let mut child = spawn_apart(&mut command)?;
        if let Some(pipe) = child.stderr.take() {
            lines::relay(&self.config.name, pipe);
        }
        Ok(child)
    }

    /// Gives the child what is open for it.
    fn hand(&self, channel: &Channel) -> Result<(), String> {
        let config = &self.config;
        let (metadata, limits) = {
            let state = lock(&self.state);
            (state.metadata.clone(), state.limits)
        };
        let setup = ChildSetup {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            tap: self.tap.name().to_owned(),
            queues: self.tap.pairs(),
            made: self.tap.is_made_here(),
            tokens_required: metadata.as_ref().map(|m| m.tokens == TokenPolicy::Required),
            copies: config.policy.mode == PathMode::Copy,
            gather_max_bytes: config.policy.gather_max_bytes,
            rx_copybreak_bytes: config.policy.rx_copybreak_bytes,
            mac: config.mac.map(|mac| mac.to_string()),
            guard: config.guard.as_ref().map(|guard| guard.to_string()),
            limits: Rates::of(limits),
            user: self.common.owner.user,
            group: self.common.owner.group,
            log: self.common.log.clone(),
        };
        let queues: Result<Vec<_>, _> = (0..self.tap.pairs()).map(|i| self.tap.queue(i)).collect();
        let queues = queues.map_err(|e| e.to_string())?;
        let file = metadata.as_ref().map(metadata_file).transpose()?;
        let listener = self.listener.poll_fd().ok_or("nobody listens")?;
        let fds: Vec<_> =
            std::iter::once(listener).chain(queues.iter().chain(&file).map(AsFd::as_fd)).collect();
        channel.send(&ChildOrder::Start(Box::new(setup)), &fds).map_err(|e| e.to_string())
    }

    /// Carries out what the child asks, and passes its answers on. Returns why it failed where it
    /// said so.
    fn listen(
        &self,
        link: &ChildLink,
        ready: &mut Option<SyncSender<Result<ConfineReport, String>>>,
    ) -> Option<String> {
        loop {
            match link.channel.receive::<ChildWord>() {
                Ok(Some((ChildWord::Ready(report), _))) => self.begin(link, report, ready.take()),
                Ok(Some((ChildWord::Failed(why), _))) => return Some(why),
                Ok(Some((ChildWord::SetMtu(mtu), _))) => {
                    let refused = self.set_mtu(mtu).err();
                    if link.channel.send(&ChildOrder::MtuSet(refused), &[]).is_err() {
                        return None;
                    }
                }
                Ok(Some((word, _))) => link.take(word),
                Ok(None) => return None,
                Err(e) => return Some(format!("its message can't be understood: {e}")),
            }
        }
    }

    /// The child serves the VM.
    fn begin(
        &self,
        link: &ChildLink,
        report: ConfineReport,
        ready: Option<SyncSender<Result<ConfineReport, String>>>,
    ) {
        match ready {
            Some(ready) => drop(ready.send(Ok(report))),
            None => self.tell(&report),
        }
        // The one before it may have died when it was told.
        if self.is_draining() {
            let _ = link.channel.send(&ChildOrder::Drain, &[]);
        }
    }

    /// What a guest may ask of its own tap (virtio 1.3 §5.1.4).
    fn set_mtu(&self, mtu: usize) -> Result<(), String> {
        if !(68..=65535).contains(&mtu) {
            return Err(format!("MTU {mtu} is not within 68 to 65535"));
        }
        self.tap.raise_mtu(mtu).map_err(|e| e.to_string())
    }

    fn link(&self) -> Option<Arc<ChildLink>> {
        lock(&self.state).link.clone()
    }

    /// The VM as it was configured, with the metadata and limits that it has now.
    pub(super) fn config(&self) -> VmConfig {
        let state = lock(&self.state);
        VmConfig { metadata: state.metadata.clone(), limits: state.limits, ..self.config.clone() }
    }

    /// Gives the VM other limits. A child that starts later has them from the start.
    pub(super) fn set_limits(&self, limits: Limits) {
        lock(&self.state).limits = limits;
        if let Some(link) = self.link() {
            let _ = link.channel.send(&ChildOrder::Limits(Rates::of(limits)), &[]);
        }
    }

    /// What the VM has moved so far, and the CPU time that took, seconds. A child that does not
    /// answer is shown as it was.
    pub(super) fn stats(&self) -> (VmStats, f64) {
        let link = self.link();
        let told = link.as_ref().and_then(|link| link.ask(ChildOrder::Statistics, &[]));
        let told = told.and_then(|question| question.answer(Instant::now() + ANSWER_PATIENCE));
        let mut state = lock(&self.state);
        if let Some(ChildWord::Statistics(_, told)) = told {
            state.sums.told(told.bounded());
        } else if state.link.is_none() {
            state.sums.disconnected();
        }
        state.sums.stats(&self.config, self.tap.name())
    }

    /// Gives the VM other metadata.
    pub(super) fn set_metadata(&self, source: MetadataSource) -> Result<(), String> {
        source.load()?;
        let file = metadata_file(&source)?;
        // A child that starts meanwhile gets them as well.
        lock(&self.state).metadata = Some(source);
        let Some(link) = self.link() else { return Ok(()) };
        let question = link.ask(ChildOrder::Metadata, &[file.as_fd()]);
        match question.and_then(|question| question.answer(Instant::now() + ANSWER_PATIENCE)) {
            Some(ChildWord::Metadata(_, refused)) => refused.map_or(Ok(()), Err),
            _ => Err("its process does not answer".to_owned()),
        }
    }

    /// The present front end is the last one.
    pub(super) fn drain(&self) {
        self.drains.store(true, Ordering::Release);
        if let Some(link) = self.link() {
            let _ = link.channel.send(&ChildOrder::Drain, &[]);
        }
    }

    /// Whether [`Self::drain`] was called.
    pub(super) fn is_draining(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    /// Has the child end, without waiting.
    pub(super) fn ask_to_stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(link) = self.link() {
            link.close();
        }
    }

    /// Ends the child and waits for it.
    pub(super) fn stop(&self) {
        self.ask_to_stop();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// The metadata, in a file that a child reads once.
fn metadata_file(source: &MetadataSource) -> Result<OwnedFd, String> {
    let write = |text: &str| -> std::io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("metadata", MemfdFlags::CLOEXEC)?);
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file.into())
    };
    write(&source.text()?).map_err(|e| format!("metadata: {e}"))
}

/// Waits for the end of a child whose supervisor has left it, and kills it if that takes too long.
fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < END_PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
    child.kill()?;
    child.wait()
}

/// Why a child ended.
fn words(status: &ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGSYS) => {
            "killed by SIGSYS: it made a system call that is not on its list, which the kernel's log may name"
                .to_owned()
        }
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("{status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_why_a_child_ended() {
        let text = |wait_status| words(&ExitStatus::from_raw(wait_status));
        assert_eq!(text(libc::SIGKILL), "killed by signal 9");
        assert!(text(libc::SIGSYS).contains("not on its list"));
        assert_eq!(text(1 << 8), "exit status: 1");
    }
}
