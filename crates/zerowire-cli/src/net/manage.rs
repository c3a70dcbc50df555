//! The network server as the control socket manages it.

use std::path::Path;
use std::sync::Arc;

use zerowire_capture::LINKTYPE_ETHERNET;
use zerowire_net::{Fleet, ServerError, ServerStats, VmConfig, VmStats};

use super::config::{Defaults, table_of};
use crate::control::{CaptureControl, Manage, ManageError, ManagedVm};
use crate::file::Net;

/// The server, and what the command line says of VMs that are added.
pub(super) struct Managed {
    server: Arc<dyn Fleet>,
    defaults: Defaults,
    captures: CaptureControl,
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
        Self { server, defaults, captures }
    }

    fn config(&self, name: &str) -> Result<VmConfig, ManageError> {
        let vm = self.server.vms().into_iter().find(|vm| vm.config.name == name);
        vm.map(|vm| vm.config).ok_or_else(|| ManageError::unknown(name))
    }

    fn change_metadata(&self, name: &str, vm: Net) -> Result<(), ManageError> {
        let source = vm.metadata.is_some().then_some(self.defaults.vm(name, vm)?.metadata).flatten();
        let source = source.ok_or_else(|| ServerError::Settled(name.to_owned()))?;
        Ok(self.server.set_metadata(name, source)?)
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

    fn add(&self, name: &str, vm: Net) -> Result<(), ManageError> {
        Ok(self.server.add(self.defaults.vm(name, vm)?)?)
    }

    fn change(&self, name: &str, vm: Net) -> Result<(), ManageError> {
        let config = self.config(name)?;
        let now = table_of(&config);
        if let Some(key) = device_key(&now, &vm) {
            let text = format!(
                "VM {name}: '{key}' belongs to the device that its front end has: remove the VM and add it again; only the \
                 path of 'metadata', the limits and the guard can change"
            );
            return Err(ManageError::new(409, text).of_key(key));
        }
        let wanted = self.defaults.vm(name, vm.clone())?;
        if now.metadata.is_some() || vm.metadata.is_some() {
            self.change_metadata(name, vm)?;
        }
        if wanted.limits != config.limits {
            self.server.set_limits(name, wanted.limits)?;
        }
        if wanted.guard != config.guard {
            self.server.set_guard(name, wanted.guard)?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.remove(name)?)
    }

    fn drain(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.drain(name)?)
    }

    fn captures(&self) -> &CaptureControl {
        &self.captures
    }
}

/// The first key that differs and takes another device.
fn device_key(now: &Net, wanted: &Net) -> Option<&'static str> {
    let differs = [
        (now.socket != wanted.socket, "socket"),
        (now.port != wanted.port, "port"),
        (now.metadata_token != wanted.metadata_token, "metadata-token"),
        (now.mac != wanted.mac, "mac"),
        (now.socket_owner != wanted.socket_owner, "socket-owner"),
        (now.socket_group != wanted.socket_group, "socket-group"),
        (now.socket_mode != wanted.socket_mode, "socket-mode"),
    ];
    differs.into_iter().find(|(differs, _)| *differs).map(|(_, key)| key)
}
