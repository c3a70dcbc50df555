//! What the protocol says to its caller.

use std::time::Duration;

use zerowire::ledger::DropReason;

use super::Shut;
use crate::credit::{BeyondSent, Credit};

/// What a packet of the guest means here, beyond its credit fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its payload goes to the far side.
    Payload,
    /// The guest accepted the offer.
    Accepted,
    /// The guest will not send, or not receive, any more: see [`super::Protocol::guest`].
    Shut(Shut),
    /// The guest wants to know its credit.
    AsksCredit,
    /// The guest tells its credit.
    TellsCredit,
    /// The connection is over; no answer is due.
    Over(Over),
    /// It has no place in this phase: the connection is reset.
    OutOfPlace,
    /// It breaks a rule in any phase: the connection is reset.
    Broken(DropReason),
    /// It is late or has no meaning here: dropped.
    Stray,
}

impl Verdict {
    /// What another guest at the far side hears of it.
    #[inline]
    pub fn signal(self) -> Option<Signal> {
        match self {
            Self::Accepted => Some(Signal::Accepted),
            Self::Shut(shut) => Some(Signal::Shut(shut)),
            Self::AsksCredit => Some(Signal::AsksCredit),
            Self::TellsCredit => Some(Signal::TellsCredit),
            // What ends the connection is a matter of its fate.
            Self::Payload | Self::Over(_) | Self::OutOfPlace | Self::Broken(_) | Self::Stray => None,
        }
    }
}

/// What one half of a connection between guests tells the other half of its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It accepted the offer.
    Accepted,
    /// It will not send, or not receive, any more.
    Shut(Shut),
    /// It wants to know its credit.
    AsksCredit,
    /// It tells its credit.
    TellsCredit,
    /// It has taken bytes that waited for it. It may say nothing of them, so that the sender's
    /// credit is reviewed.
    Delivered,
    /// Its half of the connection is over.
    Reset,
}

/// How a guest ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It refused the offer.
    Refused,
    /// It ended it.
    Reset,
    /// It begins anew with the same ports.
    Renewed,
}

/// What the credit fields of a packet said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// True: the guest takes more than before.
    pub more_room: bool,
    /// How the counts stand to those that came before.
    pub credit: Result<Credit, BeyondSent>,
}

/// Packets without payload for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPacket {
    /// REQUEST.
    Request,
    /// RESPONSE.
    Response,
    /// CREDIT_UPDATE.
    Update,
    /// CREDIT_REQUEST.
    Ask,
    /// SHUTDOWN with these flags.
    Shutdown(Shut),
    /// RST; the connection is gone with it.
    Rst,
}

/// Payload waits, for the guest's credit or until it has read packets. The device asks it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Some: the device asks again after this, which was not so before.
    pub again: Option<Duration>,
}

/// What the caller does with a connection.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Stays,
    /// Its time is limited now: the far side has bytes to take.
    Lingers,
    /// It is over for the guest, and the far side has bytes to take. Its name is free.
    Drains,
    /// Its far side is let go of, and the guest is to confirm the end within a while.
    Closes,
    /// It is reset.
    Resets,
    /// It is reset, and nothing that waits is delivered.
    Broken,
    /// It goes.
    Gone,
}

impl Fate {
    /// This, or the other one if this is nothing.
    pub fn or(self, other: Self) -> Self {
        if self == Self::Stays { other } else { self }
    }
}
