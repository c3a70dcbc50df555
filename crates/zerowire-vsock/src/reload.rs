//! The VMs of a configuration file that was read again.

use zerowire_vhost::serve::{self, Endpoint, Reloaded, Reloads};

use crate::config::{VsockConfig, check, connected_order};
use crate::error::VsockServerError;
use crate::fleet::VsockFleet;
use crate::server::{VsockChangeError, VsockVmInfo};
use crate::sets::check_apart;

impl Reloads for dyn VsockFleet + '_ {
    fn check(all: &[&VsockConfig]) -> Result<(), VsockServerError> {
        check(all)
    }

    fn keeps(running: &VsockConfig, wanted: &VsockConfig) -> bool {
        keeps(running, wanted)
    }

    fn endpoint(config: &VsockConfig) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, wanted: &VsockConfig) -> Vec<VsockChangeError> {
        self.set_limits(&wanted.name, wanted.rates).err().into_iter().collect()
    }
}

/// Whether a VM that runs need not be another device: the limits are set. The share of mapped
/// connections stays.
fn keeps(running: &VsockConfig, wanted: &VsockConfig) -> bool {
    let mut same = VsockConfig { rates: running.rates, ..wanted.clone() };
    same.map.max_connections = running.map.max_connections;
    same == *running
}

/// Makes the VMs of a file those of `wanted` (`VsockFleet::reload`).
pub(crate) fn reload(
    fleet: &dyn VsockFleet,
    before: &[String],
    mut wanted: Vec<VsockConfig>,
) -> Result<Reloaded, VsockServerError> {
    let vms = wanted.len();
    wanted.iter_mut().for_each(|config| config.complete(vms));
    let running = fleet.vms();
    let stays = |vm: &&VsockVmInfo| match wanted.iter().find(|w| w.name == vm.config.name) {
        Some(wanted) => keeps(&vm.config, wanted),
        None => !before.contains(&vm.config.name),
    };
    let staying: Vec<_> = running.iter().filter(stays).map(|vm| &vm.config).collect();
    let taken: Vec<_> = staying.iter().flat_map(|config| config.groups.clone()).collect();
    let coming: Vec<_> = wanted.iter().filter(|w| staying.iter().all(|s| s.name != w.name)).collect();
    check_apart(&fleet.members(), &staying, &coming)?;
    let order = connected_order(&wanted, &taken);
    let mut wanted: Vec<_> = wanted.into_iter().map(Some).collect();
    let ordered = order.into_iter().filter_map(|i| wanted[i].take()).collect();
    serve::reload(fleet, before, ordered)
}
