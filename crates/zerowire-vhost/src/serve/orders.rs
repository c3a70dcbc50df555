//! What whoever runs a server has a VM's control thread do: hand its session over, or take one up.
//!
//! Whoever asks for a session takes its image, or the thread gets the image back and goes on with
//! the session itself.

use std::time::Duration;

use thiserror::Error;

use super::control::{Backing, Waker};
use crate::answer::{NoAnswer, Reply, one_answer};
use crate::queue::{QueueInlet, QueueOutlet};
use crate::session::{HandOverError, ImageError, SessionImage};

/// How long a control thread may need until it comes to an order. It waits for a front end that
/// reads no answers for 5 s at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where an answer goes.
pub(super) type HandOverReply = Reply<Result<SessionImage, HandOverError>>;

/// What a control thread is to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Hand the session over.
    HandOver(HandOverReply),
    /// Take a session up.
    TakeUp(SessionImage, Reply<Result<(), TakeUpError>>),
}

/// Why a session was not taken up. The image is as good as before, for another server or the one
/// that it came from.
#[derive(Debug, Error)]
#[error("VM {vm}: {cause}")]
pub struct TakeUpError {
    /// The VM.
    pub vm: String,
    /// What is wrong.
    pub cause: TakeUpCause,
    /// The session; None where it was lost with the VM's thread.
    pub image: Option<SessionImage>,
}

impl TakeUpError {
    /// For a server without this VM.
    pub fn unknown(vm: &str, image: SessionImage) -> Self {
        Self { vm: vm.to_owned(), cause: TakeUpCause::UnknownVm, image: Some(image) }
    }
}

/// What keeps a session from being taken up.
#[derive(Debug, Error)]
pub enum TakeUpCause {
    /// No such VM.
    #[error("no VM has this name")]
    UnknownVm,
    /// The VM has a session.
    #[error("a front end is connected: only one can be served")]
    Connected,
    /// The VM is not served any more.
    #[error("its thread has ended")]
    Ended,
    /// The image can't be this VM's, or the system refuses something.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// What gives orders to the control thread of a VM.
#[derive(Clone, Debug)]
pub struct Orders {
    vm: String,
    waker: Waker,
    orders: QueueInlet<Order>,
}

impl Orders {
    pub(super) fn new(vm: String, waker: Waker, orders: QueueInlet<Order>) -> Self {
        Self { vm, waker, orders }
    }

    /// Stops the rings of the session, and returns what another process goes on with.
    ///
    /// # Errors
    /// [`HandOverError`]; the session goes on here then.
    pub fn hand_over(&self) -> Result<SessionImage, HandOverError> {
        let (reply, answer) = one_answer();
        let gone = || HandOverError::NoFrontEnd(self.vm.clone());
        self.orders.send(Order::HandOver(reply)).map_err(|_| gone())?;
        self.waker.wake();
        match answer.wait(PATIENCE).or_else(|none| answer.close().ok_or(none)) {
            Ok(answer) => answer,
            Err(NoAnswer::Late) => Err(HandOverError::Busy(self.vm.clone())),
            Err(NoAnswer::Gone) => Err(gone()),
        }
    }

    /// Goes on with a session of another process.
    ///
    /// # Errors
    /// [`TakeUpError`], with the image for another attempt.
    pub fn take_up(&self, image: SessionImage) -> Result<(), TakeUpError> {
        let (reply, answer) = one_answer();
        let ended = |image| refusal(&self.vm, TakeUpCause::Ended, image);
        self.orders.send(Order::TakeUp(image, reply)).map_err(|order| match order {
            Order::TakeUp(image, _) => ended(Some(image)),
            Order::HandOver(_) => ended(None),
        })?;
        self.waker.wake();
        answer.wait(Duration::MAX).unwrap_or_else(|_| Err(ended(None)))
    }
}

/// Why a VM does not take `image` up.
pub(super) fn refusal(vm: &str, cause: TakeUpCause, image: Option<SessionImage>) -> TakeUpError {
    TakeUpError { vm: vm.to_owned(), cause, image }
}

/// Refuses what can't be done while a session is served or none is. Returns the rest.
pub(super) fn next(vm: &dyn Backing, orders: &QueueOutlet<Order>, is_connected: bool) -> Option<Order> {
    let control = vm.control();
    match orders.try_recv().ok()? {
        Order::HandOver(reply) if !is_connected => {
            let _ = reply.send(Err(HandOverError::NoFrontEnd(control.name.clone())));
            None
        }
        Order::TakeUp(image, reply) if is_connected => {
            let _ = reply.send(Err(refusal(&control.name, TakeUpCause::Connected, Some(image))));
            None
        }
        order => Some(order),
    }
}
