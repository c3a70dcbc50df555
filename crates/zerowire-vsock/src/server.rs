//! The vsock server: VMs come and go while it runs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use zerowire_capture::{Capture, CaptureInterface, LINKTYPE_VSOCK};
use zerowire_sys::lock;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::{
    self, Control, ListenError, Listener, Roster, Served, ServedStats, SessionWatch, StartError, VmTurn,
    inherit,
};
use zerowire_vhost::serve_by_roster;
use zerowire_vhost::session::SessionImage;

use crate::config::{VmsCheck, VsockConfig, check, checked, connected_order};
use crate::connector::{AskingConnector, HostConnector, HostKeeper, OwnEntry, OwnSockets, PathConnector};
use crate::device::VsockContext;
use crate::doors::{HostSide, HostSockets};
use crate::error::VsockServerError;
use crate::group::GroupCommand;
use crate::names::ConnectionNames;
use crate::reload::try_open;
use crate::sets::SetMember;
use crate::stats::{VsockServerStats, VsockVmStats};
use crate::threads::GroupThreads;
use crate::{GroupVm, VsockCounters};

/// A VM as it was configured, with the limits that it has now.
pub type VsockVmInfo = serve::VmInfo<VsockConfig>;

/// Why a running server refuses a change. The text is what the user reads.
pub type VsockChangeError = serve::ChangeError<VsockServerError>;

/// A VM that has its sockets and no threads yet.
struct Prepared {
    counters: Arc<VsockCounters>,
    vm: GroupVm,
    own: Option<OwnEntry>,
    handed: Option<(Arc<dyn HostKeeper>, usize)>,
    capture: Option<CaptureInterface>,
    listener: Listener,
    sessions: Option<Arc<dyn SessionWatch>>,
    session: Option<SessionImage>,
    drains: bool,
}

/// What another process has opened for a VM.
#[derive(Debug)]
pub struct HandedVsock {
    /// Names the VM in questions: no other one has it, before or after.
    pub number: usize,
    /// The socket on which its front end connects.
    pub listener: UnixListener,
    /// Its end on the host.
    pub sockets: HostSockets,
    /// Where its packets go as well.
    pub capture: Option<CaptureInterface>,
    /// Memory for the names of its connections ([`names_file`](crate::names_file)), which the
    /// process has that goes on if this one dies.
    pub names: Option<OwnedFd>,
    /// Keeps what another process needs to go on with a session if this one dies.
    pub sessions: Option<Arc<dyn SessionWatch>>,
    /// The session of a process before that died. The guest's connections of then are reset.
    pub session: Option<SessionImage>,
    /// True: the front end of that session is the last one, and the VM leaves with it. Without a
    /// session it leaves at once.
    pub drains: bool,
}

impl Prepared {
    /// Opens a VM's sockets, but for the one that this process was started with.
    fn open(
        config: &VsockConfig,
        inherited: Option<Listener>,
        capture: Option<&Capture>,
        own: &OwnSockets,
    ) -> Result<Self, VsockServerError> {
        let listen = |cause: ListenError| StartError::Listen { vm: config.name.clone(), cause };
        let sockets = HostSockets::bind(&config.uds, &config.uds_access).map_err(listen)?;
        let connector = HostConnector::Paths(PathConnector::new(&config.uds, own.clone()));
        // The front end's socket comes last: who sees it finds everything else in place.
        let listener = match inherited {
            Some(listener) => listener,
            None => Listener::new(&config.endpoint, &config.access).map_err(listen)?,
        };
        // All of its sockets are there: none of them is a host program's.
        let host = HostSide { sockets, connector, map_policy: config.map.clone() };
        Ok(Self {
            own: Some(own.enter(&config.paths())),
            ..Self::new(config, host, listener, interface(capture, config))
        })
    }

    /// With what another process has opened, which opens paths.
    fn handed(
        config: &VsockConfig,
        handed: HandedVsock,
        keeper: &Arc<dyn HostKeeper>,
    ) -> Result<Self, VsockServerError> {
        let HandedVsock { number, listener, sockets, capture, names, sessions, session, drains } = handed;
        let connector = HostConnector::Asks(AskingConnector::new(keeper.clone(), number));
        let listener = Listener::Listening { socket: Some(listener), opener: None };
        let host = HostSide { sockets, connector, map_policy: config.map.clone() };
        let mut prepared = Self::new(config, host, listener, capture);
        if session.is_some() {
            prepared.vm = prepared.vm.awaiting_session();
        }
        if let Some(file) = names {
            let resources = |cause| StartError::Resources { vm: config.name.clone(), cause };
            let names = ConnectionNames::open(file, config.limits.max_connections, session.is_some());
            prepared.vm = prepared.vm.with_names(names.map_err(resources)?);
        }
        Ok(Self { handed: Some((keeper.clone(), number)), sessions, session, drains, ..prepared })
    }

    fn new(
        config: &VsockConfig,
        host: HostSide,
        listener: Listener,
        capture: Option<CaptureInterface>,
    ) -> Self {
        let counters = Arc::<VsockCounters>::default();
        counters.limiters.set(config.rates);
        let (groups, limits) = (config.groups.clone(), config.limits);
        let vm = GroupVm::new(&config.name, config.cid, host, groups, limits, counters.clone())
            .with_random_ports()
            .with_capture(capture.as_ref());
        let (own, handed, sessions, session) = (None, None, None, None);
        Self { counters, vm, own, handed, capture, listener, sessions, session, drains: false }
    }

    /// Starts the control thread of the VM, on a thread that serves its groups.
    fn serve(
        self,
        config: &VsockConfig,
        threads: &Arc<GroupThreads>,
        roster: &Roster<VsockConfig, VsockContext>,
    ) -> Result<Served<VsockContext>, VsockServerError> {
        let Self { counters, vm, own, handed, capture, listener, sessions, session, drains } = self;
        let resources = |cause| StartError::Resources { vm: config.name.clone(), cause };
        let context = VsockContext {
            control: Control::new(config.name.clone()).map_err(resources)?,
            counters,
            cid: config.cid,
            lends: config.map.share_guest_memory,
            place: threads.join(vm, &config.name, &config.groups)?,
            _own: own,
            sessions,
            handed,
            capture: Mutex::new(capture),
            departure: roster.departure(),
        };
        if drains {
            // Before there is a thread that could let another front end in.
            context.control.drain();
        }
        Ok(Served::spawn(Arc::new(context), listener, None, session).map_err(resources)?)
    }
}

/// What a capture has the packets of a VM by.
fn interface(capture: Option<&Capture>, config: &VsockConfig) -> Option<CaptureInterface> {
    capture?.interface(LINKTYPE_VSOCK, &config.name, &format!("CID {}", config.cid))
}

/// A running server. Dropping it stops it: rings stop, connections end, sockets are removed.
///
/// A VM that is added joins the thread of those that share its groups. The connections of one that
/// is removed end: other guests see theirs with it reset. Those of one that is handed over end as
/// well, and its guest learns of that when it sends on one.
pub struct VsockServer {
    parts: VsockParts,
    start: Instant,
}

/// What adds VMs to a server.
#[derive(Clone, Default)]
struct VsockParts {
    roster: Roster<VsockConfig, VsockContext>,
    threads: Arc<GroupThreads>,
    own: OwnSockets,
    /// Where packets of all VMs go as well. It changes while the roster is locked.
    capture: Arc<Mutex<Option<Arc<Capture>>>>,
}

impl VsockParts {
    /// Adds a VM (`VmFleet::add`).
    fn add(&self, mut config: VsockConfig, turn: Option<VmTurn<'_>>) -> Result<(), VsockServerError> {
        StartError::check_late(&config.name, &config.endpoint)?;
        config.complete(self.roster.vms().len() + 1);
        self.roster.enter(std::slice::from_ref(&config), check)?;
        drop(turn);
        self.open(&config, None)
    }

    /// Opens a VM that was entered.
    fn open(&self, config: &VsockConfig, inherited: Option<Listener>) -> Result<(), VsockServerError> {
        let capture = self.capture();
        let opened = Prepared::open(config, inherited, capture.as_deref(), &self.own);
        self.serve(config, capture.as_ref(), opened)
    }

    /// Serves a VM that was entered, with a capture that may be another one by now.
    fn serve(
        &self,
        config: &VsockConfig,
        capture: Option<&Arc<Capture>>,
        opened: Result<Prepared, VsockServerError>,
    ) -> Result<(), VsockServerError> {
        let served = opened.and_then(|prepared| prepared.serve(config, &self.threads, &self.roster));
        self.roster.opened(&config.name, served, |config, vm| {
            let now = self.capture();
            if now.as_ref().map(Arc::as_ptr) != capture.map(Arc::as_ptr) {
                vm.set_capture(interface(now.as_deref(), config));
            }
        })
    }

    fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.capture).clone()
    }
}

impl VsockServer {
    /// Opens all sockets and starts to listen. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`VsockServerError::Cid`], [`VsockServerError::CidTaken`], [`VsockServerError::PathOfPort`],
    /// [`StartError::Count`], [`StartError::Name`], [`StartError::BadName`],
    /// [`StartError::PathTaken`] and [`StartError::Limit`] for configurations that can't work;
    /// [`StartError::Listen`] and [`StartError::Resources`] for what the system refuses.
    pub fn start(configs: Vec<VsockConfig>) -> Result<Self, VsockServerError> {
        Self::start_captured(configs, None, OwnSockets::default())
    }

    /// The same; packets of all VMs also go to `capture`. Guests reach none of the `own` sockets.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_captured(
        mut configs: Vec<VsockConfig>,
        capture: Option<Arc<Capture>>,
        own: OwnSockets,
    ) -> Result<Self, VsockServerError> {
        if configs.is_empty() {
            return Err(StartError::Count(0).into());
        }
        let server = Self::empty_captured(capture, own);
        server.enter(&mut configs, check)?;
        let mut inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
        // The paths of sockets that were handed over are known by now.
        check(&configs.iter().collect::<Vec<_>>())?;
        for i in connected_order(&configs, &[]) {
            server.parts.open(&configs[i], inherited[i].take())?;
        }
        Ok(server)
    }

    /// Serves VMs with what another process has opened for them, by one thread. This process opens
    /// no path itself: it asks `keeper` for connections to host programs. That process logs how VMs
    /// go.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_handed(
        vms: Vec<(VsockConfig, HandedVsock)>,
        keeper: &Arc<dyn HostKeeper>,
    ) -> Result<Self, VsockServerError> {
        if vms.is_empty() {
            return Err(StartError::Count(0).into());
        }
        let (mut configs, handed): (Vec<_>, Vec<_>) = vms.into_iter().unzip();
        let (roster, threads) = (Roster::of_handed(), Arc::new(GroupThreads::one()));
        let parts = VsockParts { roster, threads, ..VsockParts::default() };
        let server = Self { parts, start: Instant::now() };
        server.enter(&mut configs, checked)?;
        for (config, handed) in configs.iter().zip(handed) {
            server.parts.serve(config, None, Prepared::handed(config, handed, keeper))?;
        }
        Ok(server)
    }

    /// Adds a VM to those of [`Self::start_handed`].
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn add_handed(
        &self,
        config: VsockConfig,
        handed: HandedVsock,
        keeper: &Arc<dyn HostKeeper>,
    ) -> Result<(), VsockServerError> {
        let mut configs = [config];
        self.enter(&mut configs, checked)?;
        let [config] = &configs;
        self.parts.serve(config, None, Prepared::handed(config, handed, keeper))
    }

    /// Enters VMs, complete.
    fn enter(&self, configs: &mut [VsockConfig], check: VmsCheck) -> Result<(), VsockServerError> {
        let vms = configs.len();
        configs.iter_mut().for_each(|config| config.complete(vms));
        self.parts.roster.enter(configs, check)
    }

    /// The answer to a question ([`HostKeeper::ask`]) of the VM with this number: a socket that
    /// does not block, or why there is none.
    pub fn answer(&self, vm: usize, number: u64, outcome: io::Result<OwnedFd>) {
        self.parts.roster.with_running(|vms| {
            let mut outcome = Some(outcome);
            for (_, served) in vms {
                if let Some(outcome) = outcome.take_if(|_| served.vm.number() == Some(vm)) {
                    served.vm.place.rings.send(GroupCommand::Answered { number, outcome });
                }
            }
        });
    }

    /// A server without VMs. [`Self::add`] adds them; their packets go to a capture as well, if
    /// there is one. Guests reach none of the `own` sockets.
    pub fn empty_captured(capture: Option<Arc<Capture>>, own: OwnSockets) -> Self {
        let parts = VsockParts { capture: Arc::new(Mutex::new(capture)), own, ..VsockParts::default() };
        Self { parts, start: Instant::now() }
    }

    /// Gives a VM other limits, which hold at once. A limit that differs begins with full buckets.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn set_rates(&self, name: &str, rates: Limits) -> Result<(), VsockChangeError> {
        self.parts.roster.change(name, |config, served| {
            served.vm.counters.limiters.set(rates);
            config.rates = rates;
        })
    }

    /// Where the packets of all VMs go as well.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        self.parts.capture()
    }

    /// Has the packets of all VMs go to another capture from now on, or to none. The one before
    /// gets what is under way, and is returned.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        self.parts.roster.with_running(|vms| {
            for (config, served) in vms {
                served.vm.set_capture(interface(capture.as_deref(), config));
            }
            let mut now = lock(&self.parts.capture);
            std::mem::replace(&mut *now, capture)
        })
    }

    /// Has the packets of one VM go to an interface of a capture, or to none.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn capture_vm(&self, name: &str, to: Option<CaptureInterface>) -> Result<(), VsockChangeError> {
        self.parts.roster.change(name, |_, served| served.vm.set_capture(to))
    }

    /// The VMs that have threads, and which of them share one.
    pub fn members(&self) -> Vec<SetMember> {
        self.parts.threads.members()
    }

    /// The name of the VM with this number ([`HandedVsock::number`]), if it runs.
    pub fn handed_name(&self, vm: usize) -> Option<String> {
        let is_it = |served: &Served<VsockContext>| served.vm.number() == Some(vm);
        self.parts.roster.with_running(|vms| {
            vms.filter(|(_, served)| is_it(served)).map(|(config, _)| config.name.clone()).next()
        })
    }

    /// What was moved so far of the VMs with these numbers, of those that run. It asks their
    /// control threads for a sign of life.
    pub fn handed_stats(&self, vms: &[usize]) -> Vec<(usize, ServedStats<VsockVmStats>)> {
        self.parts.roster.with_running(|running| {
            let asked = |(config, served): (&VsockConfig, &Served<VsockContext>)| {
                let number = served.vm.number().filter(|number| vms.contains(number))?;
                let mut stats = ServedStats::from(VsockVmStats::new(&served.vm, config));
                stats.process.child_answers = served.answers();
                Some((number, stats))
            };
            running.filter_map(asked).collect()
        })
    }

    /// What was moved so far, of the VMs that run.
    pub fn stats(&self) -> VsockServerStats {
        let stats =
            |(config, served): (&VsockConfig, &Served<VsockContext>)| VsockVmStats::new(&served.vm, config);
        VsockServerStats::since(self.start, self.parts.roster.with_running(|vms| vms.map(stats).collect()))
    }

    /// Whether a connection is there or may still come, and can be served.
    pub fn is_alive(&self) -> bool {
        self.parts.threads.are_alive() && self.parts.roster.is_alive()
    }
}

serve_by_roster! {
    VsockServer, VsockConfig, VsockServerError, VsockVmStats, try_open: try_open
}

#[cfg(test)]
mod tests;
