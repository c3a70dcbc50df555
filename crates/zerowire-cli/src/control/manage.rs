//! What can be managed.

use serde::Serialize;
use zerowire_net::{ServerStats, VmState};

use super::capture::{CaptureTable, ShownCapture};
use crate::file::Net;

/// What a server does for its control socket. Calls come from several threads at once; one that
/// fails has changed nothing.
pub trait Manage: Send + Sync {
    /// All VMs.
    fn vms(&self) -> Vec<ManagedVm>;

    /// What was moved so far.
    fn stats(&self) -> ServerStats;

    /// Adds a VM.
    fn add(&self, name: &str, vm: Net) -> Result<(), ManageError>;

    /// Makes a VM what `vm` says, where that takes no other device.
    fn change(&self, name: &str, vm: Net) -> Result<(), ManageError>;

    /// Removes a VM, which is gone then.
    fn remove(&self, name: &str) -> Result<(), ManageError>;

    /// Takes no further front end for a VM, and removes it when the present one has left.
    fn drain(&self, name: &str) -> Result<(), ManageError>;

    /// The capture.
    fn capture(&self) -> Option<ShownCapture>;

    /// Begins with a capture.
    fn begin_capture(&self, capture: CaptureTable) -> Result<(), ManageError>;

    /// Ends the capture, which is written then.
    fn end_capture(&self) -> Result<(), ManageError>;
}

/// A VM as the control socket shows it.
#[derive(Clone, Debug, Serialize)]
pub struct ManagedVm {
    /// Its name.
    pub name: String,
    /// Where it is on its way.
    pub state: VmState,
    /// Whether a front end is connected.
    pub connected: bool,
    /// What it was added with. Keys with defaults have them.
    pub config: Net,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManageError {
    /// HTTP status.
    pub status: u16,
    /// What is wrong, and what to do.
    pub text: String,
    /// Which key of the body is wrong.
    pub key: Option<&'static str>,
}

impl ManageError {
    /// A refusal that no key of the body is to blame for.
    pub fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), key: None }
    }

    /// The same, about a key of the body.
    pub fn of_key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }
}
