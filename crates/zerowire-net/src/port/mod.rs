//! Where frames go: the ports of a device, a folder each.
//!
//! * `spec.rs` of a folder: what a user asks for, as text and as a value ([`PortSpec`]).
//! * `control.rs`: the open port as a control thread sees it (`Port`), and a path for a worker
//!   (`PortPath`), which a link of AF_XDP is itself.
//! * `kept.rs`: the port that one process keeps open for another one ([`KeptPort`]).
//! * The rest: what a path sends and receives by, an `Outlet` ([`transmit`](crate::transmit)) and
//!   an `Inlet` ([`receive`](crate::receive)).

mod kept;
pub mod packet;
mod path;
mod spec;
pub mod tap;
mod watch;
pub mod xdp;

use std::io;

use thiserror::Error;
use zerowire_sys::xdp::XdpError;

use crate::features::Offloads;
use crate::link::LinkState;
use crate::worker::{WorkerHandle, WorkerSetup};
pub use kept::{KeptPort, OpenPort, PortAnswer, PortKeeper, PortParts, PortText};
use packet::PacketError;
pub(crate) use path::PortPath;
pub use spec::{FollowLink, MAX_QUEUES, PortSpec, PortSpecError, Spec};
use tap::TapError;
pub use watch::{LinkWatch, WatchedLinks};

/// Why a port can't be had. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// A tap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// An AF_XDP port.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A packet port.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// It can't be had for another reason.
    #[error("port '{port}': {problem}")]
    Other {
        /// The port as it was given.
        port: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// Why all queue pairs have to let go of the guest's memory and go on with it.
#[derive(Debug)]
pub struct Renewal {
    /// In words, with what to do.
    pub why: String,
    /// Whether something is lost that is not had again by itself.
    pub is_error: bool,
}

/// An open port, as the control thread of a VM sees it. It is called when a guest comes, goes or
/// changes its mind: nothing here is on the way of a frame.
pub(crate) trait Port: Send + Sync {
    /// Queue pairs.
    fn pairs(&self) -> usize;

    /// The name that the interface has now.
    fn interface(&self) -> String;

    /// Whether the interface can carry frames.
    fn link_state(&self) -> LinkState {
        LinkState::by_name(&self.interface())
    }

    /// A front end has connected. A port whose interface was deleted takes the one that is there
    /// now.
    fn begin(&self) {}

    /// The hint in the error text when a front end names a queue that does not exist.
    fn queue_hint(&self) -> &'static str;

    /// The offloads that the guest's frames may carry.
    fn offloads(&self) -> Offloads;

    /// Those that frames toward the guest may carry.
    fn offloads_toward_guest(&self) -> Offloads {
        self.offloads()
    }

    /// Whether all chains of a ring go back to the guest in the order in which they became
    /// available, so that IN_ORDER can be offered.
    fn keeps_order(&self) -> bool {
        true
    }

    /// The MTU now, bytes.
    fn mtu(&self) -> usize;

    /// The guest has chosen features; no ring runs. Most ports have the same frames for any guest.
    fn set_features(&self, _acked: u64) -> Result<(), String> {
        Ok(())
    }

    /// As [`Self::set_features`], for a guest that goes on: frames that wait for it stay.
    fn resume_features(&self, acked: u64) -> Result<(), String> {
        self.set_features(acked)
    }

    /// The front end tells the device's MTU, 68 to 65535 bytes (vhost-user NET_SET_MTU).
    fn set_mtu(&self, mtu: usize) -> Result<(), String>;

    /// Lets a queue pair take part in the traffic, or not.
    fn attach_queue(&self, _pair: usize, _on: bool) -> Result<(), String> {
        Ok(())
    }

    /// Sends a frame of its own, without offloads, to where the guest's frames go: for other
    /// switches to learn by.
    fn announce(&self, frame: &[u8]) -> Result<(), String>;

    /// Forgets a guest that is gone: drops frames that wait for it.
    fn flush(&self) {}

    /// Whether the queue pairs share something that depends on the guest's memory as it is. Then
    /// all have to let go of it before one goes on in another memory.
    fn moves_together(&self) -> bool {
        false
    }

    /// Whether pages of the guest's memory may come after it was set (post-copy): a port that
    /// registers memory needs all of it at once.
    fn takes_missing_pages(&self) -> bool {
        false
    }

    /// Looks after what the queue pairs share; called when one of them asks for it
    /// ([`PortPath::attention`]). Returns why all of them have to let go of the guest's
    /// memory and go on with it, if they do.
    fn attend(&self) -> Option<Renewal> {
        None
    }

    /// Starts the worker of a queue pair.
    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle>;
}

/// Sends one frame on an interface, by a packet socket that is there for it alone.
fn send_through(interface: &str, frame: &[u8]) -> Result<(), String> {
    let options = zerowire::packet::PacketOptions::default();
    let mut socket = zerowire::packet::PacketSocket::open(interface, &options).map_err(|e| e.to_string())?;
    socket.send(frame).map(drop).map_err(|e| e.to_string())
}
