//! A connection's state machine and credit, against simple models, in random order.
//!
//! In the first model the device's side is the state machine with its credit, and a host program
//! behind it. The guest's side keeps to the rules. Each way is a queue of packets. What one side
//! says overtakes what the other has not looked at yet. Credit counts may come older than those
//! before them.

use std::collections::VecDeque;
use std::time::Instant;

use proptest::prelude::*;
use zerowire_vsock::credit::{FromGuest, ToGuest};
use zerowire_vsock::packet::{Header, Op, SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};
use zerowire_vsock::protocol::{ControlPacket, Fate, Over, Phase, Protocol, Shut, Verdict};

/// Bytes of either side's buffer.
const BUFFER: u32 = 1000;

/// A packet; `from` is the place of its first byte in all that its sender sent.
#[derive(Clone, Copy, Debug)]
struct Packet {
    op: Op,
    len: u32,
    from: u32,
    flags: u32,
    alloc: u32,
    forwarded: u32,
}

/// A guest that keeps to the rules.
#[derive(Debug, Default)]
struct Guest {
    /// It reports room only when the peer asks, or in a packet that it sends anyway.
    quiet: bool,
    /// It was asked, and had no room: it says when it has.
    promised: bool,
    open: bool,
    gone: bool,
    sent: u32,
    peer_alloc: u32,
    peer_forwarded: u32,
    received: u32,
    forwarded: u32,
    /// What it said before, for packets of threads that were overtaken.
    old_forwarded: u32,
    ended: u32,
    peer_ended: u32,
    resets: u32,
}

/// The device's side and the host program.
#[derive(Debug)]
struct Device {
    protocol: Protocol,
    gone: bool,
    /// Bytes that the guest sent and the program has not read; the place of the next to arrive.
    waits: u32,
    arrived: u32,
    /// Bytes that the program wrote, and how many of them went to the guest.
    written: u32,
    sent: u32,
    program_ended: bool,
    program_closed: bool,
    resets: u32,
}

#[derive(Debug)]
struct World {
    guest: Guest,
    device: Device,
    to_device: VecDeque<Packet>,
    to_guest: VecDeque<Packet>,
}

impl World {
    fn new(offered: bool, quiet: bool) -> Self {
        let from = FromGuest::new(BUFFER);
        let protocol = match offered {
            true => Protocol::offered(from, Instant::now()),
            // The REQUEST is what the device's connection was made from.
            false => Protocol::asked(from, BUFFER, 0).expect("sound"),
        };
        let device = Device {
            protocol,
            gone: false,
            waits: 0,
            arrived: 0,
            written: 0,
            sent: 0,
            program_ended: false,
            program_closed: false,
            resets: 0,
        };
        let guest = Guest { quiet, ..Guest::default() };
        Self { guest, device, to_device: VecDeque::new(), to_guest: VecDeque::new() }
    }

    fn say(&mut self, op: Op, len: u32, flags: u32, forwarded: u32) {
        let from = self.guest.sent;
        self.guest.sent += len;
        self.to_device.push_back(Packet { op, len, from, flags, alloc: BUFFER, forwarded });
    }

    fn guest_sends(&mut self, n: u32) {
        let g = &self.guest;
        let free = g.peer_alloc.saturating_sub(g.sent - g.peer_forwarded);
        let n = n.min(free);
        if g.open && !g.gone && g.ended & SHUT_SEND == 0 && g.peer_ended & SHUT_RECEIVE == 0 && n > 0 {
            self.say(Op::Rw, n, 0, g.forwarded);
        }
    }

    fn guest_reads(&mut self, n: u32) {
        let g = &mut self.guest;
        let n = n.min(g.received - g.forwarded);
        if n == 0 {
            return;
        }
        g.old_forwarded = g.forwarded;
        g.forwarded += n;
        // A sound guest that said it had no room says when it has.
        let tells = !g.quiet || std::mem::take(&mut g.promised);
        if g.open && !g.gone && tells {
            let now = g.forwarded;
            self.say(Op::CreditUpdate, 0, 0, now);
        }
        self.guest_confirms();
    }

    /// The device's side is gone, and all was read: the guest says that it is gone, too.
    fn guest_confirms(&mut self) {
        let g = &mut self.guest;
        if g.open && !g.gone && g.peer_ended == SHUT_BOTH && g.received == g.forwarded {
            g.gone = true;
            g.resets += 1;
            let now = g.forwarded;
            self.say(Op::Rst, 0, 0, now);
        }
    }

    fn guest_shuts(&mut self, flags: u32) {
        let g = &mut self.guest;
        if g.open && !g.gone && flags & !g.ended != 0 {
            g.ended |= flags;
            let (ended, now) = (g.ended, g.forwarded);
            self.say(Op::Shutdown, 0, ended, now);
        }
    }

    fn guest_takes(&mut self) {
        let Some(p) = self.to_guest.pop_front() else { return };
        let g = &mut self.guest;
        if g.gone {
            return;
        }
        (g.peer_alloc, g.peer_forwarded) = (p.alloc, p.forwarded);
        assert!(p.forwarded <= g.sent, "the device took what was not sent");
        match p.op {
            Op::Request => {
                assert!(!g.open, "asked twice");
                g.open = true;
                self.say(Op::Response, 0, 0, 0);
            }
            Op::Response => {
                assert!(!g.open, "answered twice");
                g.open = true;
            }
            Op::Rw => {
                assert!(g.open, "payload before the connection");
                assert!(g.peer_ended & SHUT_SEND == 0, "payload behind the end");
                assert_eq!(p.from, g.received, "bytes lost, doubled or out of order");
                g.received += p.len;
                assert!(g.received - g.forwarded <= BUFFER, "more than the guest has room for");
                if g.ended & SHUT_RECEIVE != 0 {
                    g.forwarded = g.received;
                }
            }
            Op::CreditRequest => {
                let now = g.forwarded;
                g.promised = g.received - now == BUFFER;
                self.say(Op::CreditUpdate, 0, 0, now);
            }
            Op::CreditUpdate => {}
            Op::Shutdown => {
                assert!(p.flags & !SHUT_BOTH == 0 && p.flags & !g.peer_ended != 0, "nothing new was said");
                g.peer_ended |= p.flags;
                self.guest_confirms();
            }
            Op::Rst => g.gone = true,
        }
    }

    fn device_says(&mut self, op: Op, len: u32, flags: u32) {
        let d = &mut self.device;
        let (alloc, forwarded) = d.protocol.tell();
        self.to_guest.push_back(Packet { op, len, from: d.sent, flags, alloc, forwarded });
        d.sent += len;
    }

    /// The device's side has a receive buffer.
    fn device_serves(&mut self, room: u32) {
        let d = &mut self.device;
        if d.gone {
            return;
        }
        let delivered = d.written == d.sent || !d.protocol.takes_payload();
        assert_eq!(d.protocol.has_control(delivered), { d.protocol }.next_control(delivered).is_some());
        if d.program_ended && matches!(d.protocol.phase(), Phase::Open { .. }) {
            d.protocol.far_ends(if d.program_closed { Shut::BOTH } else { Shut::SEND });
        }
        if let Some(control) = d.protocol.next_control(delivered) {
            let (op, flags) = match control {
                ControlPacket::Request => (Op::Request, 0),
                ControlPacket::Response => (Op::Response, 0),
                ControlPacket::Update => (Op::CreditUpdate, 0),
                ControlPacket::Ask => (Op::CreditRequest, 0),
                ControlPacket::Shutdown(shut) => {
                    let flags = shut.flags();
                    assert!(flags & SHUT_SEND == 0 || delivered, "the end is said before the last byte");
                    (Op::Shutdown, flags)
                }
                ControlPacket::Rst => {
                    d.gone = true;
                    d.resets += 1;
                    (Op::Rst, 0)
                }
            };
            return self.device_says(op, 0, flags);
        }
        if d.protocol.takes_payload() && !d.protocol.owes_beginning() && d.written > d.sent {
            let n = (d.written - d.sent).min(room.max(1)).min(d.protocol.to.free());
            if n == 0 {
                d.protocol.ask();
                return;
            }
            d.protocol.to.send(n, 1, true);
            self.device_says(Op::Rw, n, 0);
        }
    }

    fn device_takes(&mut self) {
        let Some(p) = self.to_device.pop_front() else { return };
        let d = &mut self.device;
        if d.gone {
            return;
        }
        let credit = Header { buf_alloc: p.alloc, fwd_cnt: p.forwarded, ..Header::default() };
        let header = Header { op: p.op as u16, len: p.len, flags: p.flags, ..credit };
        let (fields, verdict) = d.protocol.take_packet(p.op, &header, true);
        fields.credit.expect("a guest that keeps to the rules");
        match verdict {
            Verdict::Payload => {
                assert!(d.protocol.from.receive(p.len), "it keeps to its credit");
                assert_eq!(p.from, d.arrived, "bytes lost, doubled or out of order");
                d.arrived += p.len;
                d.waits += p.len;
                if d.program_closed {
                    // Nobody reads it.
                    d.protocol.from.forward(d.waits);
                    d.waits = 0;
                }
            }
            Verdict::Shut(_) => assert_eq!(d.protocol.guest().flags() & p.flags, p.flags),
            Verdict::Over(Over::Reset | Over::Refused) => {
                assert_eq!(d.protocol.guest_ended(true, Instant::now()), Fate::Drains);
                assert_eq!(d.protocol.next_control(true), None, "nothing answers a reset");
                d.gone = true;
            }
            Verdict::AsksCredit | Verdict::TellsCredit | Verdict::Accepted => {}
            // Late, while the device's own RST is due.
            Verdict::Stray => {
                assert!(matches!(d.protocol.phase(), Phase::Resetting { .. } | Phase::Draining { .. }));
            }
            Verdict::OutOfPlace | Verdict::Broken(_) | Verdict::Over(Over::Renewed) => {
                panic!("a rule was broken by {p:?} in {:?}", d.protocol)
            }
        }
        self.device_settles();
    }

    /// What is due when all that the guest sent was read.
    fn device_settles(&mut self) {
        let d = &mut self.device;
        if !d.gone && d.protocol.settle(d.waits > 0, Instant::now) == Fate::Resets {
            d.protocol.reset(Instant::now());
        }
    }

    fn program_reads(&mut self, n: u32) {
        let d = &mut self.device;
        let n = n.min(d.waits);
        d.waits -= n;
        d.protocol.from.forward(n);
        if d.protocol.from.is_news() {
            d.protocol.owe_update();
        }
        self.device_settles();
    }

    fn act(&mut self, (what, n): (u8, u32)) {
        let d = &mut self.device;
        match what % 16 {
            0 | 1 => self.guest_takes(),
            2 | 3 => self.device_takes(),
            4 | 5 => self.device_serves(n),
            6 => d.protocol.accepted(),
            7 => self.guest_sends(n),
            8 => self.guest_reads(n),
            9 => self.program_reads(n),
            10 if !d.program_ended => d.written += n,
            11 if n < 60 => d.program_ended = true,
            12 if n < 30 => self.guest_shuts(1 + n % 3),
            13 if n < 15 => {
                (d.program_ended, d.program_closed) = (true, true);
                let n = d.waits;
                self.program_reads(n);
            }
            14 => {
                // A thread of the guest's that was overtaken: an older count behind a newer one.
                let old = self.guest.old_forwarded;
                if self.guest.open && !self.guest.gone {
                    self.say(Op::CreditUpdate, 0, 0, old);
                }
            }
            15 if n < 10 && self.guest.open && !self.guest.gone => {
                self.guest.gone = true;
                self.guest.resets += 1;
                let now = self.guest.forwarded;
                self.say(Op::Rst, 0, 0, now);
            }
            _ => {}
        }
    }

    /// Everybody does what is left to do, and closes.
    fn finish(&mut self) {
        self.device.protocol.accepted();
        for round in 0..20_000 {
            self.guest_takes();
            self.device_takes();
            self.device_serves(300);
            self.guest_reads(500);
            self.program_reads(500);
            let still = self.device.sent < self.device.written
                && self.device.protocol.takes_payload()
                && !self.device.gone
                && !self.guest.gone;
            if still || round < 100 {
                continue;
            }
            self.device.program_ended = true;
            self.device.program_closed = true;
            if round > 200 {
                self.guest_shuts(SHUT_BOTH);
            }
            let rest = self.device.waits;
            self.program_reads(rest);
            if self.device.gone && self.guest.gone && self.to_device.is_empty() && self.to_guest.is_empty() {
                return;
            }
        }
        panic!("it never ends: {self:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_connection_moves_each_byte_once_and_ends_on_both_sides(
        offered: bool,
        quiet: bool,
        actions in proptest::collection::vec((any::<u8>(), 0u32..700), 0..250),
    ) {
        let mut w = World::new(offered, quiet);
        for a in actions {
            w.act(a);
        }
        let abrupt = w.guest.gone || w.guest.resets > 0 || w.device.program_closed || w.guest.ended & SHUT_RECEIVE != 0;
        w.finish();
        let (g, d) = (&w.guest, &w.device);
        prop_assert_eq!(d.waits, 0);
        prop_assert!(g.resets <= 1 && d.resets <= 1 && g.resets + d.resets >= 1, "{} and {} resets", g.resets, d.resets);
        prop_assert_eq!(d.arrived, g.sent, "what the guest sent and what arrived");
        if !abrupt {
            prop_assert_eq!(g.received, d.written, "what the program sent and what arrived");
        }
    }

    /// Counts at the ends of their range: never more in flight than the guest has room for,
    /// whatever it says.
    #[test]
    fn a_guest_that_lies_gets_no_more_than_it_has_room_for(
        steps in proptest::collection::vec((any::<bool>(), any::<u32>(), any::<u32>()), 0..200),
    ) {
        let mut o = ToGuest::default();
        let (mut sent, mut newest) = (0u32, 0u32);
        for (sends, a, b) in steps {
            if sends {
                let n = o.free().min(a % 5000);
                o.send(n, 1, true);
                sent = sent.wrapping_add(n);
            } else {
                let count = if b % 3 == 0 { b } else { newest.wrapping_add(b % (sent.wrapping_sub(newest) + 1)) };
                let plausible = count.wrapping_sub(newest) <= sent.wrapping_sub(newest);
                let outcome = o.update(a, count);
                if plausible {
                    prop_assert!(outcome.is_ok());
                    newest = count;
                }
                prop_assert_eq!(o.forwarded, newest, "only what was sent can be taken");
            }
            let in_flight = sent.wrapping_sub(newest);
            prop_assert_eq!(o.free(), o.alloc.saturating_sub(in_flight));
        }
    }

    #[test]
    fn the_credit_that_a_guest_is_given_is_kept(
        buffer in 1u32..10_000,
        steps in proptest::collection::vec((any::<bool>(), 0u32..12_000), 0..200),
    ) {
        let mut c = FromGuest::new(buffer);
        let (mut waits, mut forwarded, mut told) = (0u32, 0u32, 0u32);
        for (receives, n) in steps {
            if receives {
                let fits = waits + n <= buffer;
                prop_assert_eq!(c.receive(n), fits);
                waits += if fits { n } else { 0 };
            } else {
                let n = n.min(waits);
                c.forward(n);
                waits -= n;
                forwarded = forwarded.wrapping_add(n);
                if c.is_news() {
                    prop_assert_eq!(c.tell(), (buffer, forwarded));
                    told = forwarded;
                }
            }
            prop_assert!(forwarded - told <= buffer / 2, "the guest is told before half of its credit is unknown to it");
        }
    }
}
