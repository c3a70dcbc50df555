//! Tells connections that exchange messages from those that bring bulk data. Plain code without
//! I/O.
//!
//! A receiver may wait for more data before it wakes its program
//! ([`RecvOptions::gather`](super::RecvOptions::gather)). That delays all of its connections. So it
//! waits only while each connection that has sent something sends in bulk.

/// Arrivals of at least this many bytes on average are bulk data.
const BULK_BYTES: u32 = 4096;
/// The average follows the last eight arrivals or so.
const WEIGHT: u32 = 8;

/// What a connection has brought lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalPace {
    /// Bytes an arrival, a moving average that begins at zero.
    average: u32,
    /// True: this connection's arrivals are messages.
    is_messages: bool,
}

/// How many connections of a receiver exchange messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Messengers(usize);

impl Messengers {
    /// An arrival of `len` bytes on the connection of `pace`.
    pub(crate) fn arrived(&mut self, pace: &mut ArrivalPace, len: usize) {
        let len = len.min(u32::MAX as usize) as u32;
        pace.average = pace.average - pace.average / WEIGHT + len / WEIGHT;
        let was = std::mem::replace(&mut pace.is_messages, pace.average < BULK_BYTES);
        self.0 = self.0 - usize::from(was) + usize::from(pace.is_messages);
    }

    /// Nothing more comes on the connection of `pace`.
    pub(crate) fn ended(&mut self, pace: &mut ArrivalPace) {
        self.0 -= usize::from(std::mem::take(pace).is_messages);
    }

    /// Whether nobody waits for a message.
    pub(crate) fn none(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests;
