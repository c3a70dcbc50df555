//! The VMs of a configuration file that was read again.

use zerowire_vhost::serve::{self, Endpoint, Reloaded, Reloads};

use crate::fleet::Fleet;
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

    fn endpoint(config: &VmConfig) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, wanted: &VmConfig) -> Vec<ChangeError> {
        let source = wanted.metadata.clone();
        let read = source.map_or(Ok(()), |source| self.set_metadata(&wanted.name, source));
        let limited = self.set_limits(&wanted.name, wanted.limits);
        let guarded = self.set_guard(&wanted.name, wanted.guard.clone());
        [read, limited, guarded].into_iter().filter_map(Result::err).collect()
    }
}

/// Makes the VMs of a file those of `wanted` (`Fleet::reload`).
pub(crate) fn reload(
    fleet: &dyn Fleet,
    before: &[String],
    wanted: Vec<VmConfig>,
) -> Result<Reloaded, ServerError> {
    for config in &wanted {
        if let Some(source) = &config.metadata {
            let failed = |text| ServerError::Metadata { vm: config.name.clone(), text };
            source.load().map_err(failed)?;
        }
    }
    serve::reload(fleet, before, wanted)
}
