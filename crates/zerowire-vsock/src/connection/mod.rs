//! One connection: its name, what is said with its guest, what waits for the guest, where it ends.
//!
//! ```text
//!  guest --[Protocol::from]--> End: SocketOut, or windows --> host program, or another guest
//!  guest <--[Protocol::to]---- held <--- End: Inlet <-------- host program, or another guest
//! ```

mod host;
mod inlet;
mod mapped;
mod sibling;
#[cfg(test)]
mod tests;

use std::time::Instant;

pub use host::{HostEnd, Interest, Piece};
pub use inlet::Inlet;
pub use mapped::{MappedEnd, Windowing};
use rustix::event::epoll::EventFlags;
use rustix::net::Shutdown;
pub use sibling::SignalOutcome;

use super::credit::{CreditReview, Why};
use super::held::Held;
use super::mapped::Windows;
use super::packet::{Header, Kind, Op, SEQ_EOM};
use super::protocol::{Fate, Fields, Protocol, Shut, Verdict, Waits};
use super::socket::MAX_IOV;
use super::table::{ConnectionKey, SlotKey};

/// Where a connection ends.
#[derive(Debug)]
pub enum End {
    /// At a host program.
    Host(Box<HostEnd>),
    /// At a host program that takes payload in windows.
    Mapped(Box<MappedEnd>),
    /// At a host program whose backlog is full: the device tries again.
    Dialing,
    /// At another VM of the group.
    Sibling {
        /// Its place in the group.
        vm: usize,
        /// The connection there.
        place: SlotKey,
    },
    /// Nowhere any more.
    Gone,
}

impl End {
    /// Where a host program's bytes come from.
    #[inline]
    pub fn inlet(&mut self) -> Option<&mut Inlet> {
        match self {
            Self::Host(host) => Some(&mut host.inlet),
            Self::Mapped(mapped) => Some(&mut mapped.inlet),
            Self::Dialing | Self::Sibling { .. } | Self::Gone => None,
        }
    }
}

/// What a host program's socket has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketNews {
    /// True: the program has closed.
    pub closed: bool,
    /// True: what waits for the program can go on.
    pub goes_on: bool,
    /// True: the guest has credit again.
    pub credit: bool,
}

/// Where payload of the guest goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRoute {
    /// To the host program.
    Program {
        /// The flags of the last packet of a message, if it ends here.
        end: Option<u32>,
        /// True: it goes before the next packet is parsed.
        alone: bool,
    },
    /// To another guest: its place in the group, and the connection there.
    Sibling((usize, SlotKey)),
    /// Nowhere: nobody reads it any more. The guest has been told, or will be.
    Unread,
    /// Nowhere: it is neither a byte nor the end of a message.
    Empty,
    /// Nowhere: the guest had no credit for it.
    BeyondCredit,
}

/// A packet of what waits for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPacket {
    /// Its bytes.
    pub len: usize,
    /// Its header's flags.
    pub flags: u32,
}

/// A connection.
#[derive(Debug)]
pub struct VsockConnection {
    /// Its name.
    pub key: ConnectionKey,
    /// Its type.
    pub kind: Kind,
    /// What the guest and this side say to each other.
    pub protocol: Protocol,
    /// Where it ends.
    pub end: End,
    /// What waits for the guest's buffers.
    pub held: Option<Box<Held>>,
    /// True: it was established at some time.
    pub counted: bool,
}

impl VsockConnection {
    /// A new one, which ends nowhere yet.
    pub fn new(key: ConnectionKey, kind: Kind, protocol: Protocol) -> Self {
        Self { key, kind, protocol, end: End::Gone, held: None, counted: false }
    }

    /// Takes a packet of the guest, but for its payload.
    #[inline]
    pub fn take_packet(&mut self, op: Op, kind: Kind, h: &Header) -> (Fields, Verdict) {
        self.protocol.take_packet(op, h, kind == self.kind)
    }

    /// Takes the guest's credit for payload, of which `most` messages may wait. Says where it goes.
    #[inline]
    pub fn take_payload(&mut self, h: &Header, most: usize) -> PayloadRoute {
        let ends = self.kind == Kind::SeqPacket && h.flags & SEQ_EOM != 0;
        if h.len == 0 && !ends {
            return PayloadRoute::Empty;
        }
        if let End::Sibling { vm, place } = self.end {
            return PayloadRoute::Sibling((vm, place));
        }
        // A message of no bytes takes no credit: what bounds the bytes that wait bounds the marks
        // of all messages, too.
        let too_many = ends && self.held_for_program().is_some_and(|held| held.messages() > most);
        if too_many || !self.protocol.from.receive(h.len) {
            return PayloadRoute::BeyondCredit;
        }
        let is_read = matches!(self.end, End::Host(_) | End::Mapped(_));
        if !is_read || self.protocol.far().receives_no_more() {
            self.protocol.from.forward(h.len);
            return PayloadRoute::Unread;
        }
        // Windows take one message at a time, and some each packet for itself.
        let alone = self.windows().is_some_and(|w| ends || w.keeps_packets_apart());
        PayloadRoute::Program { end: ends.then_some(h.flags), alone }
    }

    /// Whether a packet without payload is due.
    #[inline]
    pub fn has_control(&self) -> bool {
        self.protocol.has_control(self.held.is_none())
    }

    /// Whether there may be payload for the guest.
    #[inline]
    pub fn has_payload(&self) -> bool {
        self.held.is_some() || self.is_readable()
    }

    /// The next packet of what waits for the guest, with `room` bytes. None where nothing waits
    /// that can go.
    pub fn next_held(
        &mut self,
        room: usize,
        now: impl FnOnce() -> Instant,
    ) -> Result<Option<HeldPacket>, Waits> {
        let Some(held) = &mut self.held else { return Ok(None) };
        let (left, end) = match self.kind {
            Kind::Stream => (held.len(), 0),
            Kind::SeqPacket => match held.message() {
                Some((left, flags)) => (left as usize, flags),
                // A guest that waits for credit sends the rest only when it has some.
                None if held.part() > 0 => (held.part() as usize, 0),
                None => return Ok(None),
            },
        };
        let len = self.protocol.next_packet(self.kind, left, room, now)?;
        Ok(Some(HeldPacket { len, flags: if len == left { end } else { 0 } }))
    }

    /// This packet of what waits was copied to the guest. Returns whether nothing waits any more.
    pub fn held_left(&mut self, packet: HeldPacket) -> bool {
        if let Some(held) = &mut self.held {
            held.consume(packet.len);
        }
        Held::settle(&mut self.held);
        let whole = self.kind == Kind::Stream || packet.flags & SEQ_EOM != 0;
        self.protocol.to.send(packet.len as u32, 1, whole);
        self.held.is_none()
    }

    /// Whether the host program may have sent something.
    #[inline]
    pub fn is_readable(&self) -> bool {
        match &self.end {
            End::Host(host) => host.inlet.readable,
            End::Mapped(mapped) => mapped.inlet.readable,
            End::Dialing | End::Sibling { .. } | End::Gone => false,
        }
    }

    /// Where a host program's bytes come from.
    #[inline]
    pub fn inlet(&mut self) -> Option<&mut Inlet> {
        self.end.inlet()
    }

    /// What waits for the host program.
    pub fn held_for_program(&self) -> Option<&Held> {
        match &self.end {
            End::Host(host) => host.out.held.as_deref(),
            End::Mapped(mapped) => mapped.held.as_deref(),
            End::Dialing | End::Sibling { .. } | End::Gone => None,
        }
    }

    /// The end at a host program that takes payload in windows.
    pub fn mapped(&mut self) -> Option<&mut MappedEnd> {
        match &mut self.end {
            End::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// The windows of a host program that has some.
    pub fn windows(&mut self) -> Option<&mut Windows> {
        self.mapped()?.windows.live()
    }

    /// Whether bytes of the guest, or the news that no more come, wait for the program.
    fn has_pending(&self) -> bool {
        match &self.end {
            End::Host(host) => host.out.held.is_some(),
            End::Mapped(mapped) => mapped.has_pending(),
            End::Dialing | End::Sibling { .. } | End::Gone => false,
        }
    }

    /// The guest ended the connection: what it sent before is still delivered.
    pub fn guest_ended(&mut self, now: Instant) -> Fate {
        if self.protocol.is_draining() {
            return Fate::Stays;
        }
        self.guest_sends_no_more();
        self.end_windows();
        let fate = self.protocol.guest_ended(self.has_pending(), now);
        if fate == Fate::Drains {
            self.held = None;
        }
        fate
    }

    /// The guest will not send, or not receive, any more. The first value says whether there is
    /// news for the guest. Another guest hears of it by [`Verdict::signal`].
    pub fn guest_shut(&mut self, shut: Shut, now: impl FnOnce() -> Instant) -> (bool, Fate) {
        if let End::Sibling { .. } = self.end {
            // The other guest may never confirm it.
            return (false, self.protocol.settle(true, now));
        }
        if shut.sends_no_more() {
            self.guest_sends_no_more();
        }
        let tells = self.protocol.guest().receives_no_more() && self.guest_reads_no_more();
        (tells, self.settle(now))
    }

    /// Does what is due once all that the guest sent has reached the host program.
    pub fn settle(&mut self, now: impl FnOnce() -> Instant) -> Fate {
        let ended = self.protocol.guest().sends_no_more();
        if ended || self.protocol.is_draining() {
            self.end_windows();
        }
        if let End::Dialing | End::Sibling { .. } = self.end {
            return Fate::Stays;
        }
        let pending = self.has_pending();
        if ended && !pending {
            self.end_writing();
        }
        let fate = self.protocol.settle(pending, now);
        if fate == Fate::Resets {
            self.held = None;
        }
        fate
    }

    /// The guest knows that the host program is gone: it has a while to say so.
    pub fn await_end(&mut self, now: impl FnOnce() -> Instant) -> Fate {
        if let End::Sibling { .. } = self.end {
            return Fate::Stays;
        }
        self.drop_held_for_program();
        self.protocol.await_end(now());
        Fate::Closes
    }

    /// epoll tells of the host program's socket. None where there is none.
    pub fn heard(&mut self, flags: EventFlags) -> Option<SocketNews> {
        let inlet = self.inlet()?;
        inlet.heard(flags);
        let closed = inlet.has_closed();
        let (goes_on, credit) = match &mut self.end {
            End::Host(host) => host.out.heard(flags),
            _ => (self.held_for_program().is_some(), false),
        };
        if closed {
            self.program_closed();
        }
        if credit && let End::Host(host) = &mut self.end {
            // What lies in the socket counts as read.
            self.protocol.from.forward(host.out.credit.writable());
        }
        Some(SocketNews { closed, goes_on, credit })
    }

    /// Whether the guest may have credit for a piece of a stream before the program's socket has
    /// it.
    #[inline]
    pub fn may_promise(&self, piece: &Piece<'_>) -> bool {
        let bytes = piece.bytes as u32;
        self.protocol.from.lacks(bytes)
            && self.kind == Kind::Stream
            && piece.parts.len() <= MAX_IOV
            && self.protocol.is_quiet()
            && matches!(&self.end, End::Host(host) if host.out.surely_takes(bytes))
    }

    /// Gives the guest credit for `bytes` that the program's socket has yet to take.
    pub fn promise(&mut self, bytes: u32) {
        if let End::Host(host) = &mut self.end {
            host.out.credit.promise(bytes);
            self.protocol.from.forward(bytes);
        }
    }

    /// The guest sends no more: a message to the host program that it did not complete is none.
    fn guest_sends_no_more(&mut self) {
        let (place, windows) = match &mut self.end {
            End::Host(host) => (&mut host.out.held, None),
            End::Mapped(mapped) => (&mut mapped.held, mapped.windows.live()),
            End::Dialing | End::Sibling { .. } | End::Gone => return,
        };
        if let Some(held) = place {
            let lost = held.drop_partial();
            self.protocol.from.forward(lost);
            if let Some(windows) = windows.filter(|_| lost > 0) {
                windows.cut_short();
            }
        }
        Held::settle(place);
    }

    /// The guest receives no more. What waits for it goes, and the program is not read again. Its
    /// next write fails, as it does toward a process that has ended its receiving. Returns whether
    /// the guest must hear of something.
    fn guest_reads_no_more(&mut self) -> bool {
        self.held = None;
        let Some(inlet) = self.inlet() else { return false };
        inlet.readable = false;
        let _ = rustix::net::shutdown(&inlet.socket, Shutdown::Read);
        let closed = inlet.has_closed();
        if closed {
            self.program_closed();
        }
        closed
    }

    /// The host program takes nothing of what waits for it.
    pub fn drop_held_for_program(&mut self) {
        let lost = match &mut self.end {
            End::Host(host) => host.out.drop_held(),
            End::Mapped(mapped) => mapped.held.take().map_or(0, |held| held.len() as u32),
            End::Dialing | End::Sibling { .. } | End::Gone => return,
        };
        self.protocol.from.forward(lost);
    }

    /// The host program sends no more, or its socket has failed.
    pub fn program_ends(&mut self, failed: bool) {
        let closed = match self.inlet() {
            Some(inlet) => {
                inlet.readable = false;
                inlet.has_closed() || failed
            }
            None => true,
        };
        self.protocol.far_ends(if closed { Shut::BOTH } else { Shut::SEND });
    }

    /// The program of a mapped connection has ended its receiving. What it has not got goes; the
    /// windows that it has stay its own, and the end is marked behind them. Returns whether that is
    /// news.
    pub fn program_reads_no_more(&mut self) -> bool {
        if self.protocol.far().receives_no_more() {
            return false;
        }
        self.protocol.far_ends(Shut::RECEIVE);
        self.drop_held_for_program();
        if let Some(windows) = self.windows() {
            windows.end();
        }
        true
    }

    /// The host program has closed. A guest that receives no more hears of it here: its socket is
    /// not read again.
    fn program_closed(&mut self) {
        let guest_reads_no_more = self.protocol.guest().receives_no_more();
        if guest_reads_no_more || self.protocol.far().sends_no_more() {
            self.protocol.far_ends(Shut::BOTH);
        }
    }

    /// All that the guest sent has reached the host program, which hears, once, that no more comes.
    fn end_writing(&mut self) {
        match &mut self.end {
            End::Host(host) => host.end_writing(),
            End::Mapped(mapped) => mapped.end_writing(),
            End::Dialing | End::Sibling { .. } | End::Gone => {}
        }
    }

    /// No more bytes of the guest will come: the program of a mapped connection hears so once
    /// nothing waits. A guest that did not end its sending has cut the data short.
    pub fn end_windows(&mut self) {
        let is_cut = !self.protocol.guest().sends_no_more();
        if let Some(mapped) = self.mapped()
            && mapped.held.is_none()
            && let Some(windows) = mapped.windows.live()
        {
            if is_cut {
                windows.cut_short();
            }
            windows.end();
        }
    }

    /// Bytes that the program may not have read, and for which the guest has no credit again.
    pub fn uncredited(&self) -> u32 {
        match &self.end {
            End::Host(host) => host.out.credit.uncredited,
            End::Mapped(mapped) => mapped.credit.uncredited,
            End::Dialing | End::Sibling { .. } | End::Gone => 0,
        }
    }

    /// Brings the guest's credit up to what its far side has taken.
    pub fn review_credit(&mut self, why: Why) -> CreditReview {
        let part = self.held_for_program().is_some_and(Held::has_partial);
        let why = if part { Why::PartWaits } else { why };
        let from = &mut self.protocol.from;
        match &mut self.end {
            End::Host(host) => host.review(from, why),
            End::Mapped(mapped) => mapped.credit.review(from, why, mapped.windows.live()),
            End::Dialing | End::Sibling { .. } | End::Gone => from.reviewed(why, from.is_news(), false),
        }
    }
}
