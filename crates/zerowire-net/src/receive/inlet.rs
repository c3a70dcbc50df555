//! How frames come from a port to the guest's buffers.
//!
//! [`Receive`](super::Receive) has the ring, parsed chains, and the frames that wait for more of
//! them, for any port. An [`Inlet`] gets frames from its port and gives them to the guest by the
//! verbs of [`RxSide`]. It is a type parameter, so that no call on the way of a frame is a dynamic
//! one. What an inlet does not override costs nothing.
//!
//! ```text
//!  begin ─▶ ( give: frames that waited )… ─▶ receive ─▶ used ring is published ─▶ end
//! ```
//!
//! **Who owns what.** An inlet is made with its ring and goes with it. The port ([`Inlet::Port`])
//! outlives rings, and may serve the other direction, too. Chains belong to the [`RxSide`]. An
//! inlet that posts ahead takes them from it, and has them until a frame came or the ring is
//! [released](Inlet::release).

use zerowire::ledger::Counters;
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;

use super::pending::{HeldFrame, Waits};
use super::side::{Room, RxSide};
use super::{ReceiveContext, ReceiveTurn, RxPort};

/// Gets the frames of one receive ring from a port.
pub trait Inlet: Sized {
    /// What frames come by.
    type Port;

    /// A frame that waits for buffers.
    type Waiting: Waits;

    /// Who learns which chains frames take that are copied.
    type Given: Given;

    /// Chains go to the port before frames come, so that there is work whenever the driver posts
    /// some. Then [`Self::receive`] gives the frames that wait, and no frame is given up.
    const POSTS_AHEAD: bool = false;

    /// Frames ask for any offload, whatever the guest takes.
    const ANY_OFFLOAD: bool = false;

    /// The ring begins, or goes on in other memory, of which nothing is out. What was learnt of the
    /// guest's buffers and frames is forgotten.
    ///
    /// # Errors
    /// A text that says why the port can't serve it.
    fn start(
        &mut self,
        side: &RxSide<Self::Waiting>,
        port: &mut Self::Port,
        memory: &GuestMemory,
    ) -> Result<(), String>;

    /// A turn begins. Returns what is known of the port if nothing has to be done in it.
    #[inline]
    fn begin(&mut self, _side: &RxSide<Self::Waiting>, _port: &mut Self::Port) -> Option<RxPort> {
        None
    }

    /// Gives the guest a batch of frames, which it sees as soon as the caller has published them.
    /// None if nothing could be received for lack of buffers.
    ///
    /// # Errors
    /// The guest broke a rule. What it was given before that is its own, and shown to it when
    /// the ring is stopped.
    fn receive(
        &mut self,
        side: &mut RxSide<Self::Waiting>,
        port: &mut Self::Port,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Received>, RingError>;

    /// Gives the guest a frame that waited. Unless there is too little room it is over with this.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    fn give(
        &mut self,
        frame: &Self::Waiting,
        side: &mut RxSide<Self::Waiting>,
        port: &mut Self::Port,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError>;

    /// A turn ends, and what was given is published.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    #[inline]
    fn end(
        &mut self,
        _side: &mut RxSide<Self::Waiting>,
        _port: &mut Self::Port,
        _turn: &mut ReceiveTurn,
        _cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        Ok(())
    }

    /// A read has timed out waiting for buffers: use what is posted.
    fn settle(&mut self) {}

    /// Who learns which chains were taken.
    fn given(&mut self) -> &mut Self::Given;

    /// A frame of `len` bytes, header included, comes from this process itself.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    fn make_room(
        &mut self,
        _side: &mut RxSide<Self::Waiting>,
        _len: usize,
        _memory: &GuestMemory,
    ) -> Result<(), RingError> {
        Ok(())
    }

    /// Before the ring stops or its memory goes: the port gives up all chains. Those that no frame
    /// came for are put back, or given back if others behind them were used.
    fn release(&mut self, side: &mut RxSide<Self::Waiting>, _port: &mut Self::Port, cx: &ReceiveContext<'_>) {
        side.drop_waiting(cx.counters, |_| true);
        side.untake();
    }

    /// The guest broke a rule, or the ring can't begin: the port gives up all chains, and the ring
    /// is not touched. [`Self::release`] may still follow. An inlet whose port holds nothing of the
    /// guest between turns has nothing to do.
    fn abandon(&mut self, _side: &mut RxSide<Self::Waiting>, _port: &mut Self::Port, _counters: &Counters) {}

    /// Lets go of the private memory that bursts have touched.
    fn trim(&mut self) {}
}

/// Learns which chains frames take that are copied.
pub trait Given {
    /// Chains were taken from the ring before frames come, and counted: a frame gets no others.
    const AHEAD: bool;

    /// A frame of `len` bytes, header included, took the first `chains` chains.
    fn given(&mut self, len: usize, chains: usize);
}

/// What came of [`Inlet::receive`].
#[derive(Debug)]
pub struct Received {
    /// Frames that were taken from the port, or given from where they waited.
    pub frames: usize,
    /// What is known of the port.
    pub port: RxPort,
    /// True: the port could do with more buffers than the guest has posted.
    pub short: bool,
    /// The guest broke a rule behind what it was given.
    pub broken: Option<RingError>,
}

/// The side of an inlet whose frames wait in memory of their own.
pub type CopySide = RxSide<HeldFrame>;
