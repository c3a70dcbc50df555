//! The network server as the control socket manages it.

use std::path::Path;
use std::sync::Arc;

use zerowire_capture::LINKTYPE_ETHERNET;
use zerowire_net::{Fleet, NetChange, ServerError, ServerStats, VmConfig, VmStats};
use zerowire_vhost::serve::{ChangeTurn, VmTurn};

use super::config::{Defaults, table_of};
use crate::access::owner_of;
use crate::control::{CaptureControl, Manage, ManageError, ManagedVm};
use crate::file::Net;

/// The server, and what the command line says of VMs that are added.
pub(super) struct Managed {
    server: Arc<dyn Fleet>,
    defaults: Defaults,
    captures: CaptureControl,
    turn: ChangeTurn,
}

impl From<ServerError> for ManageError {
    fn from(e: ServerError) -> Self {
        let refused = Self::refused(&e);
        match &e {
            ServerError::Start(e) => e.into(),
            ServerError::PortTaken { .. } | ServerError::Port { .. } => refused.of_key("port"),
            ServerError::Metadata { .. } | ServerError::Settled(_) => refused.of_key("metadata"),
            _ => refused,
        }
    }
}

impl Managed {
    pub fn new(server: Arc<dyn Fleet>, defaults: Defaults, pcap_dir: Option<&Path>) -> Self {
        let captures = CaptureControl::new(server.clone(), LINKTYPE_ETHERNET, pcap_dir);
        Self { server, defaults, captures, turn: ChangeTurn::default() }
    }

    fn config(&self, name: &str) -> Result<VmConfig, ManageError> {
        let vm = self.server.vms().into_iter().find(|vm| vm.config.name == name);
        vm.map(|vm| vm.config).ok_or_else(|| ManageError::unknown(name))
    }

    /// Changes a VM whose front end stays.
    fn change_kept(&self, change: NetChange) -> Result<(), ManageError> {
        self.server.change(vec![change]).pop().map_or(Ok(()), |e| Err(e.into()))
    }
}

impl Manage for Managed {
    type Table = Net;
    type Vm = VmStats;

    fn vms(&self) -> Vec<ManagedVm<Net>> {
        self.server.vms().iter().map(|vm| ManagedVm::new(vm, table_of)).collect()
    }

    fn stats(&self) -> ServerStats {
        self.server.stats()
    }

    fn add(&self, name: &str, vm: Net, turn: VmTurn<'_>) -> Result<(), ManageError> {
        Ok(self.server.add(self.defaults.vm(name, vm)?, Some(turn))?)
    }

    fn change(
        &self,
        name: &str,
        mut vm: Net,
        keys: &[String],
        reconnects: bool,
        turn: VmTurn<'_>,
    ) -> Result<bool, ManageError> {
        let now = self.config(name)?;
        let before = table_of(&now);
        let has_socket = vm.socket == before.socket;
        let has_metadata = vm.metadata.is_some() || self.defaults.have_metadata();
        if !has_metadata && vm.metadata_token == before.metadata_token {
            // It goes with the metadata; another one has been asked for.
            vm.metadata_token = None;
        }
        let mut wanted = self.defaults.vm(name, vm)?;
        if has_socket {
            // It may have been handed over.
            wanted.endpoint = now.endpoint.clone();
        }
        if let Some(key) = device_key(&now, &wanted) {
            if !reconnects {
                let others = "the path of 'metadata', the limits and the guard";
                return Err(ManageError::another_device(name, key, others));
            }
            // What it tries first may take long.
            drop(turn);
            self.server.replace(&now, wanted, &self.turn)?;
            return Ok(true);
        }
        let nothing = || NetChange { vm: name.to_owned(), ..NetChange::default() };
        // First: where they can't be had, nothing changes. The same file is read again where the
        // request names it.
        if wanted.metadata.is_some() && keys.iter().any(|key| key == "metadata") {
            self.change_kept(NetChange { metadata: wanted.metadata, ..nothing() })?;
        }
        // Also what it has: its process may not have answered when it got that.
        let (limits, guard) = (Some(wanted.limits), Some(wanted.guard));
        self.change_kept(NetChange { limits, guard, ..nothing() })?;
        Ok(false)
    }

    fn remove(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.remove(name)?)
    }

    fn drain(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.drain(name)?)
    }

    fn turn(&self) -> &ChangeTurn {
        &self.turn
    }

    fn captures(&self) -> &CaptureControl {
        &self.captures
    }
}

/// The first key whose value differs, in whatever words, and takes another device.
fn device_key(now: &VmConfig, wanted: &VmConfig) -> Option<&'static str> {
    let tokens = |vm: &VmConfig| vm.metadata.as_ref().map(|source| source.tokens);
    let differs = [
        (now.endpoint != wanted.endpoint, "socket"),
        (now.port != wanted.port, "port"),
        (now.metadata.is_some() != wanted.metadata.is_some(), "metadata"),
        (tokens(now) != tokens(wanted), "metadata-token"),
        (now.mac != wanted.mac, "mac"),
        (owner_of(&now.access) != owner_of(&wanted.access), "socket-owner"),
        (now.access.group != wanted.access.group, "socket-group"),
        (now.access.mode() != wanted.access.mode(), "socket-mode"),
    ];
    differs.into_iter().find(|(differs, _)| *differs).map(|(_, key)| key)
}
