//! SIGHUP: the configuration file is read again.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use zerowire_vhost::serve::{ChangeTurn, Reloaded, RosterConfig, VmInfo};

use crate::service::HandedSockets;

/// What is known of the file when it is read again.
pub struct FileReload {
    /// Names of the file's VMs when it was read last.
    names: BTreeSet<String>,
    /// Sockets that VMs of the file have from the service manager.
    pub handed: HandedSockets,
}

impl FileReload {
    /// With the VMs that the file has at the start.
    pub fn new<C: RosterConfig>(vms: &[C], handed: HandedSockets) -> Self {
        Self { names: names(vms), handed }
    }

    /// Makes the VMs of `file` those that it has now. The log says what has changed, and what has
    /// failed. `change` does it, and `running` are all VMs behind that. A VM that somebody else
    /// changes meanwhile stays as it is. Returns the names of VMs that were added.
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
        let mut wanted = wanted.map_err(|e| format!("{e:#}"))?;
        let (turns, late) = turn.entering_all(&self.names | &names(&wanted));
        for (vm, e) in &late {
            tracing::error!("SIGHUP: VM {vm}: {e}");
        }
        let has_turn = |name: &str| turns.iter().any(|turn| turn.vm() == name);
        wanted.retain(|vm| has_turn(vm.name()));
        let before: Vec<_> = self.names.iter().filter(|name| has_turn(name)).cloned().collect();
        let names = names(&wanted);
        let done = change(&before, wanted).map_err(|e| format!("{}: {e}", file.display()))?;
        // One that can't be removed yet is still the file's, and so is one that is away.
        let running = running();
        let is_there = |name: &String| running.iter().any(|vm| vm.config.name() == name);
        self.names.retain(|name| is_there(name) || late.iter().any(|(vm, _)| vm == name));
        self.names.extend(names);
        for e in &done.errors {
            tracing::error!("SIGHUP: {e}");
        }
        let list = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("; {what}: {}", names.join(", ")),
        };
        tracing::info!(
            "{} read again{}{}{}{}",
            file.display(),
            list("added", &done.added),
            list("removed", &done.removed),
            list("removed and added again", &done.replaced),
            list("changed", &done.changed)
        );
        Ok([done.added, done.replaced].concat())
    }
}

fn names<C: RosterConfig>(vms: &[C]) -> BTreeSet<String> {
    // One by one: `collect` sorts first, by more code.
    let mut names = BTreeSet::new();
    names.extend(vms.iter().map(|vm| vm.name().to_owned()));
    names
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zerowire_vhost::serve::{Endpoint, VmState};
    use zerowire_vsock::VsockConfig;

    use super::*;

    fn vm(name: &str) -> VsockConfig {
        VsockConfig::new(name, Endpoint::Path("/s".into()), 3, "/u")
    }

    /// It would be added as a new one.
    #[test]
    fn a_vm_that_is_away_for_a_moment_stays_the_files_as_it_is() {
        let both = || Ok(vec![vm("a"), vm("b")]);
        let mut file = FileReload::new(&[vm("a"), vm("b")], HandedSockets::default());
        let turn = ChangeTurn::new(Duration::ZERO);
        let mut read = |names: &[&str]| {
            let change = |before: &[String], wanted: Vec<VsockConfig>| {
                assert_eq!(before, names);
                assert!(wanted.iter().map(RosterConfig::name).eq(names.iter().copied()));
                Ok::<_, String>(Reloaded::default())
            };
            let vms = names.iter().map(|name| VmInfo {
                config: vm(name),
                state: VmState::Running,
                connected: false,
            });
            file.reload(Path::new("file"), &turn, both(), change, || vms.collect()).expect("its turn");
        };
        let changed = turn.of("a").expect("nobody has it");
        read(&["b"]);
        drop(changed);
        // While one is away none is entered: all stay as they are.
        let away = turn.away("a").expect("nobody has it");
        read(&[]);
        drop(away);
        read(&["a", "b"]);
    }

    /// What the change has compared stays so until it is done.
    #[test]
    fn nobody_else_changes_a_vm_of_the_file_while_it_is_read_again() {
        let mut file = FileReload::new(&[vm("gone")], HandedSockets::default());
        let turn = ChangeTurn::new(Duration::ZERO);
        let change = |_: &[String], _| {
            let has = |vm| turn.of(vm).is_err();
            assert_eq!((has("gone"), has("new"), has("other")), (true, true, false));
            assert!(turn.away("other").is_err() && turn.entering("other").is_ok());
            Ok::<_, String>(Reloaded::default())
        };
        file.reload(Path::new("file"), &turn, Ok(vec![vm("new")]), change, Vec::new).expect("its turn");
        assert!(turn.away("new").is_ok(), "it is given back");
    }
}
