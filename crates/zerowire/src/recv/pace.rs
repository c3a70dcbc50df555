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
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_what_it_brought_lately() {
        let (mut all, mut a, mut b) = (Messengers::default(), ArrivalPace::default(), ArrivalPace::default());
        assert!(all.none(), "silence is no message");
        all.arrived(&mut a, 65_536);
        assert!(all.none(), "one long arrival is bulk data");
        all.arrived(&mut b, 16);
        assert!(!all.none());
        all.arrived(&mut a, 65_536);
        assert!(!all.none(), "bulk data beside a message doesn't hide it");
        all.arrived(&mut b, 65_536);
        assert!(all.none(), "a transfer begins on the connection of messages");
        for _ in 0..8 {
            all.arrived(&mut b, 16);
        }
        assert!(!all.none(), "and is over");
        all.ended(&mut b);
        assert!(all.none());
        all.ended(&mut a);
        all.ended(&mut a);
        assert!(all.none(), "an end counts once");
    }

    #[test]
    fn the_average_of_any_lengths_stays_in_bounds() {
        let (mut all, mut pace) = (Messengers::default(), ArrivalPace::default());
        for len in [usize::MAX, usize::MAX, 0, 1, usize::MAX] {
            all.arrived(&mut pace, len);
        }
        assert!(all.none());
    }
}
