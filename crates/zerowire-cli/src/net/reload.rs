//! SIGHUP: the configuration file and metadata are read again.

use std::path::Path;

use zerowire_net::{Fleet, VmConfig};

use super::{NetArgs, config};
use crate::service::HandedSockets;

/// What SIGHUP reads again: the configuration file with its VMs, or else the metadata of all VMs.
pub(super) struct Reload {
    /// Names of the file's VMs when it was read last.
    names: Vec<String>,
    /// Sockets that VMs of the file have from the service manager.
    handed: HandedSockets,
}

impl Reload {
    pub(super) fn new(vms: &[VmConfig], handed: HandedSockets) -> Self {
        Self { names: names(vms), handed }
    }

    /// Reads again. The log says what has changed, and what has not, and why.
    pub(super) fn reload(&mut self, server: &dyn Fleet, args: &NetArgs) {
        match &args.config {
            Some(file) => self.reload_file(server, args, file),
            None if server.vms().iter().all(|vm| vm.config.metadata.is_none()) => {
                tracing::info!("SIGHUP: there is nothing to read again");
            }
            None => {
                for e in server.reload_metadata() {
                    tracing::error!("{e}; the old metadata stay");
                }
            }
        }
    }

    fn reload_file(&mut self, server: &dyn Fleet, args: &NetArgs, file: &Path) {
        let kept = |e: &dyn std::fmt::Display| {
            tracing::error!("SIGHUP: {e:#}; nothing has changed, and the old metadata stay");
        };
        let wanted = match config::vms(args, &self.handed) {
            Ok(wanted) => wanted,
            Err(e) => return kept(&format!("{e:#}")),
        };
        let names = names(&wanted);
        let done = match server.reload(&self.names, wanted) {
            Ok(done) => done,
            Err(e) => return kept(&format!("{}: {e}", file.display())),
        };
        // One that can't be removed yet is still the file's.
        let running = server.vms();
        self.names.retain(|name| running.iter().any(|vm| vm.config.name == *name));
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
    }
}

fn names(vms: &[VmConfig]) -> Vec<String> {
    vms.iter().map(|vm| vm.name.clone()).collect()
}
