//! A hook for tests that show which bytes really go out.

use super::super::Ticket;
use super::Sender;

/// Changes bytes of a payload that is lent, for tests that look at what arrives: those behind
/// `offset`, of an owned buffer or a lease. False: not lent any more, or too short.
pub fn scribble(sender: &mut Sender, ticket: Ticket, offset: usize, bytes: &[u8]) -> bool {
    sender.loans.window.payload_mut(ticket).is_some_and(|payload| payload.scribble(offset, bytes))
}
