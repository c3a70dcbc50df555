//! What a VM's device has moved and seen.

use std::sync::Mutex;

use serde::Serialize;
use zerowire::ledger::{Counter, Counters, Totals};
use zerowire_sys::lock;
use zerowire_vhost::host::{KickHistogram, KickTimes};
use zerowire_vhost::limit::Limiters;

use super::mapped::MapUse;

/// Counters of one VM's device: one writer, the group's thread.
#[derive(Debug, Default)]
pub struct VsockCounters {
    /// From the guest. Frames are packets with payload; bytes are payload.
    pub transmit: Counters,
    /// To the guest.
    pub receive: Counters,
    /// How long kicks took: of the receive ring, and of the transmit ring.
    pub kicks: [KickTimes; 2],
    /// What may pass in a second, and how often that was too little.
    pub limiters: Limiters,
    /// Packets of either direction that carry no payload.
    pub control_packets: Counter,
    /// Packets of the guest whose credit fields were older than those before them, and did not
    /// count.
    pub stale_credit: Counter,
    /// Connections that were established.
    pub opened: Counter,
    /// Of all connections, those that have ended.
    pub closed: Counter,
    /// Connection requests that nobody took.
    pub refused: Counter,
    /// Of these, the guest's beyond its rate of requests.
    pub over_rate: Counter,
    /// What mapped connections take now.
    pub mapped: MapUse,
    /// Resets that were sent to the guest for other reasons.
    pub resets: Counter,
    /// Host programs that said something else than CONNECT, or nothing in time.
    pub bad_handshakes: Counter,
    /// Rings that were stopped because the guest broke a rule.
    pub ring_errors: Counter,
    last_error: Mutex<Option<String>>,
}

impl VsockCounters {
    /// Keeps the text of an error.
    pub fn set_error(&self, text: String) {
        *lock(&self.last_error) = Some(text);
    }

    /// The values now.
    pub fn snapshot(&self) -> VsockTotals {
        VsockTotals {
            ring_errors: self.ring_errors.get(),
            last_error: lock(&self.last_error).clone(),
            connections_opened: self.opened.get(),
            connections_open: self.opened.get().saturating_sub(self.closed.get()),
            connections_refused: self.refused.get(),
            requests_over_rate: self.over_rate.get(),
            mapped: MappedTotals {
                mapped_connections: self.mapped.connections(),
                mapped_windows: self.mapped.windows(),
                mapped_bytes: self.mapped.bytes(),
                mapped_refused: self.mapped.refused.get(),
            },
            resets: self.resets.get(),
            bad_handshakes: self.bad_handshakes.get(),
            control_packets: self.control_packets.get(),
            stale_credit: self.stale_credit.get(),
            limits: LimitTotals::of(&self.limiters),
            kicks: KickTotals {
                receive_kick_seconds: self.kicks[0].snapshot(),
                transmit_kick_seconds: self.kicks[1].snapshot(),
            },
            transmit: self.transmit.snapshot(),
            receive: self.receive.snapshot(),
        }
    }
}

/// What mapped connections take and took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MappedTotals {
    /// Mapped connections now, those included that wait for the guest's answer.
    pub mapped_connections: u64,
    /// Their windows.
    pub mapped_windows: u64,
    /// Bytes of these windows and their headers.
    pub mapped_bytes: u64,
    /// Of the refused, the mapped ones beyond
    /// [`MapPolicy::max_connections`](super::mapped::MapPolicy::max_connections) or
    /// [`MapPolicy::max_total_bytes`](super::mapped::MapPolicy::max_total_bytes), and those for
    /// which this process had no descriptor or memory.
    pub mapped_refused: u64,
}

/// How a VM was held up by its limits.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LimitTotals {
    /// How often packets of the guest waited.
    pub transmit_limit_waits: u64,
    /// How long.
    pub transmit_limit_wait_seconds: f64,
    /// How often payload for the guest waited.
    pub receive_limit_waits: u64,
    /// How long.
    pub receive_limit_wait_seconds: f64,
}

impl LimitTotals {
    fn of(limiters: &Limiters) -> Self {
        let (transmit, receive) = (limiters.transmit.stats(), limiters.receive.stats());
        Self {
            transmit_limit_waits: transmit.waits,
            transmit_limit_wait_seconds: transmit.waited.as_secs_f64(),
            receive_limit_waits: receive.waits,
            receive_limit_wait_seconds: receive.waited.as_secs_f64(),
        }
    }
}

/// How long kicks took, from the thread's wake-up until the ring was served.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KickTotals {
    /// Those of the transmit ring.
    pub transmit_kick_seconds: KickHistogram,
    /// Those of the receive ring.
    pub receive_kick_seconds: KickHistogram,
}

/// A readable copy of [`VsockCounters`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct VsockTotals {
    /// Rings that were stopped because the guest broke a rule.
    pub ring_errors: u64,
    /// The last error of the guest's.
    pub last_error: Option<String>,
    /// Connections that were established since the start.
    pub connections_opened: u64,
    /// Of these, the ones that are open.
    pub connections_open: u64,
    /// Connection requests, of the guest or of host programs, that nobody took.
    pub connections_refused: u64,
    /// Of these, the guest's beyond
    /// [`VsockLimits::request_rate`](super::VsockLimits::request_rate).
    pub requests_over_rate: u64,
    /// Mapped connections.
    #[serde(flatten)]
    pub mapped: MappedTotals,
    /// Resets that were sent to the guest for other reasons.
    pub resets: u64,
    /// Host programs that said something else than CONNECT, or nothing in time.
    pub bad_handshakes: u64,
    /// Packets of either direction that carry no payload.
    pub control_packets: u64,
    /// Packets of the guest whose credit fields were older than those before them, and did not
    /// count.
    pub stale_credit: u64,
    /// How the limits held it up.
    #[serde(flatten)]
    pub limits: LimitTotals,
    /// How long kicks took.
    #[serde(flatten)]
    pub kicks: KickTotals,
    /// From the guest: packets with payload, and their payload's bytes.
    pub transmit: Totals,
    /// To the guest.
    pub receive: Totals,
}
