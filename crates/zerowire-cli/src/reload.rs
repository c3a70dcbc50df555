//! SIGHUP: the configuration file is read again.

use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use zerowire_vhost::serve::{Reloaded, RosterConfig, VmInfo};

use crate::service::HandedSockets;

/// What is known of the file when it is read again.
pub struct FileReload {
    /// Names of the file's VMs when it was read last.
    names: Vec<String>,
    /// Sockets that VMs of the file have from the service manager.
    pub handed: HandedSockets,
}

impl FileReload {
    /// With the VMs that the file has at the start.
    pub fn new<C: RosterConfig>(vms: &[C], handed: HandedSockets) -> Self {
        Self { names: names(vms), handed }
    }

    /// Makes the VMs of `file` those that it has now. The log says what has changed, and what has
    /// failed. `change` does it, and `running` are all VMs behind that. Returns the names of VMs
    /// that were added.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn reload<C: RosterConfig, E: Display>(
        &mut self,
        file: &Path,
        wanted: Result<Vec<C>>,
        change: impl FnOnce(&[String], Vec<C>) -> Result<Reloaded, E>,
        running: impl FnOnce() -> Vec<VmInfo<C>>,
    ) -> Result<Vec<String>, String> {
        let wanted = wanted.map_err(|e| format!("{e:#}"))?;
        let names = names(&wanted);
        let done = change(&self.names, wanted).map_err(|e| format!("{}: {e}", file.display()))?;
        // One that can't be removed yet is still the file's.
        let running = running();
        self.names.retain(|name| running.iter().any(|vm| vm.config.name() == name));
        self.names.extend(names);
        for e in &done.errors {
            tracing::error!("SIGHUP: {e}");
        }
        let list = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("; {what}: {}", names.join(", ")),
        };
        tracing::info!(
            "{} read again{}{}{}",
            file.display(),
            list("added", &done.added),
            list("removed", &done.removed),
            list("removed and added again", &done.replaced)
        );
        Ok([done.added, done.replaced].concat())
    }
}

fn names<C: RosterConfig>(vms: &[C]) -> Vec<String> {
    vms.iter().map(|vm| vm.name().to_owned()).collect()
}
