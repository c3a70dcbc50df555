//! VMs that run get other settings: those of a configuration file that was read again, or one VM.

use std::path::PathBuf;

use zerowire_vhost::serve::{
    self, ChangeError, ChangeTurn, Endpoint, Listener, Reloaded, Reloads, ReplaceError, StartError, normal,
};

use crate::config::{VsockConfig, check, connected_order};
use crate::doors::HostSockets;
use crate::error::VsockServerError;
use crate::fleet::VsockFleet;
use crate::server::{VsockChangeError, VsockVmInfo};
use crate::sets::check_apart;

impl dyn VsockFleet + '_ {
    /// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it
    /// was read last: those that it has no more are removed. Further VMs, which somebody else has
    /// added, stay as they are. A VM that is the same in all but its limits keeps its front end.
    /// Nobody else changes a VM of the file meanwhile ([`ChangeTurn::entering_all`]).
    ///
    /// # Errors
    /// The VMs can't be beside each other and those of others. Nothing has changed then. What fails
    /// later is one of [`Reloaded::errors`]; a VM that was there has its old settings again then.
    pub fn reload(
        &self,
        before: &[String],
        mut wanted: Vec<VsockConfig>,
    ) -> Result<Reloaded, VsockServerError> {
        let vms = wanted.len();
        wanted.iter_mut().for_each(|config| config.complete(vms));
        let running = self.vms();
        let taken = check_sets(self, &running, before, &wanted)?;
        let order = connected_order(&wanted, &taken);
        let mut wanted: Vec<_> = wanted.into_iter().map(Some).collect();
        let ordered = order.into_iter().filter_map(|i| wanted[i].take()).collect();
        serve::reload(self, before, ordered)
    }

    /// Gives a VM that runs as `before` other settings. If more than its limits differ, it is
    /// removed and added again in a turn of its own: its front end has to connect again, and its
    /// connections are reset. Others do not notice.
    ///
    /// # Errors
    /// [`ReplaceError`]. Nothing has changed where the VMs can't be beside each other, where the VM
    /// would connect two sets, or where its sockets can't be had. What shows only when the VM is
    /// gone has it added again as it was.
    pub fn replace(
        &self,
        before: &VsockConfig,
        mut wanted: VsockConfig,
        turn: &ChangeTurn,
    ) -> Result<(), ReplaceError<VsockServerError>> {
        let running = self.vms();
        wanted.map.max_connections = before.map.max_connections;
        wanted.complete(running.len());
        let (name, vm) = (wanted.name.clone(), std::slice::from_ref(&wanted));
        check_sets(self, &running, &[name], vm).map_err(ChangeError::Refused)?;
        serve::replace(self, before, wanted, turn)
    }
}

impl Reloads for dyn VsockFleet + '_ {
    fn check(all: &[&VsockConfig]) -> Result<(), VsockServerError> {
        check(all)
    }

    /// The limits are set. The share of mapped connections stays.
    fn keeps(running: &VsockConfig, wanted: &VsockConfig) -> bool {
        let mut same = VsockConfig { rates: running.rates, ..wanted.clone() };
        same.map.max_connections = running.map.max_connections;
        same == *running
    }

    fn differs(running: &VsockConfig, wanted: &VsockConfig) -> bool {
        running.rates != wanted.rates
    }

    fn endpoint(config: &VsockConfig) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, kept: Vec<(VsockConfig, VsockConfig)>) -> Vec<VsockChangeError> {
        let differ = kept.into_iter().filter(|(running, wanted)| Self::differs(running, wanted));
        self.set_limits(differ.map(|(_, wanted)| (wanted.name, wanted.rates)).collect())
    }
}

/// Checks that the VMs of `wanted` connect no sets that run. Returns the groups of the VMs that
/// stay.
fn check_sets(
    fleet: &dyn VsockFleet,
    running: &[VsockVmInfo],
    before: &[String],
    wanted: &[VsockConfig],
) -> Result<Vec<String>, VsockServerError> {
    let stays = |vm: &&VsockVmInfo| match wanted.iter().find(|w| w.name == vm.config.name) {
        Some(wanted) => <dyn VsockFleet>::keeps(&vm.config, wanted),
        None => !before.contains(&vm.config.name),
    };
    let staying: Vec<_> = running.iter().filter(stays).map(|vm| &vm.config).collect();
    let coming: Vec<_> = wanted.iter().filter(|w| staying.iter().all(|s| s.name != w.name)).collect();
    let mut members = fleet.members();
    members.retain(|member| staying.iter().any(|s| s.name == member.vm));
    check_apart(&members, &staying, &coming)?;
    Ok(staying.iter().flat_map(|config| config.groups.clone()).collect())
}

/// Tries what `wanted` needs and `running` does not have (`VmFleet::try_open`).
///
/// # Errors
/// What can't be had: [`VsockServerError`].
pub fn try_open(running: &VsockConfig, wanted: &VsockConfig) -> Result<(), VsockServerError> {
    let listen = |cause| StartError::Listen { vm: wanted.name.clone(), cause };
    let held: Vec<_> = running.paths().iter().map(|path| normal(path)).collect();
    let is_held = |path: &PathBuf| held.contains(&normal(path));
    if !wanted.host_paths().iter().any(is_held) {
        HostSockets::bind(&wanted.uds, &wanted.uds_access).map_err(listen)?;
    }
    match &wanted.endpoint {
        Endpoint::Fd(_) => StartError::check_late(&wanted.name, &wanted.endpoint)?,
        Endpoint::Path(path) if is_held(path) => {}
        endpoint => drop(Listener::new(endpoint, &wanted.access).map_err(listen)?),
    }
    Ok(())
}
