//! A VM of a network server: what it is made of, and a control thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use thiserror::Error;
use tracing::Level;
use zerowire_capture::{Capture, CaptureInterface, LINKTYPE_ETHERNET};
use zerowire_metadata::{MetadataTree, TokenPolicy};
use zerowire_sys::lock;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::memory::PinBudget;
use zerowire_vhost::serve::{
    Admission, Backing, Control, Departure, Device, Endpoint, Listener, Paths, RefusalKind, RosterConfig,
    Served, ServerRefusal, SessionWatch, SocketAccess, StartError, check_names,
};
use zerowire_vhost::session::SessionImage;

use crate::Policy;
use crate::config::MacAddress;
use crate::device::NetDevice;
use crate::guard::FrameGuard;
use crate::link::{Follower, LinkEyes, ToldLink};
use crate::metadata::MetadataSource;
use crate::port::{FollowLink, OpenPort, Port, PortError, PortSpec};
use crate::stats::Shared;

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VmConfig {
    /// A name for the log and the statistics.
    pub name: String,
    /// Where its front end connects.
    pub endpoint: Endpoint,
    /// Who may connect there, if the socket is made here.
    pub access: SocketAccess,
    /// Its port.
    pub port: PortSpec,
    /// Its metadata.
    pub metadata: Option<MetadataSource>,
    /// Scatter or copy.
    pub policy: Policy,
    /// The device's address, for a front end that asks the back end for the configuration space.
    /// None where the front end keeps it itself, as QEMU does.
    pub mac: Option<MacAddress>,
    /// What the guest may send; None for any frame.
    pub guard: Option<FrameGuard>,
    /// What it may send and receive in a second.
    pub limits: Limits,
    /// Whether to offer post-copy (PAGEFAULT), where the port and the system allow it. The front
    /// end then gets a userfaultfd of this process. With it the front end can stop any thread of
    /// this process. It can also write into any of this process's memory that has not been touched
    /// yet, not only into its own VM's.
    pub postcopy: bool,
}

impl VmConfig {
    /// Without metadata, checks of frames and limits of the rate. Its socket is this user's alone.
    pub fn new(name: impl Into<String>, endpoint: Endpoint, port: PortSpec) -> Self {
        Self {
            name: name.into(),
            endpoint,
            access: SocketAccess::default(),
            port,
            metadata: None,
            policy: Policy::default(),
            mac: None,
            guard: None,
            limits: Limits::default(),
            postcopy: false,
        }
    }

    zerowire_wire::setters! {
        name: String,
        endpoint: Endpoint,
        access: SocketAccess,
        port: PortSpec,
        metadata: Option<MetadataSource>,
        policy: Policy,
        mac: Option<MacAddress>,
        guard: Option<FrameGuard>,
        limits: Limits,
        postcopy: bool,
    }
}

/// What a VM needs, open. Mostly another process has opened it.
pub struct Handed {
    /// Where its front end connects, or its connection.
    pub listener: Listener,
    /// Its port.
    pub port: OpenPort,
    /// What the other process tells of the interface's state, if the guest is to see it.
    pub link: Option<Arc<ToldLink>>,
    /// Its metadata.
    pub metadata: Option<Arc<MetadataTree>>,
    /// Hears of its front ends.
    pub watch: Option<Arc<dyn FrontEndWatch>>,
    /// Keeps what another process needs to go on with a session if this one dies.
    pub sessions: Option<Arc<dyn SessionWatch>>,
    /// The session of a process before that died.
    pub session: Option<SessionImage>,
    /// True: the front end of that session is the last one, and the VM leaves with it. Without a
    /// session it leaves at once.
    pub drains: bool,
}

/// Who wants to know whether a VM has a front end.
pub trait FrontEndWatch: fmt::Debug + Send + Sync {
    /// A front end has come, or gone. The VM's control thread waits meanwhile.
    fn connected(&self, now: bool);
}

/// Opens what a VM needs, but for the socket that this process was started with.
pub(super) fn open(config: &VmConfig, inherited: Option<Listener>) -> Result<Handed, ServerError> {
    let vm = || config.name.clone();
    let load =
        |source: &MetadataSource| source.load().map_err(|text| ServerError::Metadata { vm: vm(), text });
    let metadata = config.metadata.as_ref().map(load).transpose()?;
    let port = config.port.open().map_err(|cause| ServerError::Port { vm: vm(), cause })?;
    // The socket comes last: who sees it finds everything else in place.
    let listener = match inherited {
        Some(listener) => listener,
        None => Listener::new(&config.endpoint, &config.access)
            .map_err(|cause| StartError::Listen { vm: vm(), cause })?,
    };
    let (watch, link, sessions, session) = (None, None, None, None);
    Ok(Handed { listener, port, link, metadata, watch, sessions, session, drains: false })
}

impl RosterConfig for VmConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn share_out(all: &[&Self]) {
        share_budget(all);
    }
}

/// Shares what may be pinned among the VMs. Without a budget of the operator's they share the
/// kernel's limit.
fn share_budget(configs: &[&VmConfig]) {
    let budget = PinBudget::of_process();
    let count = |(vms, parts), c: &&VmConfig| (vms + 1, parts + usize::from(c.port.pins_in_part()));
    let (vms, parts) = configs.iter().fold((0, 0), count);
    budget.share_among(vms, parts);
    if parts > 0
        && !may_pin_all()
        && let Some(bytes) = zerowire_sys::xdp::locked_memory_limit()
    {
        budget.limit_at_most(bytes);
    }
}

/// Whether the kernel bounds by no limit what this process pins.
pub(crate) fn may_pin_all() -> bool {
    let free = rustix::thread::CapabilitySet::IPC_LOCK;
    rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(free))
}

/// Why a server can't start. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// For a reason that a server of any device may have.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The port can't be had.
    #[error("VM {vm}: {cause}")]
    Port {
        /// The VM.
        vm: String,
        /// What is wrong.
        cause: PortError,
    },
    /// The metadata can't be read.
    #[error("VM {vm}: {text}")]
    Metadata {
        /// The VM.
        vm: String,
        /// What is wrong.
        text: String,
    },
    /// The process that was started for it can't serve it.
    #[error("VM {vm}: its process can't serve it: {text}")]
    Process {
        /// The VM.
        vm: String,
        /// What is wrong.
        text: String,
    },
    /// The metadata service is a part of the device that a front end has.
    #[error(
        "VM {0}: whether it has metadata, and whether requests need a token, is settled when it is added: remove it and add \
         it again"
    )]
    Settled(String),
    /// Two VMs on what only one can have: a tap, a queue of an interface.
    #[error("VM {vm}: {what} is VM {other}'s: give it another one")]
    PortTaken {
        /// The VM.
        vm: String,
        /// The one before.
        other: String,
        /// What only one of them can have.
        what: String,
    },
}

impl ServerRefusal for ServerError {
    fn kind(&self) -> RefusalKind {
        match self {
            Self::Start(e) => e.kind(),
            Self::PortTaken { .. } | Self::Settled(_) => RefusalKind::Conflict,
            Self::Port { .. } | Self::Metadata { .. } => RefusalKind::Unavailable,
            Self::Process { .. } => RefusalKind::Passing,
        }
    }
}

/// Checks what can be seen without opening anything.
///
/// # Errors
/// VMs that can't be beside each other: [`ServerError`].
pub fn check(configs: &[&VmConfig]) -> Result<(), ServerError> {
    check_names(configs.iter().map(|c| c.name.as_str()))?;
    let (mut paths, mut ports) = (Paths::default(), HashMap::new());
    for VmConfig { name, endpoint, port, .. } in configs {
        if let Endpoint::Path(path) = endpoint {
            paths.claim(path.clone(), name)?;
        }
        for what in port.sole() {
            if let Some(other) = ports.insert(what.clone(), name) {
                return Err(ServerError::PortTaken { vm: name.clone(), other: other.clone(), what });
            }
        }
        if port.followed().is_some()
            && let Endpoint::Fd(fd) = endpoint
        {
            let text = format!(
                "link=follow needs a socket path to listen on: a front end on descriptor {fd} that was disconnected could not be \
                 refused and let in again; give --socket PATH in place of --fd, or link=ignore"
            );
            return Err(StartError::Limit { vm: name.clone(), text }.into());
        }
    }
    Ok(())
}

/// What the threads of a VM know of it.
pub(super) struct VmContext {
    pub control: Control,
    pub port: Box<dyn Port>,
    pub shared: Arc<Shared>,
    pub mac: Option<MacAddress>,
    /// What the guest may send.
    pub guard: Setting<Option<Arc<FrameGuard>>>,
    pub postcopy: bool,
    sessions: Option<Arc<dyn SessionWatch>>,
    /// The metadata to serve.
    pub metadata: Setting<Option<(Arc<MetadataTree>, TokenPolicy)>>,
    watch: Option<Arc<dyn FrontEndWatch>>,
    departure: Departure<VmConfig, VmContext>,
    /// Where frames go as well.
    pub capture: Setting<Option<CaptureInterface>>,
}

/// What changes while a VM runs: its control thread passes it to the workers.
pub(super) struct Setting<T> {
    now: Mutex<T>,
    is_new: AtomicBool,
    /// Shared with the commands that pass it to workers.
    passing: Arc<()>,
}

impl<T: Clone> Setting<T> {
    fn new(now: T) -> Self {
        Self { now: Mutex::new(now), is_new: AtomicBool::new(false), passing: Arc::default() }
    }

    /// What it is now.
    pub fn get(&self) -> T {
        lock(&self.now).clone()
    }

    /// What it is now, if that is new since the last call.
    pub fn take_new(&self) -> Option<T> {
        self.is_new.swap(false, Ordering::AcqRel).then(|| self.get())
    }

    /// What a command to a worker holds until it is carried out: got before [`Self::take_new`].
    pub fn passing(&self) -> Arc<()> {
        self.passing.clone()
    }

    /// Whether the control thread has passed it to all workers, and they have it.
    pub fn is_passed(&self) -> bool {
        !self.is_new.load(Ordering::Acquire) && Arc::strong_count(&self.passing) == 1
    }

    /// Replaces it, and lets the control thread know.
    pub fn set(&self, value: T, control: &Control) {
        *lock(&self.now) = value;
        self.is_new.store(true, Ordering::Release);
        control.wake();
    }
}

impl Backing for VmContext {
    fn control(&self) -> &Control {
        &self.control
    }

    fn set_error(&self, text: String) {
        self.shared.set_error(text);
    }

    fn device(&self) -> Box<dyn Device + '_> {
        self.port.begin();
        // With link=follow the guest sees it, and the log has it already.
        if self.shared.link.is_none()
            && let Some(why) = self.port.link_state().problem(&self.port.interface())
        {
            self.control.log(Level::WARN, format!("{why}: the guest's frames go nowhere"));
        }
        Box::new(NetDevice::new(self))
    }

    fn connected(&self, now: bool) {
        if let Some(watch) = &self.watch {
            watch.connected(now);
        }
    }

    fn watch(&self) -> Option<&dyn SessionWatch> {
        self.sessions.as_deref()
    }

    fn ended(self: Arc<Self>) {
        let departure = self.departure.clone();
        departure.leave(self);
    }
}

/// What a capture has the frames of a VM by.
pub(super) fn interface(capture: Option<&Capture>, name: &str, port: &PortSpec) -> Option<CaptureInterface> {
    capture?.interface(LINKTYPE_ETHERNET, name, &port.to_string())
}

/// Starts a VM's control thread. On an error nothing is left behind.
pub(super) fn start(
    config: VmConfig,
    handed: Handed,
    departure: Departure<VmConfig, VmContext>,
    capture: Option<&Capture>,
) -> Result<Served<VmContext>, ServerError> {
    let Handed { listener, port: opened, link: told, metadata: tree, watch, sessions, session, drains } =
        handed;
    let opened = (opened.0)(config.policy);
    let VmConfig { name, endpoint, port, metadata, mac, guard, limits, postcopy, .. } = config;
    let vm = name.clone();
    let followed = port.followed();
    let resources = |cause| StartError::Resources { vm: vm.clone(), cause };
    let shared = Shared::new(opened.pairs(), followed.map(|_| Arc::default()), limits);
    let link = match (followed, &shared.link) {
        (Some(interface), Some(link)) => {
            let eyes = LinkEyes::new(interface, told).map_err(resources)?;
            let follower = Follower::new(&vm, interface, eyes, link.clone());
            Some(Box::new(follower) as Box<dyn Admission>)
        }
        _ => None,
    };
    if port.link() == Some(FollowLink::Ignore) {
        let interface = port.interface();
        tracing::info!(
            vm,
            "link=ignore: the guest does not see whether interface {interface} is up; with link=follow it does, if its \
             front end connects again by itself (QEMU: reconnect=1)"
        );
    }
    tracing::info!(vm, "listening on {endpoint}, port {port}");
    let capture = interface(capture, &name, &port);
    let context = Arc::new(VmContext {
        control: Control::new(name).map_err(resources)?,
        port: opened,
        shared,
        mac,
        guard: Setting::new(guard.map(Arc::new)),
        postcopy,
        sessions,
        metadata: Setting::new(tree.zip(metadata.map(|source| source.tokens))),
        departure,
        watch,
        capture: Setting::new(capture),
    });
    if drains {
        // Before there is a thread that could let another front end in.
        context.control.drain();
    }
    Ok(Served::spawn(context, listener, link, session).map_err(resources)?)
}
