//! The groups of a supervisor.

use std::sync::Arc;
use std::time::Instant;

use zerowire_confine::Owner;
use zerowire_vhost::serve::{ListenError, Listener, StartError, inherit, process_cpu_seconds};
use zerowire_vsock::{
    HostSockets, OwnSockets, VsockConfig, VsockServerError, VsockServerStats, check_vms, group_sets,
};

use super::group::{self, KeptVsock, VsockGroup};
use crate::sandbox::keeper::Keeper;
use crate::sandbox::link::ANSWER_PATIENCE;
use crate::service::Watched;
use crate::vsock::VsockFleet;

/// A process that serves each group of VMs by a confined child.
pub(in crate::vsock) struct VsockSupervisor {
    groups: Vec<Arc<Keeper<VsockGroup>>>,
    /// The names of the VMs, in the order in which they were given.
    names: Vec<String>,
    start: Instant,
}

/// A VM's sockets.
type Sockets = (VsockConfig, Listener, HostSockets);

impl VsockSupervisor {
    /// Opens all sockets and starts the children, which log at level `log`. On an error nothing is
    /// left behind.
    pub(in crate::vsock) fn start(
        mut configs: Vec<VsockConfig>,
        owner: Owner,
        log: &str,
    ) -> Result<Self, VsockServerError> {
        check_vms(&mut configs)?;
        let sets = group_sets(configs.iter());
        let names = configs.iter().map(|config| config.name.clone()).collect();
        let mut supervisor = Self { groups: Vec::new(), names, start: Instant::now() };
        let (mut vms, own) = open(configs)?;
        for set in sets {
            let of_set = set.iter().filter_map(|i| vms.get_mut(*i)?.take());
            let keep = |(config, listener, sockets): Sockets| {
                let vm = config.name.clone();
                let kept = KeptVsock::new(config, listener, sockets, own.clone());
                kept.map_err(|cause| StartError::Resources { vm, cause })
            };
            let kept = of_set.map(keep).collect::<Result<Vec<_>, _>>()?;
            let Some(vm) = kept.first().map(|kept| kept.config.name.clone()) else { continue };
            let started = Keeper::start(VsockGroup::new(kept, owner, log));
            supervisor.groups.push(started.map_err(|text| VsockServerError::Process { vm, text })?);
        }
        Ok(supervisor)
    }
}

/// Opens all sockets. None of them is a host program's.
fn open(configs: Vec<VsockConfig>) -> Result<(Vec<Option<Sockets>>, OwnSockets), VsockServerError> {
    let inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
    let mut vms = Vec::new();
    let mut paths = Vec::new();
    for (config, inherited) in configs.into_iter().zip(inherited) {
        let vm = || config.name.clone();
        let failed = |cause: ListenError| StartError::Listen { vm: vm(), cause };
        if matches!(inherited, Some(Listener::Connected(_))) {
            let text = super::connected(&config);
            return Err(StartError::Limit { vm: vm(), text }.into());
        }
        let sockets = HostSockets::bind(&config.uds, &config.uds_access).map_err(failed)?;
        // The front end's socket comes last: who sees it finds everything else in place.
        let listener = match inherited {
            Some(listener) => listener,
            None => Listener::new(&config.endpoint, &config.access).map_err(failed)?,
        };
        paths.extend(config.paths());
        paths.extend(listener.path());
        vms.push(Some((config, listener, sockets)));
    }
    Ok((vms, OwnSockets::at(paths.into_iter())))
}

impl VsockFleet for VsockSupervisor {
    /// Asks all groups at once: those whose children do not answer cost the time of one.
    fn stats(&self) -> VsockServerStats {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        std::thread::scope(|scope| {
            for keeper in &self.groups {
                scope.spawn(|| group::refresh(keeper, deadline));
            }
        });
        let mut cpu_seconds = process_cpu_seconds();
        let mut vms = Vec::new();
        for keeper in &self.groups {
            let (stats, seconds) = group::stats(keeper);
            cpu_seconds += seconds;
            vms.extend(stats);
        }
        vms.sort_by_key(|vm| self.names.iter().position(|name| *name == vm.name));
        VsockServerStats {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds,
            vms,
        }
    }
}

impl Watched for VsockSupervisor {
    fn is_alive(&self) -> bool {
        true
    }

    fn connected(&self) -> (usize, usize) {
        let stats = self.stats();
        (stats.vms.iter().filter(|vm| vm.connected).count(), stats.vms.len())
    }

    /// A child that does not answer is the matter of its group alone.
    fn ask(&self) {}

    fn silent(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Drop for VsockSupervisor {
    fn drop(&mut self) {
        self.groups.iter().for_each(|keeper| keeper.ask_to_stop());
        self.groups.iter().for_each(|keeper| keeper.stop());
    }
}
