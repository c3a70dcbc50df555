//! The vsock server: starts and stops all threads.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use zerowire_capture::{Capture, CaptureInterface, LINKTYPE_VSOCK};
use zerowire_vhost::serve::{
    Control, ListenError, Listener, Served, StartError, TakeUpError, inherit, process_cpu_seconds, stop_all,
};
use zerowire_vhost::session::{HandOverError, SessionImage};

use crate::config::{VsockConfig, check, group_sets};
use crate::connector::{AskingConnector, HostConnector, HostKeeper, OwnSockets, PathConnector};
use crate::device::VsockContext;
use crate::doors::{HostSide, HostSockets};
use crate::error::VsockServerError;
use crate::stats::{VsockServerStats, VsockVmStats};
use crate::{Group, GroupCommand, GroupVm, VsockCounters};

/// A VM that has its sockets and no threads yet.
struct Prepared {
    config: VsockConfig,
    counters: Arc<VsockCounters>,
    /// None once it is its group's.
    vm: Option<GroupVm>,
    capture: Option<CaptureInterface>,
    listener: Listener,
}

/// What another process has opened for a VM.
#[derive(Debug)]
pub struct HandedVsock {
    /// The socket on which its front end connects.
    pub listener: UnixListener,
    /// Its end on the host.
    pub sockets: HostSockets,
}

impl Prepared {
    /// Opens a VM's sockets, but for the one that this process was started with.
    fn open(
        config: VsockConfig,
        inherited: Option<Listener>,
        capture: Option<&Capture>,
    ) -> Result<Self, VsockServerError> {
        let listen = |cause: ListenError| StartError::Listen { vm: config.name.clone(), cause };
        let sockets = HostSockets::bind(&config.uds, &config.uds_access).map_err(listen)?;
        let connector = PathConnector::new(&config.uds, OwnSockets::default());
        // The front end's socket comes last: who sees it finds everything else in place.
        let listener = match inherited {
            Some(listener) => listener,
            None => Listener::new(&config.endpoint, &config.access).map_err(listen)?,
        };
        let connector = HostConnector::Paths(connector);
        let host = HostSide { sockets, connector, map_policy: config.map.clone() };
        Ok(Self::new(config, host, listener, capture))
    }

    fn new(config: VsockConfig, host: HostSide, listener: Listener, capture: Option<&Capture>) -> Self {
        let counters = Arc::<VsockCounters>::default();
        counters.limiters.set(config.rates);
        let (groups, limits) = (config.groups.clone(), config.limits);
        let cid = format!("CID {}", config.cid);
        let capture = capture.and_then(|c| c.interface(LINKTYPE_VSOCK, &config.name, &cid));
        let vm = GroupVm::new(&config.name, config.cid, host, groups, limits, counters.clone())
            .with_random_ports()
            .with_capture(capture.as_ref());
        Self { config, counters, vm: Some(vm), capture, listener }
    }

    /// The paths of its sockets.
    fn sockets(&self) -> Vec<PathBuf> {
        let mut paths = self.config.paths();
        paths.extend(self.listener.path());
        paths
    }

    /// Starts the control thread of the VM, which has this place in its group.
    fn serve(self, group: &Group, place: usize) -> Result<Vm, VsockServerError> {
        let Self { config, counters, capture, listener, .. } = self;
        let resources = |cause| StartError::Resources { vm: config.name.clone(), cause };
        let context = VsockContext {
            control: Control::new(config.name.clone()).map_err(resources)?,
            counters,
            cid: config.cid,
            lends: config.map.share_guest_memory,
            rings: group.rings(place),
            capture,
        };
        Ok(Vm {
            served: Served::spawn(Arc::new(context), listener, None).map_err(resources)?,
            socket: config.endpoint.to_string(),
            uds: config.uds.display().to_string(),
            groups: config.groups,
        })
    }
}

struct Vm {
    served: Served<VsockContext>,
    socket: String,
    uds: String,
    groups: Vec<String>,
}

/// A running server. Dropping it stops it: rings stop, connections end, sockets are removed.
pub struct VsockServer {
    vms: Vec<Vm>,
    // Control threads give groups commands: groups go last.
    groups: Vec<Group>,
    start: Instant,
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
        Self::start_captured(configs, None)
    }

    /// The same; the packets of all VMs go to a capture as well, if there is one.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_captured(
        mut configs: Vec<VsockConfig>,
        capture: Option<&Capture>,
    ) -> Result<Self, VsockServerError> {
        check(&mut configs)?;
        let inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
        let prepared = configs.into_iter().zip(inherited);
        let prepared = prepared.map(|(config, listener)| Prepared::open(config, listener, capture));
        let mut prepared = prepared.collect::<Result<Vec<_>, _>>()?;

        // All sockets are there: none of them is a host program's.
        let own = OwnSockets::at(prepared.iter().flat_map(Prepared::sockets));
        for vm in prepared.iter_mut().filter_map(|p| p.vm.as_mut()) {
            vm.set_own_sockets(own.clone());
        }
        Self::serve(prepared)
    }

    /// Serves VMs with what another process has opened for them. This process opens no path itself:
    /// it asks `keeper` for connections to host programs.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_handed(
        vms: Vec<(VsockConfig, HandedVsock)>,
        keeper: &Arc<dyn HostKeeper>,
    ) -> Result<Self, VsockServerError> {
        let (mut configs, handed): (Vec<_>, Vec<_>) = vms.into_iter().unzip();
        check(&mut configs)?;
        let prepared = configs.into_iter().zip(handed).enumerate();
        let prepared = prepared.map(|(place, (config, HandedVsock { listener, sockets }))| {
            let connector = HostConnector::Asks(AskingConnector::new(keeper.clone(), place));
            let listener = Listener::Listening { socket: Some(listener), made: None };
            let host = HostSide { sockets, connector, map_policy: config.map.clone() };
            Prepared::new(config, host, listener, None)
        });
        Self::serve(prepared.collect())
    }

    /// The answer to a question ([`HostKeeper::ask`]) of the VM in this place: a socket that does
    /// not block, or why there is none.
    pub fn answer(&self, vm: usize, number: u64, outcome: io::Result<OwnedFd>) {
        if let Some(vm) = self.vms.get(vm) {
            vm.served.vm.rings.send(GroupCommand::Answered { number, outcome });
        }
    }

    /// Starts the threads.
    fn serve(mut prepared: Vec<Prepared>) -> Result<Self, VsockServerError> {
        let sets = group_sets(prepared.iter().map(|p| &p.config));
        // Groups first, then control threads, which give them commands.
        let mut server = Self { vms: Vec::new(), groups: Vec::new(), start: Instant::now() };
        let mut seats = vec![(0, 0); prepared.len()];
        for (group, set) in sets.iter().enumerate() {
            let Some(&first) = set.first() else { continue };
            let vms = set.iter().filter_map(|&i| prepared[i].vm.take()).collect();
            let name = prepared[first].config.name.clone();
            server.groups.push(
                Group::spawn(format!("vsock-{name}"), vms)
                    .map_err(|cause| StartError::Resources { vm: name, cause })?,
            );
            for (place, &i) in set.iter().enumerate() {
                seats[i] = (group, place);
            }
        }
        for (vm, (group, place)) in prepared.into_iter().zip(seats) {
            let vm = vm.serve(&server.groups[group], place)?;
            server.vms.push(vm);
        }
        Ok(server)
    }

    /// What was moved so far.
    pub fn stats(&self) -> VsockServerStats {
        VsockServerStats {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds(),
            vms: self
                .vms
                .iter()
                .map(|v| VsockVmStats::new(&v.served.vm, v.socket.clone(), v.uds.clone(), v.groups.clone()))
                .collect(),
        }
    }

    /// Stops the rings of a VM's session, and returns what another process goes on with. Its
    /// connections end: the guest learns of that when it sends on one. From then on front ends of
    /// the VM wait in the socket's backlog, until [`Self::take_up`] brings a session back.
    ///
    /// # Errors
    /// [`HandOverError`]; the session goes on here then.
    pub fn hand_over(&self, vm: &str) -> Result<SessionImage, HandOverError> {
        let served = self.served(vm).ok_or_else(|| HandOverError::UnknownVm(vm.to_owned()))?;
        served.orders().hand_over()
    }

    /// Goes on with the session of another process, or with one that it did not take.
    ///
    /// # Errors
    /// [`TakeUpError`], with the image for another attempt.
    pub fn take_up(&self, vm: &str, image: SessionImage) -> Result<(), TakeUpError> {
        match self.served(vm) {
            Some(served) => served.orders().take_up(image),
            None => Err(TakeUpError::unknown(vm, image)),
        }
    }

    fn served(&self, vm: &str) -> Option<&Served<VsockContext>> {
        self.vms.iter().map(|v| &v.served).find(|s| s.vm.control.name == vm)
    }

    /// How many VMs have a front end, and how many VMs there are.
    pub fn connected(&self) -> (usize, usize) {
        let connected = self.vms.iter().filter(|vm| vm.served.vm.control.is_connected());
        (connected.count(), self.vms.len())
    }

    /// Asks the control threads of all VMs for a sign of life, see [`Self::silent`].
    pub fn ask(&self) {
        self.vms.iter().for_each(|vm| vm.served.ask());
    }

    /// Names of the VMs whose control threads have not answered since they were asked last.
    pub fn silent(&self) -> Vec<String> {
        let silent = self.vms.iter().filter(|vm| vm.served.is_silent());
        silent.map(|vm| vm.served.vm.control.name.clone()).collect()
    }

    /// Whether a connection is there or may still come, and can be served.
    pub fn is_alive(&self) -> bool {
        self.groups.iter().all(Group::is_alive) && self.vms.iter().any(|v| v.served.is_alive())
    }
}

impl Drop for VsockServer {
    fn drop(&mut self) {
        stop_all(self.vms.iter_mut().map(|v| &mut v.served));
        self.groups.clear();
    }
}
