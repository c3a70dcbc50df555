//! The network server: VMs come and go while it runs.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use zerowire_capture::Capture;
use zerowire_metadata::MetadataTree;
use zerowire_sys::lock;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::{Listener, Roster, Served, StartError, VmTurn, inherit};
use zerowire_vhost::serve_by_roster;

use crate::guard::FrameGuard;
use crate::metadata::MetadataSource;
use crate::reload::try_open;
use crate::stats::{ServerStats, VmStats};
use crate::vm::{self, Handed, ServerError, VmConfig, VmContext};

/// A VM as it was configured, with the metadata, limits and guard that it has now.
pub type VmInfo = zerowire_vhost::serve::VmInfo<VmConfig>;

/// Why a running server refuses a change. The text is what the user reads.
pub type ChangeError = zerowire_vhost::serve::ChangeError<ServerError>;

/// A running server. Dropping it stops it: rings stop, sockets are removed, taps that it made go.
pub struct Server {
    parts: ServerParts,
    start: Instant,
}

/// What adds VMs to a server.
#[derive(Clone)]
struct ServerParts {
    roster: Roster<VmConfig, VmContext>,
    /// Where frames of all VMs go as well. It changes while the roster is locked.
    capture: Arc<Mutex<Option<Arc<Capture>>>>,
}

impl ServerParts {
    /// Adds a VM (`VmFleet::add`).
    fn add(&self, config: VmConfig, turn: Option<VmTurn<'_>>) -> Result<(), ServerError> {
        StartError::check_late(&config.name, &config.endpoint)?;
        self.roster.enter(std::slice::from_ref(&config), vm::check)?;
        drop(turn);
        self.open(config, None)
    }

    /// Opens a VM that was entered, but for the socket that this process was started with.
    fn open(&self, config: VmConfig, inherited: Option<Listener>) -> Result<(), ServerError> {
        let opened = vm::open(&config, inherited);
        self.serve(config, opened)
    }

    /// Serves a VM that was entered with what was opened for it.
    fn serve(&self, config: VmConfig, opened: Result<Handed, ServerError>) -> Result<(), ServerError> {
        let name = config.name.clone();
        let capture = self.capture();
        let start = |handed| vm::start(config, handed, self.roster.departure(), capture.as_deref());
        self.roster.opened(&name, opened.and_then(start), |config, vm| {
            let now = self.capture();
            if now.as_ref().map(Arc::as_ptr) != capture.as_ref().map(Arc::as_ptr) {
                vm.capture.set(vm::interface(now.as_deref(), &name, &config.port), &vm.control);
            }
        })
    }

    fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.capture).clone()
    }
}

impl Server {
    /// Opens all ports and sockets and starts to listen. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`ServerError`]. An empty list is one, too.
    pub fn start(configs: Vec<VmConfig>) -> Result<Self, ServerError> {
        Self::start_captured(configs, None)
    }

    /// The same; the frames of all VMs go to a capture as well, if there is one.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_captured(
        configs: Vec<VmConfig>,
        capture: Option<Arc<Capture>>,
    ) -> Result<Self, ServerError> {
        if configs.is_empty() {
            return Err(StartError::Count(0).into());
        }
        let server = Self::empty_captured(capture);
        server.parts.roster.enter(&configs, vm::check)?;
        let inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
        for (config, inherited) in configs.into_iter().zip(inherited) {
            server.parts.open(config, inherited)?;
        }
        Ok(server)
    }

    /// Serves one VM with what another process has opened for it. It opens nothing itself. Its
    /// frames go to a capture as well, if there is one. That process logs how the VM goes.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start_handed(
        config: VmConfig,
        handed: Handed,
        capture: Option<Arc<Capture>>,
    ) -> Result<Self, ServerError> {
        let server = Self::of(Roster::of_handed(), capture);
        // That process has checked it. Its path is that of its folder.
        server.parts.roster.enter::<ServerError>(std::slice::from_ref(&config), |_| Ok(()))?;
        server.parts.serve(config, Ok(handed))?;
        Ok(server)
    }

    /// A server without VMs. [`Self::add`] adds them.
    pub fn empty() -> Self {
        Self::empty_captured(None)
    }

    /// The same; the frames of VMs go to a capture as well, if there is one.
    pub fn empty_captured(capture: Option<Arc<Capture>>) -> Self {
        Self::of(Roster::default(), capture)
    }

    fn of(roster: Roster<VmConfig, VmContext>, capture: Option<Arc<Capture>>) -> Self {
        let parts = ServerParts { roster, capture: Arc::new(Mutex::new(capture)) };
        Self { parts, start: Instant::now() }
    }

    /// Gives a VM other metadata, which its guest sees at once. The same file is read again.
    ///
    /// # Errors
    /// The VM is unknown, just comes or goes, or has no metadata service that can serve them. The
    /// file can't be read. The old metadata stay then.
    pub fn set_metadata(&self, name: &str, source: MetadataSource) -> Result<(), ChangeError> {
        let failed = |text| ServerError::Metadata { vm: name.to_owned(), text };
        // The file may lie on something slow: it is read without the lock.
        let tree = source.load().map_err(failed)?;
        self.set_tree(name, source, tree)
    }

    /// Gives a VM metadata that were read already from `source`, which its guest sees at once.
    ///
    /// # Errors
    /// As for [`Self::set_metadata`].
    pub fn set_tree(
        &self,
        name: &str,
        source: MetadataSource,
        tree: Arc<MetadataTree>,
    ) -> Result<(), ChangeError> {
        self.parts.roster.change(name, |config, served| {
            if config.metadata.as_ref().is_none_or(|m| m.tokens != source.tokens) {
                return Err(ServerError::Settled(name.to_owned()));
            }
            tracing::info!("{name}: metadata read again from {}", source.file.display());
            served.vm.metadata.set(Some((tree, source.tokens)), &served.vm.control);
            config.metadata = Some(source);
            Ok(())
        })??;
        Ok(())
    }

    /// Where the frames of all VMs go as well.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        self.parts.capture()
    }

    /// Has the frames of all VMs go to another capture, or to none. The one before gets what is
    /// under way, and is returned. Does not wait for the VMs' threads: see [`Self::captures`].
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        self.parts.roster.with_running(|vms| {
            for (config, served) in vms {
                let interface = vm::interface(capture.as_deref(), &config.name, &config.port);
                served.vm.capture.set(interface, &served.vm.control);
            }
            let mut now = lock(&self.parts.capture);
            std::mem::replace(&mut *now, capture)
        })
    }

    /// Whether the VMs whose front ends are connected record for the present capture, if any.
    pub fn captures(&self) -> bool {
        self.parts.roster.with_running(|vms| {
            vms.fold(true, |all, (_, Served { vm, .. })| {
                let has_it = !vm.control.is_connected() || vm.capture.is_passed();
                if !has_it {
                    // The thread may have been woken before this front end came.
                    vm.control.wake();
                }
                all && has_it
            })
        })
    }

    /// Gives a VM other limits, which hold at once. A limit that differs begins with full buckets.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn set_limits(&self, name: &str, limits: Limits) -> Result<(), ChangeError> {
        self.parts.roster.change(name, |config, served| {
            served.vm.shared.limiters.set(limits);
            config.limits = limits;
        })
    }

    /// Lets a guest send other frames than before, or all. The VM's control thread passes that to
    /// the workers, which take it behind the batch that they are at.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn set_guard(&self, name: &str, guard: Option<FrameGuard>) -> Result<(), ChangeError> {
        self.parts.roster.change(name, |config, served| {
            // Each change lets a storm begin anew.
            if config.guard != guard {
                served.vm.guard.set(guard.clone().map(Arc::new), &served.vm.control);
                config.guard = guard;
            }
        })
    }

    /// What was moved so far, of the VMs that run.
    pub fn stats(&self) -> ServerStats {
        let stats = |(config, served): (&VmConfig, &Served<VmContext>)| {
            VmStats::new(&served.vm, config.endpoint.to_string(), &config.port)
        };
        ServerStats::since(self.start, self.parts.roster.with_running(|vms| vms.map(stats).collect()))
    }

    /// Asks all control threads for a sign of life. False: one has not given the one before.
    pub fn answers(&self) -> bool {
        // It asks each, also after one that does not answer.
        self.parts.roster.with_running(|vms| vms.filter(|(_, served)| !served.answers()).count() == 0)
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        self.parts.roster.is_alive()
    }
}

serve_by_roster! {
    Server, VmConfig, ServerError, VmStats, try_open: try_to_serve
}

fn try_to_serve(running: &VmConfig, wanted: &VmConfig) -> Result<(), ServerError> {
    try_open(running, wanted, |port| port.open().map(drop))
}

#[cfg(test)]
mod tests;
