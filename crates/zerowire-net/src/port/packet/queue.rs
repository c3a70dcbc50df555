//! What the frames of one queue pair go by: the sockets, and the ring that some are sent by.

use std::time::Duration;

use zerowire::ledger::Counters;

use super::Link;
use super::outbound::Outbound;
use crate::io::PortIo;
use crate::port::packet::{PacketError, PacketReceive};

/// How long a worker sleeps at most while the ring has frames that the kernel had no room for.
const RING_NAP: Duration = Duration::from_millis(1);

/// The sockets and the ring of one queue pair.
pub struct PacketQueue {
    /// The batches of untagged frames.
    pub io: PortIo,
    /// The sockets.
    pub link: Link,
    pub(super) outbound: Outbound,
}

impl PacketQueue {
    /// Opens the sockets, or takes them over, as [`Link::open`] does; a ring comes with the first
    /// frame to send.
    ///
    /// # Errors
    /// Those of [`Link::open`].
    pub(super) fn open(
        interface: &str,
        receive: PacketReceive,
        no_ring: Option<&str>,
        outbound: Outbound,
    ) -> Result<Self, PacketError> {
        let (link, io) = Link::open(interface, outbound.handed.as_deref(), receive, no_ring)?;
        Ok(Self { io, link, outbound })
    }

    /// In words, for the log and the statistics.
    pub fn describe(&self) -> String {
        format!("{}; {}", self.link.describe(&self.io), self.outbound.describe())
    }

    /// Hands over frames that the kernel had no room for.
    pub fn flush(&mut self, counters: &Counters) {
        if !self.outbound.flush(counters) {
            self.link.look();
        }
    }

    /// How long the worker may sleep, behind a flush.
    pub fn sleep_at_most(&mut self, counters: &Counters) -> Option<Duration> {
        self.flush(counters);
        let ring = self.outbound.is_waiting().then_some(RING_NAP);
        [ring, self.link.sleep_at_most()].into_iter().flatten().min()
    }

    /// Hands over what the kernel takes of the ring's frames; the rest is lost and counted. To be
    /// called before the queue goes.
    pub fn end(&mut self, counters: &Counters) {
        self.outbound.end(counters);
    }
}
