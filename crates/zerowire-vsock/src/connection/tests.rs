//! Connections with a unix socket, without rings and without epoll.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerowire::ledger::Counters;
use zerowire_vhost::memory::{GuestMemory, RegionConfig, Segment, access};

use super::*;
use crate::credit::{FromGuest, SocketCredit, ToGuest};
use crate::packet::HOST_CID;
use crate::protocol::{CLOSE_PATIENCE, ControlPacket, LINGER, Over, Phase, Signal};

const BUFFER: u32 = 1 << 20;
const RAM: u64 = 64 << 10;

/// A connection of a guest to a host program, and the program's socket.
struct Scene {
    c: VsockConnection,
    program: OwnedFd,
    memory: GuestMemory,
    counters: Counters,
    list: Vec<libc::iovec>,
    now: Instant,
}

impl Scene {
    fn new(kind: Kind) -> Self {
        let socket_type = match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::SeqPacket => SocketType::SEQPACKET,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, program) = socketpair(AddressFamily::UNIX, socket_type, flags, None).expect("a pair");
        let key = ConnectionKey { port: 7, peer_cid: HOST_CID, peer_port: 9 };
        let protocol = Protocol::asked(FromGuest::new(BUFFER), BUFFER, 0).expect("sound");
        let mut c = VsockConnection::new(key, kind, protocol);
        c.protocol.accepted();
        assert_eq!(c.protocol.next_control(true), Some(ControlPacket::Response));
        c.end = End::Host(HostEnd::new(ours, SocketCredit::new(1 << 20, 4096)));
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, RAM).expect("its length");
        let region = RegionConfig { guest_addr: 0, len: RAM, user_addr: 0, offset: 0, file };
        let memory = GuestMemory::new(vec![region]).expect("guest memory");
        Self { c, program, memory, counters: Counters::default(), list: Vec::new(), now: Instant::now() }
    }

    fn host(&mut self) -> &mut HostEnd {
        let End::Host(host) = &mut self.c.end else { panic!("no host program") };
        host
    }

    /// The guest sends `len` bytes. Returns whether something waits then.
    fn send(&mut self, len: usize, end: Option<u32>) -> bool {
        let part = Segment { ptr: self.memory.regions()[0].ptr(), len: len as u32, region: 0 };
        assert_eq!(access::write(&[part], 0, &vec![1u8; len]), len);
        let piece = Piece { parts: &[part], bytes: len, packets: 1, end };
        assert!(self.c.protocol.from.receive(len as u32), "within its credit");
        let kind = self.c.kind;
        let End::Host(host) = &mut self.c.end else { panic!("no host program") };
        let waits = host.send(kind, &piece, &self.memory, &mut self.list, &self.counters);
        waits.expect("the program is there")
    }

    /// The guest sends until something waits for the program.
    fn send_too_much(&mut self) {
        while !self.send(32 << 10, Some(1).filter(|_| self.c.kind == Kind::SeqPacket)) {}
        assert!(self.c.held_for_program().is_some());
    }

    /// The program reads all that there is. Returns how many bytes, and whether it saw the end.
    fn program_reads(&mut self) -> (usize, bool) {
        let (mut sum, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            match rustix::io::read(&self.program, &mut buffer[..]) {
                Ok(0) => return (sum, true),
                Ok(n) => sum += n,
                Err(_) => return (sum, false),
            }
        }
    }

    /// epoll tells of room, and what waits goes on.
    fn flush(&mut self) -> Fate {
        let news = self.c.heard(EventFlags::OUT).expect("a socket");
        assert!(news.goes_on && !news.closed);
        let kind = self.c.kind;
        let End::Host(host) = &mut self.c.end else { panic!("no host program") };
        host.flush(kind, &mut self.list, &self.counters).expect("the program is there");
        let now = self.now;
        self.c.settle(|| now)
    }

    /// The guest sends SHUTDOWN.
    fn shut(&mut self, shut: Shut) -> (bool, Fate) {
        assert_eq!(self.c.protocol.take(Op::Shutdown, shut), Verdict::Shut(shut));
        let now = self.now;
        self.c.guest_shut(shut, || now)
    }
}

#[test]
fn the_program_hears_the_guests_end_behind_the_last_byte() {
    let mut s = Scene::new(Kind::Stream);
    s.send_too_much();
    assert_eq!(s.shut(Shut::SEND), (false, Fate::Stays));
    let (mut sum, mut ended) = (0, false);
    while !ended {
        let (n, end) = s.program_reads();
        (sum, ended) = (sum + n, end);
        if s.c.held_for_program().is_some() {
            assert!(!end, "{sum} bytes, and the rest still waits");
            assert_eq!(s.flush(), Fate::Stays);
        }
    }
    assert_eq!(sum % (32 << 10), 0, "all of it");
    assert!(s.c.held_for_program().is_none() && s.c.protocol.until().is_none());
}

#[test]
fn a_guest_that_ends_both_ways_waits_for_the_program_as_long_as_patience_lasts() {
    let mut s = Scene::new(Kind::Stream);
    assert_eq!(s.shut(Shut::BOTH), (false, Fate::Resets), "nothing waits");
    assert_eq!(s.program_reads(), (0, true));

    let mut s = Scene::new(Kind::Stream);
    s.send_too_much();
    assert_eq!(s.shut(Shut::BOTH), (false, Fate::Lingers));
    assert_eq!(s.c.protocol.until(), Some(s.now + LINGER));
    s.now += Duration::from_secs(1);
    while s.c.held_for_program().is_some() {
        s.program_reads();
        let fate = s.flush();
        let expected = if s.c.held_for_program().is_some() { Fate::Stays } else { Fate::Resets };
        assert_eq!(fate, expected);
    }
    assert!(s.program_reads().1);
}

#[test]
fn what_a_guest_sent_before_its_reset_still_reaches_the_program() {
    let mut s = Scene::new(Kind::Stream);
    assert_eq!(s.c.guest_ended(s.now), Fate::Gone);

    let mut s = Scene::new(Kind::Stream);
    s.send_too_much();
    s.c.held = Some(Box::default());
    assert_eq!(s.c.protocol.take(Op::Rst, Shut::NONE), Verdict::Over(Over::Reset));
    assert_eq!(s.c.guest_ended(s.now), Fate::Drains);
    assert!(s.c.held.is_none() && s.c.protocol.is_draining());
    assert_eq!(s.c.guest_ended(s.now), Fate::Stays, "only once");
    while s.c.held_for_program().is_some() {
        s.program_reads();
        let fate = s.flush();
        assert_eq!(fate, if s.c.held_for_program().is_some() { Fate::Stays } else { Fate::Gone });
    }
}

#[test]
fn a_message_that_its_guest_does_not_complete_is_none() {
    let mut s = Scene::new(Kind::SeqPacket);
    assert!(s.send(100, None), "its end waits for the rest");
    assert_eq!(s.c.protocol.from.untold(), 0);
    assert_eq!(s.shut(Shut::SEND), (false, Fate::Stays));
    assert_eq!(s.c.protocol.from.untold(), 100, "nobody takes it");
    assert_eq!(s.program_reads(), (0, true));
}

#[test]
fn a_program_that_has_closed_is_heard_of_though_it_is_not_read() {
    let mut s = Scene::new(Kind::Stream);
    s.c.held = Some(Box::default());
    assert_eq!(s.shut(Shut::RECEIVE), (false, Fate::Stays));
    assert!(s.c.held.is_none(), "nobody reads it");
    assert!(rustix::io::write(&s.program, b"x").is_err(), "the program's writing has ended");
    assert_eq!(s.c.protocol.next_control(true), None);
    let news = s.c.heard(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP).expect("a socket");
    assert_eq!(news, SocketNews { closed: true, goes_on: false, credit: false });
    assert_eq!(s.c.protocol.next_control(true), Some(ControlPacket::Shutdown(Shut::BOTH)));

    // The other way round.
    let mut s = Scene::new(Kind::Stream);
    s.c.heard(EventFlags::HUP);
    assert_eq!(s.c.protocol.next_control(true), None, "it may have sent something before");
    assert_eq!(s.shut(Shut::RECEIVE), (true, Fate::Stays));
    assert_eq!(s.c.protocol.next_control(true), Some(ControlPacket::Shutdown(Shut::BOTH)));
}

#[test]
fn a_program_that_sends_no_more_or_fails_is_told_of() {
    for (flags, failed, shut) in [
        (EventFlags::RDHUP, false, Shut::SEND),
        (EventFlags::RDHUP, true, Shut::BOTH),
        (EventFlags::HUP, false, Shut::BOTH),
    ] {
        let mut s = Scene::new(Kind::Stream);
        s.c.heard(flags);
        assert!(s.c.is_readable() && s.c.has_payload());
        s.c.program_ends(failed);
        assert!(!s.c.is_readable());
        assert_eq!(s.c.protocol.next_control(true), Some(ControlPacket::Shutdown(shut)));
    }
}

#[test]
fn credit_is_promised_for_what_the_socket_surely_takes() {
    let mut s = Scene::new(Kind::Stream);
    let piece = |bytes: usize| Piece { parts: &[], bytes, packets: 1, end: None };
    assert!(s.c.protocol.from.receive(BUFFER));
    s.c.protocol.from.forward(BUFFER / 2);
    assert!(s.c.may_promise(&piece(4096)));
    assert!(!s.c.may_promise(&piece(BUFFER as usize)), "more than its room");
    s.host().out.held = Some(Box::default());
    assert!(!s.c.may_promise(&piece(4096)), "something waits");
    s.host().out.held = None;
    s.c.promise(4096);
    assert_eq!(s.c.protocol.from.untold(), BUFFER / 2 + 4096);
    assert_eq!(s.host().out.credit.lost(5000), 5000 - 4096, "not twice");
    s.c.protocol.far_ends(Shut::RECEIVE);
    assert!(!s.c.may_promise(&piece(4096)));
    s.c.kind = Kind::SeqPacket;
    assert!(!s.c.may_promise(&piece(4096)));
}

#[test]
fn a_connection_that_ends_nowhere_is_reset_or_goes() {
    let mut s = Scene::new(Kind::Stream);
    s.c.end = End::Gone;
    let now = s.now;
    assert_eq!(s.c.heard(EventFlags::HUP), None);
    s.c.protocol.await_end(now);
    assert_eq!(s.c.protocol.until(), Some(now + CLOSE_PATIENCE));
    assert_eq!(s.c.settle(|| now), Fate::Stays, "its guest has not ended it");
    assert_eq!(s.shut(Shut::BOTH), (false, Fate::Resets));
    assert!(s.c.protocol.reset(now) && matches!(s.c.protocol.phase(), Phase::Resetting { .. }));
    for end in [End::Dialing, End::Sibling { vm: 1, place: SlotKey { slot: 0, tenant: 0 } }] {
        s.c.end = end;
        assert_eq!(s.c.settle(|| now), Fate::Stays);
    }
}

#[test]
fn a_connection_is_small() {
    let size = size_of::<VsockConnection>();
    assert!(size <= 208, "{size} bytes");
    let size = size_of::<HostEnd>();
    assert!(size <= 80, "{size} bytes");
}

#[test]
fn what_waits_for_a_guest_goes_in_packets() {
    let mut s = Scene::new(Kind::SeqPacket);
    let now = s.now;
    assert_eq!(s.c.next_held(4, || now), Ok(None));
    let held = Held::at(&mut s.c.held);
    for message in [&b"abcdef"[..], b""] {
        held.push_bytes(message);
        held.mark(message.len() as u32, Some(SEQ_EOM));
    }
    for (len, flags, is_last) in [(4, 0, false), (2, SEQ_EOM, false), (0, SEQ_EOM, true)] {
        let packet = HeldPacket { len, flags };
        assert_eq!(s.c.next_held(4, || now), Ok(Some(packet)));
        assert_eq!(s.c.held_left(packet), is_last);
    }
    assert_eq!(s.c.next_held(4, || now), Ok(None));
    assert_eq!(s.c.protocol.to.unread_packets(), 3);

    // A part of a message goes, too, as far as there is credit.
    let mut s = Scene::new(Kind::SeqPacket);
    s.c.protocol.to.send(BUFFER - 2, 1, true);
    s.c.protocol.to.update(BUFFER, 1).expect("sound");
    let held = Held::at(&mut s.c.held);
    held.push_bytes(b"abcdef");
    held.mark(6, None);
    let packet = HeldPacket { len: 3, flags: 0 };
    assert_eq!(s.c.next_held(100, || now), Ok(Some(packet)));
    assert!(!s.c.held_left(packet));
    assert_eq!(s.c.next_held(100, || now), Err(Waits { again: None }));
    assert_eq!(s.c.protocol.next_control(false), Some(ControlPacket::Ask));
}

#[test]
fn payload_goes_where_its_connection_ends() {
    let header = |len: u32, flags: u32| Header { len, flags, ..Header::default() };
    let mut s = Scene::new(Kind::Stream);
    assert_eq!(s.c.take_payload(&header(0, SEQ_EOM), 2), PayloadRoute::Empty, "a stream has no messages");
    let route = PayloadRoute::Program { end: None, alone: false };
    assert_eq!(s.c.take_payload(&header(100, SEQ_EOM), 2), route);
    assert_eq!(s.c.take_payload(&header(BUFFER, 0), 2), PayloadRoute::BeyondCredit);
    assert_eq!(s.c.protocol.from.untold(), 0);
    s.c.protocol.far_ends(Shut::RECEIVE);
    assert_eq!(s.c.take_payload(&header(50, 0), 2), PayloadRoute::Unread);
    assert_eq!(s.c.protocol.from.untold(), 50, "nobody takes it");
    let far = (1, SlotKey { slot: 0, tenant: 0 });
    s.c.end = End::Sibling { vm: far.0, place: far.1 };
    assert_eq!(s.c.take_payload(&header(BUFFER, 0), 2), PayloadRoute::Sibling(far), "it takes the credit");

    let mut s = Scene::new(Kind::SeqPacket);
    assert_eq!(s.c.take_payload(&header(0, 0), 2), PayloadRoute::Empty);
    let route = PayloadRoute::Program { end: Some(SEQ_EOM), alone: false };
    while s.c.held_for_program().is_none_or(|held| held.messages() <= 2) {
        assert_eq!(s.c.take_payload(&header(0, SEQ_EOM), 2), route);
        Held::at(&mut s.host().out.held).mark(0, Some(SEQ_EOM));
    }
    assert_eq!(s.c.take_payload(&header(0, SEQ_EOM), 2), PayloadRoute::BeyondCredit, "too many wait");
    assert_eq!(s.c.take_payload(&header(1, 0), 2), PayloadRoute::Program { end: None, alone: false });
    s.c.end = End::Gone;
    assert_eq!(s.c.take_payload(&header(1, 0), 2), PayloadRoute::Unread);
}

#[test]
fn a_guest_that_was_told_of_the_end_has_a_while_to_confirm_it() {
    let mut s = Scene::new(Kind::Stream);
    s.send_too_much();
    let now = s.now;
    assert_eq!(s.c.await_end(|| now), Fate::Closes);
    assert_eq!(s.c.protocol.until(), Some(now + CLOSE_PATIENCE));
    assert!(s.c.held_for_program().is_none(), "the program takes nothing any more");
    // The other guest may never confirm it.
    let mut s = Scene::new(Kind::Stream);
    s.c.end = End::Sibling { vm: 1, place: SlotKey { slot: 0, tenant: 0 } };
    assert_eq!(s.c.await_end(|| now), Fate::Stays);
    assert_eq!(s.c.protocol.until(), None);
}

#[test]
fn a_program_ends_its_receiving_once() {
    let mut s = Scene::new(Kind::Stream);
    s.send_too_much();
    assert!(s.c.program_reads_no_more());
    assert!(s.c.held_for_program().is_none());
    assert_eq!(s.c.protocol.next_control(true), Some(ControlPacket::Shutdown(Shut::RECEIVE)));
    assert!(!s.c.program_reads_no_more());
    assert_eq!(Fate::Stays.or(Fate::Gone), Fate::Gone);
    assert_eq!(Fate::Resets.or(Fate::Gone), Fate::Resets);
}

/// A half that ends at another guest, of which a part of a message waits; and what may be sent to
/// that guest.
fn half_with_a_part() -> (Scene, ToGuest) {
    let mut s = Scene::new(Kind::SeqPacket);
    s.c.end = End::Sibling { vm: 1, place: SlotKey { slot: 0, tenant: 0 } };
    let held = Held::at(&mut s.c.held);
    held.push_bytes(b"abc");
    held.mark(3, None);
    let mut far = ToGuest::default();
    far.update(BUFFER, 0).expect("sound");
    (s, far)
}

#[test]
fn a_half_tells_its_guest_what_it_hears_of_the_other_one() {
    let (mut s, far) = half_with_a_part();
    assert_eq!(s.c.take_signal(Signal::TellsCredit, &far), SignalOutcome::Ready);
    assert_eq!(s.c.protocol.next_control(false), Some(ControlPacket::Update));
    assert_eq!(s.c.take_signal(Signal::AsksCredit, &far), SignalOutcome::Ready);
    assert_eq!(s.c.protocol.next_control(false), Some(ControlPacket::Ask));
    assert_eq!(s.c.take_signal(Signal::Shut(Shut::RECEIVE), &far), SignalOutcome::Ready);
    assert!(s.c.held.is_some(), "the rest of the message may come");
    assert_eq!(s.c.take_signal(Signal::Shut(Shut::SEND), &far), SignalOutcome::Ready);
    assert!(s.c.held.is_none());
    assert_eq!(s.c.protocol.next_control(true), Some(ControlPacket::Shutdown(Shut::BOTH)));
    s.c.protocol.take(Op::Shutdown, Shut::RECEIVE);
    assert_eq!(s.c.take_signal(Signal::AsksCredit, &far), SignalOutcome::Nothing, "it takes nothing");

    let (mut s, far) = half_with_a_part();
    assert_eq!(s.c.take_signal(Signal::Reset, &far), SignalOutcome::Resets);
    assert!(s.c.held.is_none() && matches!(s.c.end, End::Gone));

    let (mut s, far) = half_with_a_part();
    s.c.protocol = Protocol::asked(FromGuest::new(BUFFER), BUFFER, 0).expect("sound");
    assert_eq!(s.c.take_signal(Signal::Accepted, &far), SignalOutcome::Opened);
    assert_eq!(s.c.protocol.next_control(false), Some(ControlPacket::Response));
}

#[test]
fn a_sender_hears_of_credit_once_it_lacks_some() {
    let (mut s, mut far) = half_with_a_part();
    let mut delivered = 0;
    for (bytes, due, quiet) in [(0, false, false), (10, false, true), (BUFFER / 2, true, false)] {
        assert!(s.c.protocol.from.receive(bytes));
        far.send(bytes, 1, true);
        delivered += bytes;
        far.update(BUFFER, delivered).expect("sound");
        let review = CreditReview { due, quiet };
        assert_eq!(s.c.take_signal(Signal::Delivered, &far), SignalOutcome::Credit(review));
    }
}
