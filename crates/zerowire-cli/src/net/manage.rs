//! The network server as the control socket manages it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerowire_net::{ChangeError, Fleet, ServerError, ServerStats, VmConfig};
use zerowire_vhost::serve::StartError;

use super::config::{Defaults, WrongKey, table_of};
use crate::control::{CaptureState, CaptureTable, Manage, ManageError, ManagedVm, ShownCapture};
use crate::file::Net;
use crate::pcap;

/// The server, and what the command line says of VMs that are added.
pub(super) struct Managed {
    server: Arc<dyn Fleet>,
    defaults: Defaults,
    /// Where captures may go.
    pcap_dir: Option<PathBuf>,
    /// Held while a capture begins or ends.
    capturing: Mutex<()>,
}

impl From<WrongKey> for ManageError {
    fn from(wrong: WrongKey) -> Self {
        Self::new(400, wrong.text).of_key(wrong.key)
    }
}

impl From<ServerError> for ManageError {
    fn from(e: ServerError) -> Self {
        let refusal = |status| Self::new(status, e.to_string());
        match &e {
            ServerError::Start(StartError::Name(_) | StartError::Count(_)) => refusal(409),
            ServerError::Start(StartError::BadName(_)) => refusal(400),
            ServerError::Start(StartError::PathTaken { .. }) => refusal(409).of_key("socket"),
            ServerError::Start(StartError::Listen { .. }) => refusal(422).of_key("socket"),
            ServerError::Start(StartError::Limit { .. }) => refusal(422),
            ServerError::Start(StartError::Resources { .. }) => refusal(503),
            ServerError::PortTaken { .. } => refusal(409).of_key("port"),
            ServerError::Port { .. } => refusal(422).of_key("port"),
            ServerError::Metadata { .. } => refusal(422).of_key("metadata"),
            ServerError::Process { .. } => refusal(503),
        }
    }
}

impl From<ChangeError> for ManageError {
    fn from(e: ChangeError) -> Self {
        match e {
            ChangeError::Unknown(_) => Self::new(404, e.to_string()),
            ChangeError::Busy(_) | ChangeError::Settled(_) => Self::new(409, e.to_string()),
            ChangeError::Stuck(_) => Self::new(503, e.to_string()),
            ChangeError::Refused(e) => e.into(),
        }
    }
}

impl Managed {
    pub fn new(server: Arc<dyn Fleet>, defaults: Defaults, pcap_dir: Option<&Path>) -> Self {
        let pcap_dir = pcap_dir.map(Path::to_owned);
        Self { server, defaults, pcap_dir, capturing: Mutex::default() }
    }

    fn capturing(&self) -> MutexGuard<'_, ()> {
        self.capturing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self, name: &str) -> Result<VmConfig, ManageError> {
        let vm = self.server.vms().into_iter().find(|vm| vm.config.name == name);
        Ok(vm.ok_or_else(|| ChangeError::Unknown(name.to_owned()))?.config)
    }

    fn change_metadata(&self, name: &str, vm: Net) -> Result<(), ManageError> {
        let settled = || ManageError::from(ChangeError::Settled(name.to_owned())).of_key("metadata");
        let source = vm.metadata.is_some().then_some(self.defaults.vm(name, vm)?.metadata).flatten();
        let set = self.server.set_metadata(name, source.ok_or_else(settled)?);
        set.map_err(|e| if matches!(e, ChangeError::Settled(_)) { settled() } else { e.into() })
    }
}

impl Manage for Managed {
    fn vms(&self) -> Vec<ManagedVm> {
        let shown = |vm: zerowire_net::VmInfo| ManagedVm {
            config: table_of(&vm.config),
            name: vm.config.name,
            state: vm.state,
            connected: vm.connected,
        };
        self.server.vms().into_iter().map(shown).collect()
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
                 path of 'metadata' and the limits can change"
            );
            return Err(ManageError::new(409, text).of_key(key));
        }
        let limits = self.defaults.vm(name, vm.clone())?.limits;
        if now.metadata.is_some() || vm.metadata.is_some() {
            self.change_metadata(name, vm)?;
        }
        if limits != config.limits {
            self.server.set_limits(name, limits)?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.remove(name)?)
    }

    fn drain(&self, name: &str) -> Result<(), ManageError> {
        Ok(self.server.drain(name)?)
    }

    fn capture(&self) -> Option<ShownCapture> {
        let capture = self.server.capture()?;
        let state = if capture.has_ended() { CaptureState::Ended } else { CaptureState::Running };
        Some(ShownCapture { table: CaptureTable::of(capture.options()), state })
    }

    fn begin_capture(&self, capture: CaptureTable) -> Result<(), ManageError> {
        let Some(folder) = &self.pcap_dir else {
            let text = "captures go into a folder that the server was started with: --pcap-dir DIR";
            return Err(ManageError::new(403, text));
        };
        let options = capture.options(folder)?;
        let _turn = self.capturing();
        if let Some(running) = self.server.capture().filter(|capture| !capture.has_ended()) {
            let text = format!("a capture to {} runs: end it first", running.options().target);
            return Err(ManageError::new(409, text));
        }
        let begun = pcap::begin(&options).map_err(|e| ManageError::new(422, e.to_string()).of_key("file"))?;
        self.server.set_capture(Some(begun));
        Ok(())
    }

    fn end_capture(&self) -> Result<(), ManageError> {
        let _turn = self.capturing();
        let ended = self.server.set_capture(None);
        pcap::finish(ended.as_ref());
        ended.map(drop).ok_or_else(|| ManageError::new(404, "nothing is captured"))
    }
}

/// The first key that differs and takes another device.
fn device_key(now: &Net, wanted: &Net) -> Option<&'static str> {
    let differs = [
        (now.socket != wanted.socket, "socket"),
        (now.port != wanted.port, "port"),
        (now.metadata_token != wanted.metadata_token, "metadata-token"),
        (now.mac != wanted.mac, "mac"),
        (now.guard != wanted.guard, "guard"),
        (now.socket_owner != wanted.socket_owner, "socket-owner"),
        (now.socket_group != wanted.socket_group, "socket-group"),
        (now.socket_mode != wanted.socket_mode, "socket-mode"),
    ];
    differs.into_iter().find(|(differs, _)| *differs).map(|(_, key)| key)
}
