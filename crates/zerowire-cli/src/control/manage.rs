//! What can be managed.

use serde::Serialize;
use serde::de::DeserializeOwned;
use zerowire_vhost::serve::{
    ChangeError, ChangeTurn, RefusalKind, ReplaceError, RosterConfig, ServedStats, ServerRefusal,
    ServerStats, StartError, TurnError, VmInfo, VmState, VmTurn,
};

use super::capture::CaptureControl;
use super::metrics::MetricsPage;
use crate::file::WrongKey;

/// What a server does for its control socket. Calls come from several threads at once; one that
/// fails has changed nothing, or says what it has.
pub trait Manage: Send + Sync + 'static {
    /// What a VM is added with: its table of the configuration file.
    type Table: DeserializeOwned + Serialize;
    /// What a VM has to tell.
    type Vm: VmReport;

    /// All VMs.
    fn vms(&self) -> Vec<ManagedVm<Self::Table>>;

    /// What was moved so far.
    fn stats(&self) -> ServerStats<Self::Vm>;

    /// Adds a VM, which is entered in `turn`.
    fn add(&self, name: &str, vm: Self::Table, turn: VmTurn<'_>) -> Result<(), ManageError>;

    /// Makes a VM what `vm` says, in `turn`. The request names `keys`. If that takes another
    /// device, its front end has to connect again: it is done if `reconnects` is true, in a turn of
    /// its own, and refused otherwise. Returns whether it was done so.
    fn change(
        &self,
        name: &str,
        vm: Self::Table,
        keys: &[String],
        reconnects: bool,
        turn: VmTurn<'_>,
    ) -> Result<bool, ManageError>;

    /// Whose turn it is to change the VMs.
    fn turn(&self) -> &ChangeTurn;

    /// Removes a VM, which is gone then.
    fn remove(&self, name: &str) -> Result<(), ManageError>;

    /// Takes no further front end for a VM, and removes it when the present one has left.
    fn drain(&self, name: &str) -> Result<(), ManageError>;

    /// What begins and ends captures.
    fn captures(&self) -> &CaptureControl;
}

/// The statistics of a VM, as they are shown.
pub trait VmReport: Serialize + Sized {
    /// Name of the VM.
    fn name(&self) -> &str;

    /// The statistics of a server in words.
    fn table(stats: &ServerStats<Self>) -> String;

    /// Writes what Prometheus reads of these VMs.
    fn metrics(vms: &[ServedStats<Self>], page: &mut MetricsPage);
}

/// A VM as the control socket shows it.
#[derive(Clone, Debug, Serialize)]
pub struct ManagedVm<T> {
    /// Its name.
    pub name: String,
    /// Where it is on its way.
    pub state: VmState,
    /// Whether a front end is connected.
    pub connected: bool,
    /// What it was added with. Keys with defaults have them.
    pub config: T,
}

impl<T> ManagedVm<T> {
    /// A VM whose table `table_of` makes.
    pub fn new<C: RosterConfig>(vm: &VmInfo<C>, table_of: impl Fn(&C) -> T) -> Self {
        let config = table_of(&vm.config);
        Self { name: vm.config.name().to_owned(), state: vm.state, connected: vm.connected, config }
    }
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

    /// What a server refuses. Its text is the error's.
    pub fn refused(e: &impl ServerRefusal) -> Self {
        let status = match e.kind() {
            RefusalKind::Malformed => 400,
            RefusalKind::Unknown => 404,
            RefusalKind::Conflict => 409,
            RefusalKind::Unsupported | RefusalKind::Unavailable => 422,
            RefusalKind::Passing => 503,
        };
        Self::new(status, e.to_string())
    }

    /// Nobody has a VM of this name.
    pub fn unknown(name: &str) -> Self {
        Self::new(404, format!("no VM is named '{name}'"))
    }

    /// Others kept the turn for too long.
    pub fn late(e: TurnError) -> Self {
        Self::refused(&e)
    }

    /// A change of this key that takes another device. `others` are the keys that do not.
    pub fn another_device(name: &str, key: &'static str, others: &str) -> Self {
        let text = format!(
            "VM {name}: '{key}' belongs to the device that its front end has: 'reconnect' changes it and disconnects the front \
             end (PATCH /vms/NAME?reconnect, zerowire ctl change NAME --reconnect); without it only {others} can change"
        );
        Self::new(409, text).of_key(key)
    }

    /// The same, about a key of the body.
    pub fn of_key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }
}

impl From<WrongKey> for ManageError {
    fn from(wrong: WrongKey) -> Self {
        Self::new(400, wrong.text).of_key(wrong.key)
    }
}

impl From<&StartError> for ManageError {
    fn from(e: &StartError) -> Self {
        let refused = Self::refused(e);
        match e {
            StartError::PathTaken { .. } | StartError::Listen { .. } => refused.of_key("socket"),
            _ => refused,
        }
    }
}

impl<E: ServerRefusal + Into<Self> + 'static> From<ChangeError<E>> for ManageError {
    fn from(e: ChangeError<E>) -> Self {
        match e {
            ChangeError::Refused(e) => e.into(),
            e => Self::refused(&e),
        }
    }
}

impl<E: ServerRefusal + Into<Self> + 'static> From<ReplaceError<E>> for ManageError {
    fn from(e: ReplaceError<E>) -> Self {
        let text = e.to_string();
        let refused = match e {
            ReplaceError::Unchanged(e) | ReplaceError::Later(e) => e.into(),
            ReplaceError::Restored { cause, .. } | ReplaceError::Overtaken { cause, .. } => cause.into(),
            ReplaceError::Gone { cause, .. } => Self { status: 500, ..cause.into() },
            e => Self::new(500, e.to_string()),
        };
        Self { text, ..refused }
    }
}
