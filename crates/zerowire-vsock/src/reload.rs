//! The VMs of a configuration file that was read again.

use zerowire_vhost::serve::{self, Endpoint, Reloaded, Reloads};

use crate::config::{VsockConfig, check, connected_order};
use crate::error::VsockServerError;
use crate::fleet::VsockFleet;
use crate::server::{VsockChangeError, VsockVmInfo};
use crate::sets::check_apart;

/// A fleet as [`serve::reload`] takes it.
struct OfFleet<'a, F: ?Sized>(&'a F);

impl<F: VsockFleet + ?Sized> Reloads for OfFleet<'_, F> {
    type Config = VsockConfig;
    type Error = VsockServerError;

    fn vms(&self) -> Vec<VsockVmInfo> {
        self.0.vms()
    }

    fn check(&self, all: &[&VsockConfig]) -> Result<(), VsockServerError> {
        check(all)
    }

    fn keeps(&self, running: &VsockConfig, wanted: &VsockConfig) -> bool {
        keeps(running, wanted)
    }

    fn endpoint(config: &VsockConfig) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, wanted: &VsockConfig) -> Vec<VsockChangeError> {
        self.0.set_rates(&wanted.name, wanted.rates).err().into_iter().collect()
    }

    fn add(&self, config: VsockConfig) -> Result<(), VsockServerError> {
        self.0.add(config)
    }

    fn add_later(&self, config: VsockConfig) -> Result<(), VsockServerError> {
        self.0.add_later(config)
    }

    fn remove(&self, name: &str) -> Result<(), VsockChangeError> {
        self.0.remove(name)
    }
}

/// Whether a VM that runs need not be another device: the limits are set. The share of mapped
/// connections stays.
fn keeps(running: &VsockConfig, wanted: &VsockConfig) -> bool {
    let mut same = VsockConfig { rates: running.rates, ..wanted.clone() };
    same.map.max_connections = running.map.max_connections;
    same == *running
}

/// Makes the VMs of a file those of `wanted` ([`VsockFleet::reload`]).
pub(crate) fn reload(
    fleet: &(impl VsockFleet + ?Sized),
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
    serve::reload(&OfFleet(fleet), before, ordered)
}
