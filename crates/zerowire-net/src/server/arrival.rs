//! How a VM gets into the roster of a server.

use std::sync::{Arc, Mutex};

use zerowire_vhost::serve::{Endpoint, StartError};

use super::roster::{Departure, Roster, RosterEntry, VmStage, lock};
use crate::vm::{self, ServerError, Source, VmConfig};

/// Adds a VM, as [`Server::add`](super::Server::add) does.
pub(super) fn add(roster: &Arc<Mutex<Roster>>, config: VmConfig) -> Result<(), ServerError> {
    if let Endpoint::Fd(fd) = config.endpoint {
        return Err(StartError::late_descriptor(config.name, fd).into());
    }
    enter(roster, std::slice::from_ref(&config))?;
    open(roster, config, Source::Here(None))
}

/// Enters VMs before they are opened. Fails if they can't be beside those that are there.
pub(super) fn enter(roster: &Mutex<Roster>, configs: &[VmConfig]) -> Result<(), ServerError> {
    let mut roster = lock(roster);
    if let Some(config) = configs.first().filter(|_| roster.closed) {
        return Err(stopping(config.name.clone()));
    }
    let all: Vec<_> = roster.entries.iter().map(|e| &e.config).chain(configs).collect();
    vm::check(&all)?;
    vm::share_budget(all.into_iter());
    let entries =
        configs.iter().map(|c| RosterEntry { config: c.clone(), stage: VmStage::Opening, next: None });
    roster.entries.extend(entries);
    Ok(())
}

/// Opens a VM that was entered.
pub(super) fn open(roster: &Arc<Mutex<Roster>>, config: VmConfig, source: Source) -> Result<(), ServerError> {
    let name = config.name.clone();
    let departure = Departure(Arc::downgrade(roster));
    let capture = lock(roster).capture.clone();
    let opened = vm::start(config, source, departure, capture.as_deref());
    let mut roster = lock(roster);
    let closed = roster.closed;
    let now = roster.capture.clone();
    let is_another = now.as_ref().map(Arc::as_ptr) != capture.as_ref().map(Arc::as_ptr);
    match (opened, roster.find(&name)) {
        (Ok(served), Ok(entry)) if !closed => {
            if is_another {
                served.vm.set_capture(vm::interface(now.as_deref(), &name, &entry.config.port));
            }
            entry.stage = VmStage::Running(served);
        }
        (Ok(mut served), _) => {
            roster.forget(&name);
            drop(roster);
            served.stop();
            return Err(stopping(name));
        }
        (Err(e), _) => {
            roster.forget(&name);
            return Err(e);
        }
    }
    Ok(())
}

/// Why a VM is not added any more.
fn stopping(vm: String) -> ServerError {
    StartError::Limit { vm, text: "the server stops: it takes no further VM".to_owned() }.into()
}
