//! The vsock server as the control socket manages it.

use std::path::Path;
use std::sync::Arc;

use zerowire_capture::LINKTYPE_VSOCK;
use zerowire_vhost::serve::{ChangeTurn, StartError, VmTurn, normal};
use zerowire_vsock::{VsockConfig, VsockFleet, VsockServerError, VsockServerStats, VsockVmStats};

use super::config::{Defaults, table_of};
use super::start;
use crate::access::owner_of;
use crate::control::{CaptureControl, Manage, ManageError, ManagedVm};
use crate::file::Vsock;

/// The server, and what the command line says of VMs that are added.
pub(super) struct Managed {
    server: Arc<dyn VsockFleet>,
    defaults: Defaults,
    captures: CaptureControl,
    turn: ChangeTurn,
    /// The hard limit of open files, if there is one.
    descriptors: Option<u64>,
}

impl From<VsockServerError> for ManageError {
    fn from(e: VsockServerError) -> Self {
        let refused = Self::refused(&e);
        match &e {
            VsockServerError::Start(e) => e.into(),
            VsockServerError::Cid { .. } | VsockServerError::CidTaken { .. } => refused.of_key("cid"),
            VsockServerError::Apart { .. } => refused.of_key("groups"),
            VsockServerError::PathOfPort { .. } | VsockServerError::ControlOfPort { .. } => {
                refused.of_key("uds")
            }
            _ => refused,
        }
    }
}

impl Managed {
    pub fn new(
        server: Arc<dyn VsockFleet>,
        defaults: Defaults,
        descriptors: Option<u64>,
        pcap_dir: Option<&Path>,
    ) -> Self {
        let captures = CaptureControl::new(server.clone(), LINKTYPE_VSOCK, pcap_dir);
        Self { server, defaults, captures, turn: ChangeTurn::default(), descriptors }
    }

    fn config(&self, name: &str) -> Result<VsockConfig, ManageError> {
        let vm = self.server.vms().into_iter().find(|vm| vm.config.name == name);
        vm.map(|vm| vm.config).ok_or_else(|| ManageError::unknown(name))
    }
}

impl Manage for Managed {
    type Table = Vsock;
    type Vm = VsockVmStats;

    fn vms(&self) -> Vec<ManagedVm<Vsock>> {
        self.server.vms().iter().map(|vm| ManagedVm::new(vm, table_of)).collect()
    }

    fn stats(&self) -> VsockServerStats {
        self.server.stats()
    }

    fn add(&self, name: &str, vm: Vsock, turn: VmTurn<'_>) -> Result<(), ManageError> {
        let socket = vm.socket.clone();
        let config = self.defaults.vm(name, vm)?;
        self.server.add(config, Some(turn)).map_err(|e| {
            let key = socket_key(&e, &socket);
            of_socket(e.into(), key)
        })?;
        start::tell(&*self.server, &[name.to_owned()], self.descriptors);
        Ok(())
    }

    fn change(
        &self,
        name: &str,
        vm: Vsock,
        _: &[String],
        reconnects: bool,
        turn: VmTurn<'_>,
    ) -> Result<bool, ManageError> {
        let now = self.config(name)?;
        let socket = vm.socket.clone();
        let mut wanted = self.defaults.vm(name, vm)?;
        if socket == table_of(&now).socket {
            // It may have been handed over.
            wanted.endpoint = now.endpoint.clone();
        }
        if let Some(key) = device_key(&now, &wanted) {
            if !reconnects {
                return Err(ManageError::another_device(name, key, "the limits"));
            }
            // What it tries first may take long.
            drop(turn);
            self.server.replace(&now, wanted, &self.turn).map_err(|e| {
                let key = e.cause().and_then(|cause| socket_key(cause, &socket));
                of_socket(e.into(), key)
            })?;
            start::tell(&*self.server, &[name.to_owned()], self.descriptors);
            return Ok(true);
        }
        // Also those that it has: its process may not have answered when it got them.
        let failed = self.server.set_limits(vec![(name.to_owned(), wanted.rates)]).pop();
        failed.map_or(Ok(false), |e| Err(e.into()))
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

/// Which of its sockets a VM can't have. `socket` is its front end's.
fn socket_key(e: &VsockServerError, socket: &Path) -> Option<&'static str> {
    let path: &Path = match e {
        VsockServerError::Start(StartError::PathTaken { path, .. }) => path,
        VsockServerError::Start(StartError::Listen { cause, .. }) => cause.path()?,
        VsockServerError::PathOfPort { path, .. } | VsockServerError::ControlTaken { path, .. } => path,
        _ => return None,
    };
    Some(if normal(path) == normal(socket) { "socket" } else { "uds" })
}

/// The key of this socket is to blame, if one is.
fn of_socket(refusal: ManageError, key: Option<&'static str>) -> ManageError {
    match key {
        Some(key) => refusal.of_key(key),
        None => refusal,
    }
}

/// The first key whose value differs, in whatever words, and takes another device.
fn device_key(now: &VsockConfig, wanted: &VsockConfig) -> Option<&'static str> {
    let differ = |a: &[String], b: &[String]| a.iter().any(|group| !b.contains(group));
    let groups_differ = differ(&now.groups, &wanted.groups) || differ(&wanted.groups, &now.groups);
    let ((socket, uds), (wanted_socket, wanted_uds)) =
        ((now.access, now.uds_access), (wanted.access, wanted.uds_access));
    let differs = [
        (now.endpoint != wanted.endpoint, "socket"),
        (now.cid != wanted.cid, "cid"),
        (now.uds != wanted.uds, "uds"),
        (groups_differ, "groups"),
        (owner_of(&socket) != owner_of(&wanted_socket), "socket-owner"),
        (socket.group != wanted_socket.group, "socket-group"),
        (socket.mode() != wanted_socket.mode(), "socket-mode"),
        (owner_of(&uds) != owner_of(&wanted_uds), "uds-owner"),
        (uds.group != wanted_uds.group, "uds-group"),
        (uds.mode() != wanted_uds.mode(), "uds-mode"),
    ];
    differs.into_iter().find(|(differs, _)| *differs).map(|(_, key)| key)
}
