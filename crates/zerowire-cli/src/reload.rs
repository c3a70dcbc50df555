//! SIGHUP: the configuration file is read again.

use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use zerowire_vhost::serve::{ChangeTurn, Reloaded, RosterConfig, VmInfo};

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
        turn: &ChangeTurn,
        wanted: Result<Vec<C>>,
        change: impl FnOnce(&[String], Vec<C>) -> Result<Reloaded, E>,
        running: impl FnOnce() -> Vec<VmInfo<C>>,
    ) -> Result<Vec<String>, String> {
        let wanted = wanted.map_err(|e| format!("{e:#}"))?;
        let names = names(&wanted);
        // No VM is away meanwhile that comes again.
        let _turn = turn.shared().map_err(|e| e.to_string())?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zerowire_vsock::VsockConfig;

    use super::*;

    /// It would be added as a new one.
    #[test]
    fn nothing_is_read_again_while_a_vm_is_away_for_a_moment() {
        let vm = || VsockConfig::new("a", zerowire_vhost::serve::Endpoint::Path("/s".into()), 3, "/u");
        let mut file = FileReload::new(&[vm()], HandedSockets::default());
        let turn = ChangeTurn::new(Duration::ZERO);
        let away = turn.alone().expect("nobody has it");
        let change = |_: &[String], _| -> Result<Reloaded, String> { panic!("it is away") };
        let read = file.reload(Path::new("file"), &turn, Ok(vec![vm()]), change, Vec::new);
        assert!(read.expect_err("no turn").starts_with("another change is under way"));
        drop(away);
        let change = |before: &[String], _| {
            assert_eq!(before, ["a"]);
            Ok::<_, String>(Reloaded::default())
        };
        file.reload(Path::new("file"), &turn, Ok(vec![vm()]), change, Vec::new).expect("its turn");
    }
}
