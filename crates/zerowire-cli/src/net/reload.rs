//! SIGHUP: the configuration file and metadata are read again.

use zerowire_net::{ChangeError, Fleet, NetChange, VmConfig};
use zerowire_vhost::serve::ChangeTurn;

use super::{NetArgs, config};
use crate::file;
use crate::reload::FileReload;

/// Reads the configuration file with its VMs again, or else the metadata of all VMs. The log says
/// what has changed, and what has not, and why.
pub(super) fn reload(before: &mut FileReload, server: &dyn Fleet, turn: &ChangeTurn, args: &NetArgs) {
    match &args.config {
        Some(path) => {
            let wanted = config::vms(args, file::text_again, &before.handed);
            let change = |before: &[String], wanted| server.reload(before, wanted);
            if let Err(e) = before.reload(path, turn, wanted, change, || server.vms()) {
                tracing::error!("SIGHUP: {e}; nothing has changed, and the old metadata stay");
            }
        }
        None => reload_metadata(server, turn),
    }
}

/// Reads all metadata files again.
fn reload_metadata(server: &dyn Fleet, turn: &ChangeTurn) {
    let named = || server.vms().into_iter().map(|vm| vm.config).filter(|vm| vm.metadata.is_some());
    let (turns, late) = turn.of_all(named().map(|vm| vm.name));
    if turns.is_empty() && late.is_empty() {
        return tracing::info!("SIGHUP: there is nothing to read again");
    }
    let vms = named().filter(|vm| turns.iter().any(|turn| turn.vm() == vm.name));
    let again = |vm: VmConfig| NetChange { vm: vm.name, metadata: vm.metadata, ..NetChange::default() };
    let failed = server.change(vms.map(again).collect());
    // A VM that has left meanwhile needs none.
    let failed = failed.iter().filter(|e| !matches!(e, ChangeError::Unknown(_))).map(ToString::to_string);
    for e in failed.chain(late.iter().map(|(vm, e)| format!("VM {vm}: {e}"))) {
        tracing::error!("{e}; the old metadata stay");
    }
}
