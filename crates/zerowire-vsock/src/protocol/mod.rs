//! What a guest and its device say to each other about one connection, and what is due next.
//!
//! ```text
//!  guest asks --> Asked ---far side accepts--> Open ---both ends are done--> Resetting --> gone
//!  far side asks --> Offered --guest accepts----^ |                             ^
//!                                                 |  any rule broken, or late --+
//!                                                 +--guest resets, bytes wait--> Draining --> gone
//! ```
//!
//! A *far side* is a host program, or the other guest. Plain code: no ring, no socket and no clock
//! in here. Whoever calls says what time it is.

mod shut;
#[cfg(test)]
mod tests;
mod verdict;

use std::time::{Duration, Instant};

pub use shut::Shut;
use shut::SideEnds;
pub use verdict::{ControlPacket, Fate, Fields, Over, Signal, Verdict, Waits};
use zerowire::ledger::DropReason;

use super::credit::{BeyondSent, Credit, FromGuest, ToGuest};
use super::packet::{Header, Kind, Op};

/// How long the other side may take to answer. The other side is a guest that is offered a
/// connection or a host program whose backlog is full. Or it is one that connected and does not say
/// where to.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a guest may take to confirm that it knows of the end (as long as Linux waits,
/// `VSOCK_CLOSE_TIMEOUT` in net/vmw_vsock/virtio_transport_common.c).
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(8);

/// How long bytes of a guest that has ended its connection wait for the far side.
pub const LINGER: Duration = Duration::from_secs(30);

/// How soon the device asks a guest again whether it has read packets, and how late when it never
/// says so.
const ASK_AFTER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The guest asked; the far side has not answered yet.
    Asked {
        /// When patience ends with a far side that is still dialled. None where another guest must
        /// answer: it has a time of its own.
        until: Option<Instant>,
    },
    /// The far side asked; the guest has not answered yet.
    Offered {
        /// When patience with the guest ends.
        until: Instant,
        /// True: REQUEST is not sent yet.
        due: bool,
    },
    /// Both agreed.
    Open {
        /// True: RESPONSE is not sent yet.
        due: bool,
        /// When patience ends: with a far side that takes the last bytes, or with a guest that is
        /// to confirm the end.
        until: Option<Instant>,
    },
    /// It is over. RST follows once the guest has what it has still to receive.
    Resetting {
        /// When patience with the guest ends.
        until: Instant,
    },
    /// It is over for the guest; what it sent before still goes to the far side.
    Draining {
        /// When patience with the far side ends.
        until: Instant,
    },
}

/// What the guest has yet to hear, beside the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    /// True: CREDIT_UPDATE is due.
    update: bool,
    ask: Asking,
}

/// How far the request for the guest's credit has come. A guest whose program does not read gets
/// one request until some credit comes: else each of its answers would bring it another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asking {
    /// It was not asked.
    #[default]
    No,
    /// CREDIT_REQUEST is due.
    Due,
    /// It was asked.
    Sent,
    /// CREDIT_REQUEST is due, and does not count as asked: a sibling asks, or credit came
    /// meanwhile.
    Passed,
}

impl Asking {
    fn is_due(self) -> bool {
        matches!(self, Self::Due | Self::Passed)
    }
}

/// When to ask a guest again, and how long after the last time. A driver tells of room when it has
/// little. Of packets that were read, which have few bytes, it may say nothing by itself.
#[derive(Clone, Copy, Debug)]
struct AskAgain {
    at: Instant,
    after: Duration,
}

/// One connection's protocol.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    phase: Phase,
    owed: Owed,
    ends: SideEnds,
    /// What the guest may send, to a host program or as far as its sibling takes it.
    pub from: FromGuest,
    /// What may be sent to the guest.
    pub to: ToGuest,
    /// When to ask the guest again for news of packets that it has read.
    asks: Option<AskAgain>,
}

impl Protocol {
    fn new(phase: Phase, from: FromGuest, to: ToGuest) -> Self {
        Self { phase, owed: Owed::default(), ends: SideEnds::default(), from, to, asks: None }
    }

    /// The guest asked for a connection, with these credit fields. None where they can't be those
    /// of a new connection.
    pub fn asked(from: FromGuest, alloc: u32, forwarded: u32) -> Option<Self> {
        let mut to = ToGuest::default();
        let is_new = to.update(alloc, forwarded) == Ok(Credit::New);
        is_new.then(|| Self::new(Phase::Asked { until: None }, from, to))
    }

    /// The far side offers the guest a connection.
    pub fn offered(from: FromGuest, now: Instant) -> Self {
        let phase = Phase::Offered { until: now + ANSWER_PATIENCE, due: true };
        Self::new(phase, from, ToGuest::default())
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What the guest has ended.
    pub fn guest(&self) -> Shut {
        self.ends.guest
    }

    /// What the far side has ended.
    pub fn far(&self) -> Shut {
        self.ends.far
    }

    /// When patience ends.
    pub fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asked { until } | Phase::Open { until, .. } => until,
            Phase::Offered { until, .. } | Phase::Resetting { until } | Phase::Draining { until } => {
                Some(until)
            }
        }
    }

    /// Whether it is over for the guest, and bytes of it still go to the far side.
    pub fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. })
    }

    /// Whether both sides go on, and no packet without payload is due.
    pub fn is_quiet(&self) -> bool {
        let goes_on = matches!(self.phase, Phase::Open { .. }) && self.ends.far == Shut::NONE;
        goes_on && !self.has_control(false)
    }

    /// Whether the guest takes payload.
    pub fn takes_payload(&self) -> bool {
        matches!(self.phase, Phase::Open { .. }) && !self.ends.guest.receives_no_more()
    }

    /// Whether the guest has yet to hear of the connection, so that payload can't go yet.
    pub fn owes_beginning(&self) -> bool {
        matches!(self.phase, Phase::Offered { due: true, .. } | Phase::Open { due: true, .. })
    }

    /// Takes a packet of the guest; `is_kind`: it has the connection's type.
    #[inline]
    pub fn take_packet(&mut self, op: Op, h: &Header, is_kind: bool) -> (Fields, Verdict) {
        let fields = self.fields(op, h);
        let verdict = match fields.credit {
            Err(BeyondSent) => Verdict::Broken(DropReason::BeyondCredit),
            Ok(_) if !is_kind => Verdict::Broken(DropReason::BadPacket),
            Ok(_) => self.take(op, Shut::of(h.flags)),
        };
        (fields, verdict)
    }

    /// Takes the credit fields of a packet.
    #[inline]
    fn fields(&mut self, op: Op, h: &Header) -> Fields {
        let before = (self.to.free(), self.to.unread_packets());
        // A connection that the guest begins anew has new counts. A reset may come from a driver
        // that knows of no connection, with no counts at all (Linux,
        // `virtio_transport_reset_no_sock`).
        let counts = !matches!(op, Op::Request | Op::Rst);
        let credit = if counts { self.to.update(h.buf_alloc, h.fwd_cnt) } else { Ok(Credit::New) };
        self.from.own = self.to.alloc;
        let more_room = self.to.free() > before.0 || self.to.unread_packets() < before.1;
        if more_room {
            self.asks = None;
            self.owed.ask = match self.owed.ask {
                Asking::Due | Asking::Passed => Asking::Passed,
                Asking::No | Asking::Sent => Asking::No,
            };
        }
        Fields { more_room, credit }
    }

    /// Takes a packet whose credit fields don't count.
    pub fn take(&mut self, op: Op, shut: Shut) -> Verdict {
        let verdict = self.judge(op, shut);
        match verdict {
            Verdict::Shut(shut) => self.ends.guest |= shut,
            Verdict::Accepted => self.phase = Phase::Open { due: false, until: None },
            // Before that, RESPONSE tells it.
            Verdict::AsksCredit if matches!(self.phase, Phase::Open { .. }) => self.owed.update = true,
            _ => {}
        }
        verdict
    }

    fn judge(&self, op: Op, shut: Shut) -> Verdict {
        match (self.phase, op) {
            (Phase::Draining { .. }, _) => Verdict::Stray,
            (_, Op::Request) => Verdict::Over(Over::Renewed),
            (Phase::Offered { .. }, Op::Rst) => Verdict::Over(Over::Refused),
            (_, Op::Rst) => Verdict::Over(Over::Reset),
            // Credit may be what the last bytes wait for.
            (_, Op::CreditUpdate) => Verdict::TellsCredit,
            (_, Op::CreditRequest) => Verdict::AsksCredit,
            (Phase::Resetting { .. }, _) => Verdict::Stray,
            (Phase::Offered { .. }, Op::Response) => Verdict::Accepted,
            (Phase::Open { .. }, Op::Rw) if self.ends.guest.sends_no_more() => Verdict::OutOfPlace,
            (Phase::Open { .. }, Op::Rw) => Verdict::Payload,
            (Phase::Open { .. }, Op::Shutdown) => Verdict::Shut(shut),
            (Phase::Open { .. }, Op::Response) => Verdict::Stray,
            // A driver that gives up before the answer.
            (Phase::Asked { .. }, Op::Shutdown) => Verdict::Over(Over::Reset),
            (Phase::Asked { .. } | Phase::Offered { .. }, _) => Verdict::OutOfPlace,
        }
    }

    /// The far side can't answer yet: the device tries again.
    pub fn wait_for_answer(&mut self, now: Instant) {
        if let Phase::Asked { until } = &mut self.phase {
            *until = Some(now + ANSWER_PATIENCE);
        }
    }

    /// The far side accepted what the guest asked for.
    pub fn accepted(&mut self) {
        if let Phase::Asked { .. } = self.phase {
            self.phase = Phase::Open { due: true, until: None };
        }
    }

    /// The far side has ended this.
    pub fn far_ends(&mut self, shut: Shut) {
        self.ends.far |= shut;
    }

    /// The connection is over; the guest gets RST behind what is still to be delivered. Returns
    /// false if that was so before.
    pub fn reset(&mut self, now: Instant) -> bool {
        let is_new = !matches!(self.phase, Phase::Resetting { .. });
        if is_new {
            self.phase = Phase::Resetting { until: now + CLOSE_PATIENCE };
            self.owed = Owed::default();
        }
        is_new
    }

    /// The guest ended the connection; `pending`: the far side has bytes to take.
    pub fn guest_ended(&mut self, pending: bool, now: Instant) -> Fate {
        if !pending {
            return Fate::Gone;
        }
        self.phase = Phase::Draining { until: now + LINGER };
        self.owed = Owed::default();
        Fate::Drains
    }

    /// The guest knows that the far side is gone: it has a while to say so.
    pub fn await_end(&mut self, now: Instant) {
        if let Phase::Open { until, .. } = &mut self.phase {
            *until = Some(now + CLOSE_PATIENCE);
        }
    }

    /// The guest has ended something, or the far side has taken something; `pending`: it has more
    /// to take.
    pub fn settle(&mut self, pending: bool, now: impl FnOnce() -> Instant) -> Fate {
        match &mut self.phase {
            Phase::Open { until: until @ None, .. } if pending && self.ends.guest.is_both() => {
                *until = Some(now() + LINGER);
                Fate::Lingers
            }
            _ if pending => Fate::Stays,
            Phase::Draining { .. } => Fate::Gone,
            // Nothing moves any more either way: the guest gets the confirmation that it waits for.
            _ if self.ends.guest.is_both() => Fate::Resets,
            _ => Fate::Stays,
        }
    }

    /// The guest should be told the credit that it has.
    pub fn owe_update(&mut self) {
        self.owed.update = true;
    }

    /// The credit fields for a header to the guest, which knows them then.
    pub fn tell(&mut self) -> (u32, u32) {
        self.owed.update = false;
        self.from.tell()
    }

    /// There is something for the guest and no credit: asks it, once, until some comes.
    pub fn ask(&mut self) {
        if let Asking::No | Asking::Passed = self.owed.ask {
            self.owed.ask = Asking::Due;
        }
    }

    /// The sibling asks for the guest's credit. This side asks the guest however often it did so
    /// before. An answer that brought nothing may have come too early, and a guest that was not out
    /// of room then says nothing more by itself.
    pub fn pass_ask(&mut self) {
        self.owed.ask = match self.owed.ask {
            Asking::No | Asking::Passed => Asking::Passed,
            Asking::Due | Asking::Sent => Asking::Due,
        };
    }

    /// Something waits because too many packets are unread, not for credit. This side asks the
    /// guest whether it has read some, again and again until it has.
    fn await_reads(&mut self, now: impl FnOnce() -> Instant) -> Waits {
        self.ask();
        if self.asks.is_some() {
            return Waits { again: None };
        }
        let after = ASK_AFTER.0;
        self.asks = Some(AskAgain { at: now() + after, after });
        Waits { again: Some(after) }
    }

    /// Something waits for credit.
    fn await_credit(&mut self) -> Waits {
        self.ask();
        Waits { again: None }
    }

    /// Bytes of a stream that may go to the guest now, in packets of `packet_room` bytes.
    pub fn stream_room(&mut self, packet_room: usize, now: impl FnOnce() -> Instant) -> Result<usize, Waits> {
        if self.to.free() == 0 {
            return Err(self.await_credit());
        }
        match self.to.stream_room(packet_room) {
            0 => Err(self.await_reads(now)),
            room => Ok(room),
        }
    }

    /// Whether a message of `len` bytes may begin, in packets of `packet_room` bytes. Ok says
    /// whether the guest has room for all of it. A guest that knows of half its buffer need not
    /// tell of more by itself: what fits goes ahead of the rest then.
    pub fn message_room(
        &mut self,
        len: usize,
        packet_room: usize,
        now: impl FnOnce() -> Instant,
    ) -> Result<bool, Waits> {
        let (free, alloc) = (self.to.free() as usize, self.to.alloc as usize);
        if len > free && free < alloc / 2 {
            return Err(self.await_credit());
        }
        if !self.to.message_may_begin(len, packet_room) {
            return Err(self.await_reads(now));
        }
        Ok(len <= free)
    }

    /// Bytes of the next packet, with `packet_room` bytes, of a stream or message of which `left`
    /// bytes are left.
    pub fn next_packet(
        &mut self,
        kind: Kind,
        left: usize,
        packet_room: usize,
        now: impl FnOnce() -> Instant,
    ) -> Result<usize, Waits> {
        let len = left.min(packet_room).min(self.to.free() as usize);
        if len == 0 && left > 0 {
            return Err(self.await_credit());
        }
        if !self.to.may_begin(kind, left, packet_room) {
            return Err(self.await_reads(now));
        }
        Ok(len)
    }

    /// Asks a guest again, if it is time, which the first value says. The other one says after how
    /// long it will be time again.
    pub fn ask_again(&mut self, now: Instant) -> Option<(bool, Duration)> {
        if !self.takes_payload() {
            self.asks = None;
        }
        let asks = self.asks.as_mut()?;
        let left = asks.at.saturating_duration_since(now);
        if !left.is_zero() {
            return Some((false, left));
        }
        let after = (asks.after * 2).min(ASK_AFTER.1);
        *asks = AskAgain { at: now + after, after };
        self.pass_ask();
        Some((true, after))
    }

    /// The next packet without payload that is due, given whether all payload for the guest has
    /// been delivered. It counts as sent.
    pub fn next_control(&mut self, delivered: bool) -> Option<ControlPacket> {
        let due = match &mut self.phase {
            Phase::Resetting { .. } => return delivered.then_some(ControlPacket::Rst),
            // The guest knows of it no more, and may have given its ports to another one.
            Phase::Draining { .. } => return None,
            // A guest that connects takes nothing but the answer (Linux,
            // `virtio_transport_recv_connecting`).
            Phase::Asked { .. } => return None,
            Phase::Offered { due, .. } | Phase::Open { due, .. } => std::mem::take(due),
        };
        let is_open = matches!(self.phase, Phase::Open { .. });
        if due {
            self.owed.update = false;
            return Some(if is_open { ControlPacket::Response } else { ControlPacket::Request });
        }
        if !is_open {
            // It knows of no connection yet.
            return None;
        }
        if self.owed.ask.is_due() {
            self.owed.ask = if self.owed.ask == Asking::Due { Asking::Sent } else { Asking::No };
            return Some(ControlPacket::Ask);
        }
        if std::mem::take(&mut self.owed.update) {
            return Some(ControlPacket::Update);
        }
        let told = self.ends.news(delivered)?;
        self.ends.told = told;
        Some(ControlPacket::Shutdown(told))
    }

    /// Whether [`Self::next_control`] would give anything.
    #[inline]
    pub fn has_control(&self, delivered: bool) -> bool {
        match self.phase {
            Phase::Resetting { .. } => delivered,
            Phase::Draining { .. } | Phase::Asked { .. } => false,
            Phase::Offered { due, .. } => due,
            Phase::Open { due, .. } => {
                due || self.owed.ask.is_due() || self.owed.update || self.ends.news(delivered).is_some()
            }
        }
    }
}
