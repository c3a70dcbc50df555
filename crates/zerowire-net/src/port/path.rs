//! What a worker asks of a port.
//!
//! The worker (`worker.rs`) is written once, for any [`PortPath`]: it watches descriptors,
//! takes turns, arms rings, obeys commands. A path says what a turn is. It is a type parameter, so
//! that no call on the way of a frame is a dynamic one.
//!
//! A path outlives the rings: what a ring needs of the port is made with it, an
//! [`Outlet`](PortPath::Outlet) or an [`Inlet`](PortPath::Inlet).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use zerowire_vhost::memory::GuestMemory;

use crate::receive::{Inlet, ReceiveSetup};
use crate::transmit::Outlet;

/// What frames pass through between a queue pair and its port; made and used by one worker thread.
pub(crate) trait PortPath: Sized + 'static {
    /// What frames of both directions go by: a queue of the port.
    type Queue;
    /// What sends the frames of a transmit ring.
    type Outlet: Outlet<Port = Self::Queue>;
    /// What gets the frames of a receive ring.
    type Inlet: Inlet<Port = Self::Queue>;

    /// An outlet for a new ring of `ring_size` entries.
    fn outlet(&self, ring_size: u16) -> io::Result<Self::Outlet>;

    /// An inlet for a new ring of `ring_size` entries.
    fn inlet(&self, setup: ReceiveSetup, ring_size: u16) -> io::Result<Self::Inlet>;

    /// What its frames go by.
    fn queue(&mut self) -> &mut Self::Queue;

    /// The path that runs, and why, in words for the log and the statistics.
    fn describe(&self) -> String;

    /// Whether [`Self::describe`] says something else than when this was asked last; asked before
    /// each sleep, behind [`Self::sleep_at_most`].
    fn changed(&mut self) -> bool {
        false
    }

    /// What becomes readable when frames have come; None while there is nothing to watch.
    fn port(&self) -> Option<BorrowedFd<'_>>;

    /// Whether [`Self::port`] is another descriptor than when this was asked last, or has to be
    /// watched anew.
    fn renewed(&mut self) -> bool {
        false
    }

    /// A descriptor that becomes readable on events other than frames; None if there are none. It
    /// is another one only when [`Self::renewed`] says so.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// [`Self::events`] became readable.
    fn notice(&mut self) {}

    /// The memory goes: nothing may stand on it any more. Both sides have been released before;
    /// [`Self::set_memory`] follows.
    fn let_go(&mut self) {}

    /// Whether the control thread has to look after the port ([`super::Port::attend`]); asked
    /// in each turn.
    fn attention(&mut self) -> bool {
        false
    }

    /// From now on this is the guest's memory. Both sides have been released before.
    fn set_memory(&mut self, _memory: &Arc<GuestMemory>) {}

    /// How long the worker may sleep at most, if the path has something of its own to look at
    /// later.
    fn sleep_at_most(&mut self) -> Option<Duration> {
        None
    }
}
