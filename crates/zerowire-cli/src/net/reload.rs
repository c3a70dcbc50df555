//! SIGHUP: the configuration file and metadata are read again.

use zerowire_net::Fleet;
use zerowire_vhost::serve::ChangeTurn;

use super::{NetArgs, config};
use crate::reload::FileReload;

/// Reads the configuration file with its VMs again, or else the metadata of all VMs. The log says
/// what has changed, and what has not, and why.
pub(super) fn reload(before: &mut FileReload, server: &dyn Fleet, turn: &ChangeTurn, args: &NetArgs) {
    match &args.config {
        Some(file) => {
            let wanted = config::vms(args, &before.handed);
            let change = |before: &[String], wanted| server.reload(before, wanted);
            if let Err(e) = before.reload(file, turn, wanted, change, || server.vms()) {
                tracing::error!("SIGHUP: {e}; nothing has changed, and the old metadata stay");
            }
        }
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
