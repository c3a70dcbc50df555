//! VMs that run get other settings: those of a configuration file that was read again, or one VM.

use zerowire_vhost::serve::{Endpoint, Listener, Reloads, StartError, normal};

use crate::fleet::{Fleet, NetChange};
use crate::port::{PortError, PortSpec};
use crate::server::ChangeError;
use crate::vm::{self, ServerError, VmConfig};

impl Reloads for dyn Fleet + '_ {
    fn check(all: &[&VmConfig]) -> Result<(), ServerError> {
        vm::check(all)
    }

    /// The metadata are read again, and the limits and the guard set.
    fn keeps(running: &VmConfig, wanted: &VmConfig) -> bool {
        let (metadata, limits, guard) = (running.metadata.clone(), running.limits, running.guard.clone());
        let is_served = metadata.as_ref().map(|m| m.tokens) == wanted.metadata.as_ref().map(|m| m.tokens);
        is_served && VmConfig { metadata, limits, guard, ..wanted.clone() } == *running
    }

    fn differs(running: &VmConfig, wanted: &VmConfig) -> bool {
        running != wanted
    }

    fn endpoint(config: &VmConfig) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, kept: Vec<(VmConfig, VmConfig)>) -> Vec<ChangeError> {
        let change = |(running, wanted): (VmConfig, VmConfig)| NetChange {
            vm: wanted.name,
            metadata: wanted.metadata,
            limits: (running.limits != wanted.limits).then_some(wanted.limits),
            guard: (running.guard != wanted.guard).then_some(wanted.guard),
        };
        self.change(kept.into_iter().map(change).collect())
    }
}

/// Checks that the metadata of a VM can be read.
pub(crate) fn check_metadata(config: &VmConfig) -> Result<(), ServerError> {
    let failed = |text| ServerError::Metadata { vm: config.name.clone(), text };
    config.metadata.as_ref().map_or(Ok(()), |source| source.load().map(drop).map_err(failed))
}

/// Tries what `wanted` needs and `running` does not have (`VmFleet::try_open`). `open` tries its
/// port.
///
/// # Errors
/// What can't be had: [`ServerError`].
pub fn try_open(
    running: &VmConfig,
    wanted: &VmConfig,
    open: impl FnOnce(&PortSpec) -> Result<(), PortError>,
) -> Result<(), ServerError> {
    let vm = || wanted.name.clone();
    check_metadata(wanted)?;
    let (port, held) = (&wanted.port, running.port.sole());
    if *port != running.port && port.sole().iter().all(|what| !held.contains(what)) {
        open(port).map_err(|cause| ServerError::Port { vm: vm(), cause })?;
    }
    match (&wanted.endpoint, &running.endpoint) {
        (Endpoint::Fd(_), _) => StartError::check_late(&wanted.name, &wanted.endpoint)?,
        (Endpoint::Path(path), Endpoint::Path(held)) if normal(path) == normal(held) => {}
        (endpoint, _) => {
            Listener::new(endpoint, &wanted.access)
                .map_err(|cause| StartError::Listen { vm: vm(), cause })?;
        }
    }
    Ok(())
}
