//! A connection between two guests: what one half hears of the other half.

use super::{End, VsockConnection};
use crate::credit::{CreditReview, ToGuest};
use crate::held::Held;
use crate::protocol::Signal;

/// What the caller does once a half has taken a signal.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOutcome {
    /// Nothing.
    Nothing,
    /// There may be something for the guest.
    Ready,
    /// As [`Self::Ready`]; both sides agreed.
    Opened,
    /// A review of the guest's credit found this.
    Credit(CreditReview),
    /// The connection is reset.
    Resets,
}

impl VsockConnection {
    /// Takes a signal from the other half; `far` is what may be sent to the other guest.
    pub fn take_signal(&mut self, signal: Signal, far: &ToGuest) -> SignalOutcome {
        match signal {
            Signal::Accepted => {
                self.protocol.accepted();
                SignalOutcome::Opened
            }
            Signal::Shut(shut) => {
                self.protocol.far_ends(shut);
                if shut.sends_no_more() {
                    self.drop_partial();
                }
                SignalOutcome::Ready
            }
            // The answer at once tells what is known here; this guest may know better.
            Signal::AsksCredit if self.protocol.takes_payload() => {
                self.protocol.pass_ask();
                SignalOutcome::Ready
            }
            Signal::AsksCredit => SignalOutcome::Nothing,
            Signal::TellsCredit => {
                self.protocol.owe_update();
                SignalOutcome::Ready
            }
            Signal::Delivered => SignalOutcome::Credit(self.protocol.from.sibling_took(far)),
            Signal::Reset => {
                self.end = End::Gone;
                self.drop_partial();
                SignalOutcome::Resets
            }
        }
    }

    /// The other guest sends no more: a message that it did not complete is none.
    fn drop_partial(&mut self) {
        if let Some(held) = &mut self.held {
            held.drop_partial();
        }
        Held::settle(&mut self.held);
    }
}
