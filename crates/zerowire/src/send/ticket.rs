//! Names of submissions.

use std::fmt;

/// The name of one payload given to a sender: 0 for the first, then one more each time. It wraps
/// around at 2^32, so at most 2^31 tickets may lie between two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

impl Ticket {
    /// The ticket with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The ticket `n` later.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// How many tickets this one is later than `other`; negative: earlier.
    pub const fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Payloads whose memory is back: all tickets from `first` to `last`, both included. It says
/// nothing of delivery: a payload that the kernel threw away comes back, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// First ticket.
    pub first: Ticket,
    /// Last ticket; `first` itself for one.
    pub last: Ticket,
    /// Whether the bytes were copied: by the sender, or by the kernel although they were lent.
    pub copied: bool,
}

impl Completion {
    /// Number of tickets, at least 1.
    pub const fn tickets(&self) -> usize {
        self.last.0.wrapping_sub(self.first.0) as usize + 1
    }

    /// Whether `ticket` is one of them.
    pub const fn contains(&self, ticket: Ticket) -> bool {
        ticket.0.wrapping_sub(self.first.0) <= self.last.0.wrapping_sub(self.first.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        let last = Ticket::new(u32::MAX);
        assert_eq!((last.plus(1).number(), last.plus(2).since(last), last.since(last.plus(3))), (0, 2, -3));
        let c = Completion { first: last, last: Ticket::new(1), copied: false };
        assert_eq!(c.tickets(), 3);
        assert!(
            c.contains(Ticket::new(0)) && !c.contains(Ticket::new(2)) && !c.contains(last.plus(u32::MAX))
        );
    }
}
