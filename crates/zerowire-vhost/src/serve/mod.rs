//! A VM's socket and its control thread, whatever its device.
//!
//! A server has a [`Served`] for each VM: a control thread that listens ([`Listener`]) and serves
//! one front end after another. It asks the VM ([`Backing`]) for a [`Device`] for each connection.
//! VMs that come and go stand in a [`Roster`].

mod access;
mod admission;
mod closer;
mod control;
mod control_socket;
mod device;
mod fleet;
mod listen;
mod orders;
mod pace;
mod refusal;
mod refuser;
mod reload;
mod roster;
mod seat;
mod socket_file;
mod start;
mod stats;
mod system_calls;
mod turn;
mod visits;
mod watch;

pub use access::SocketAccess;
pub use admission::Admission;
pub use control::{
    Backing, Control, STOP_PATIENCE, Served, VisitLog, Waker, ends_in_time, side_by_side, stop_all,
};
pub use control_socket::ControlSocket;
pub use device::Device;
pub use fleet::VmFleet;
pub use listen::{Bound, Endpoint, ListenError, Listener, SocketKeeper, SocketOpener, bind_unix};
pub use orders::{Orders, TakeUpCause, TakeUpError};
pub(crate) use pace::Progress;
pub use refusal::{RefusalKind, ServerRefusal};
pub use refuser::FrontEndRefusal;
pub use reload::{Reloaded, Reloads, ReplaceError, add_or_restore, reload, replace};
pub use roster::{ChangeError, Departure, NextVm, Roster, RosterConfig, VmInfo, VmState};
pub use socket_file::SocketFile;
pub use start::{MAX_VMS, Paths, StartError, check_names, inherit, normal};
pub use stats::{ServedStats, ServerStats, VmProcess, process_cpu_seconds};
pub use system_calls::{FCNTL, OF_A_FRONT_END};
pub use turn::{ChangeTurn, TurnError, VmTurn};
pub use watch::SessionWatch;
