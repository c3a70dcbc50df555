//! First how a connection goes, then all states with all that can happen in them.

use super::*;

const BUFFER: u32 = 1000;

fn from() -> FromGuest {
    FromGuest::new(BUFFER)
}

fn asked() -> Protocol {
    Protocol::asked(from(), BUFFER, 0).expect("a new connection's counts")
}

fn offered() -> Protocol {
    Protocol::offered(from(), Instant::now())
}

fn is_open(p: &Protocol) -> bool {
    matches!(p.phase(), Phase::Open { .. })
}

/// A header with these credit fields.
fn header(op: Op, flags: u32, alloc: u32, forwarded: u32) -> Header {
    let kind = Kind::Stream as u16;
    Header { kind, op: op as u16, flags, buf_alloc: alloc, fwd_cnt: forwarded, ..Header::default() }
}

#[test]
fn a_guest_connects_sends_and_closes() {
    let mut p = asked();
    assert_eq!(p.next_control(true), None);
    p.accepted();
    assert_eq!(p.next_control(true), Some(ControlPacket::Response));
    assert_eq!(p.take(Op::Rw, Shut::NONE), Verdict::Payload);
    assert_eq!(p.take(Op::Shutdown, Shut::SEND), Verdict::Shut(Shut::SEND));
    assert_eq!(p.take(Op::Rw, Shut::NONE), Verdict::OutOfPlace, "after it said that it would not");
    assert!(p.takes_payload(), "the reply still comes");
    assert_eq!(p.take(Op::Shutdown, Shut::BOTH), Verdict::Shut(Shut::BOTH));
    assert!(p.guest().is_both());
    assert_eq!(p.settle(false, Instant::now), Fate::Resets);
    assert!(p.reset(Instant::now()));
    assert_eq!(p.next_control(true), Some(ControlPacket::Rst));
}

#[test]
fn the_end_is_told_behind_the_last_byte() {
    let mut p = offered();
    assert_eq!(p.next_control(true), Some(ControlPacket::Request));
    assert_eq!(p.take(Op::Response, Shut::NONE), Verdict::Accepted);
    p.far_ends(Shut::BOTH);
    assert_eq!(p.next_control(false), Some(ControlPacket::Shutdown(Shut::RECEIVE)));
    assert_eq!(p.next_control(false), None);
    assert!(is_open(&p) && !p.ends.told.is_both());
    assert_eq!(p.next_control(true), Some(ControlPacket::Shutdown(Shut::BOTH)));
    assert!(is_open(&p) && p.ends.told.is_both());
    assert_eq!(p.take(Op::Rst, Shut::NONE), Verdict::Over(Over::Reset));
}

/// The guest tells of more room.
fn credit_comes(p: &mut Protocol) {
    let forwarded = p.to.forwarded + 1;
    p.to.send(1, 1, true);
    let (fields, _) = p.take_packet(Op::CreditUpdate, &header(Op::CreditUpdate, 0, BUFFER, forwarded), true);
    assert!(fields.more_room);
}

#[test]
fn credit_is_asked_for_once() {
    let mut p = asked();
    p.accepted();
    p.next_control(true);
    p.ask();
    p.ask();
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask));
    p.ask();
    assert_eq!(p.next_control(false), None);
    p.take(Op::CreditUpdate, Shut::NONE);
    p.ask();
    assert_eq!(p.next_control(false), None, "none came with it");
    p.pass_ask();
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask), "a sibling may ask again");
    credit_comes(&mut p);
    p.ask();
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask));
    p.take(Op::CreditRequest, Shut::NONE);
    assert_eq!(p.next_control(false), Some(ControlPacket::Update));
}

#[test]
fn what_a_sibling_asks_does_not_count_as_asked() {
    let mut p = asked();
    p.accepted();
    p.next_control(true);
    p.pass_ask();
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask));
    p.ask();
    credit_comes(&mut p);
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask), "it was due");
    p.ask();
    assert_eq!(p.next_control(false), Some(ControlPacket::Ask), "the one before came too early");
}

#[test]
fn nothing_goes_before_the_answer() {
    let mut p = asked();
    p.owe_update();
    p.pass_ask();
    p.take(Op::CreditRequest, Shut::NONE);
    assert!(!p.has_control(true));
    p.accepted();
    assert_eq!(p.next_control(true), Some(ControlPacket::Response));

    let mut p = offered();
    p.owe_update();
    p.pass_ask();
    assert_eq!(p.next_control(true), Some(ControlPacket::Request));
    assert!(!p.has_control(true));
    assert_eq!(p.take(Op::Response, Shut::NONE), Verdict::Accepted);
    assert_eq!(p.next_control(true), Some(ControlPacket::Ask));
}

#[test]
fn a_guest_that_has_ended_a_connection_hears_no_more_of_it() {
    let mut p = asked();
    p.accepted();
    p.next_control(true);
    assert_eq!(p.guest_ended(true, Instant::now()), Fate::Drains);
    p.owe_update();
    p.ask();
    p.far_ends(Shut::BOTH);
    assert!(!p.has_control(true));
}

#[test]
fn packets_out_of_place() {
    let mut p = offered();
    assert_eq!(p.take(Op::Rw, Shut::NONE), Verdict::OutOfPlace);
    assert_eq!(p.take(Op::Rst, Shut::NONE), Verdict::Over(Over::Refused));
    let mut p = asked();
    assert_eq!(p.take(Op::Rw, Shut::NONE), Verdict::OutOfPlace);
    assert_eq!(p.take(Op::Response, Shut::NONE), Verdict::OutOfPlace);
    assert_eq!(p.take(Op::Request, Shut::NONE), Verdict::Over(Over::Renewed));
    p.accepted();
    assert_eq!(p.take(Op::Response, Shut::NONE), Verdict::Stray);
    p.reset(Instant::now());
    assert_eq!(p.take(Op::Rw, Shut::NONE), Verdict::Stray);
    assert_eq!(p.next_control(false), None, "payload comes first");
}

#[test]
fn a_request_has_the_counts_of_a_new_connection() {
    assert!(Protocol::asked(from(), 0, 0).is_some());
    for forwarded in [1, BUFFER, u32::MAX] {
        assert!(Protocol::asked(from(), BUFFER, forwarded).is_none(), "{forwarded}");
    }
}

#[test]
fn a_quiet_guest_is_asked_again_at_longer_and_longer_intervals() {
    let (mut p, start) = (asked(), Instant::now());
    assert_eq!(p.ask_again(start), None, "nothing waits");
    p.accepted();
    p.next_control(true);
    assert_eq!(p.await_reads(|| start), Waits { again: Some(ASK_AFTER.0) });
    assert_eq!(p.await_reads(|| panic!("what time it is is known")), Waits { again: None });
    assert_eq!(p.next_control(true), Some(ControlPacket::Ask));
    let (mut now, mut after) = (start + ASK_AFTER.0, ASK_AFTER.0);
    for _ in 0..12 {
        after = (2 * after).min(ASK_AFTER.1);
        assert_eq!(p.ask_again(now), Some((true, after)));
        assert_eq!(p.next_control(true), Some(ControlPacket::Ask));
        let early = Duration::from_micros(1);
        assert_eq!(p.ask_again(now + after - early), Some((false, early)));
        assert!(!p.has_control(true));
        now += after;
    }
    assert_eq!(after, ASK_AFTER.1);
    credit_comes(&mut p);
    assert_eq!(p.ask_again(now), None);
    p.await_reads(|| now);
    p.take(Op::Shutdown, Shut::RECEIVE);
    assert_eq!(p.ask_again(now + ASK_AFTER.1), None, "it takes nothing any more");
}

#[test]
fn payload_waits_for_credit_or_for_packets_that_are_read() {
    let (mut p, now) = (asked(), Instant::now());
    p.accepted();
    p.next_control(true);
    let (credit, reads) = (Waits { again: None }, Waits { again: Some(ASK_AFTER.0) });
    let never = || -> Instant { panic!("nobody asks what time it is") };
    assert_eq!(p.stream_room(10, never), Ok(10), "one packet of so small a buffer");
    assert_eq!(p.next_packet(Kind::Stream, 500, 300, never), Ok(300));
    assert_eq!(p.next_packet(Kind::SeqPacket, 0, 300, never), Ok(0), "an empty message");
    assert_eq!(p.message_room(BUFFER as usize, 10, never), Ok(true));
    assert_eq!(p.message_room(BUFFER as usize + 1, 10, never), Ok(false), "the rest later");
    assert!(!p.has_control(true), "nothing waits");

    p.to.send(600, 1, true);
    assert_eq!(p.message_room(500, 100, never), Err(credit), "less than half is free");
    assert_eq!(p.next_control(true), Some(ControlPacket::Ask));
    assert_eq!(p.message_room(400, 100, || now), Err(reads), "a packet is unread");
    assert_eq!(p.message_room(400, 100, never), Err(credit), "it is asked again by then");
    assert_eq!(p.stream_room(100, never), Err(credit));
    assert_eq!(p.next_packet(Kind::Stream, 500, 300, never), Err(credit));
    assert!(!p.has_control(true), "it was asked");

    p.to.send(400, 1, true);
    assert_eq!(p.stream_room(100, never), Err(credit));
    assert_eq!(p.next_packet(Kind::SeqPacket, 1, 300, never), Err(credit));
    credit_comes_back(&mut p, BUFFER);
    assert_eq!(p.next_packet(Kind::SeqPacket, 1, 300, never), Ok(1));
}

/// The guest has read this many bytes in all.
fn credit_comes_back(p: &mut Protocol, forwarded: u32) {
    let h = header(Op::CreditUpdate, 0, BUFFER, forwarded);
    assert!(p.take_packet(Op::CreditUpdate, &h, true).0.more_room);
}

/// Columns of the tables.
fn column(phase: Phase) -> usize {
    match phase {
        Phase::Asked { .. } => 0,
        Phase::Offered { .. } => 1,
        Phase::Open { .. } => 2,
        Phase::Resetting { .. } => 3,
        Phase::Draining { .. } => 4,
    }
}

const OUT: Verdict = Verdict::OutOfPlace;
const STRAY: Verdict = Verdict::Stray;
const RESET: Verdict = Verdict::Over(Over::Reset);
const RENEWED: Verdict = Verdict::Over(Over::Renewed);
const ASKS: Verdict = Verdict::AsksCredit;
const TELLS: Verdict = Verdict::TellsCredit;

/// What packets mean: Asked, Offered, Open, Resetting, Draining. Beside this table a guest that
/// sends no more sends no payload.
const VERDICTS: [(Op, [Verdict; 5]); 7] = [
    (Op::Request, [RENEWED, RENEWED, RENEWED, RENEWED, STRAY]),
    (Op::Response, [OUT, Verdict::Accepted, STRAY, STRAY, STRAY]),
    (Op::Rst, [RESET, Verdict::Over(Over::Refused), RESET, RESET, STRAY]),
    (Op::Shutdown, [RESET, OUT, Verdict::Shut(Shut::NONE), STRAY, STRAY]),
    (Op::Rw, [OUT, OUT, Verdict::Payload, STRAY, STRAY]),
    (Op::CreditUpdate, [TELLS, TELLS, TELLS, TELLS, STRAY]),
    (Op::CreditRequest, [ASKS, ASKS, ASKS, ASKS, STRAY]),
];

const SHUTS: [Shut; 4] = [Shut::NONE, Shut::RECEIVE, Shut::SEND, Shut::BOTH];

/// All states that can be, but for the time and the counts.
fn states(now: Instant) -> Vec<Protocol> {
    let (until, times) = (now + LINGER, [None, Some(now + LINGER)]);
    let mut phases = vec![Phase::Resetting { until }, Phase::Draining { until }];
    for due in [false, true] {
        phases.push(Phase::Offered { until, due });
        phases.extend(times.map(|until| Phase::Open { due, until }));
    }
    phases.extend(times.map(|until| Phase::Asked { until }));
    let asks = [Asking::No, Asking::Due, Asking::Sent, Asking::Passed];
    let mut all = Vec::new();
    for phase in phases {
        let is_early = matches!(phase, Phase::Asked { .. } | Phase::Offered { .. });
        for (guest, far) in SHUTS.iter().flat_map(|g| SHUTS.iter().map(move |f| (*g, *f))) {
            for told in SHUTS.into_iter().filter(|told| far | *told == far) {
                if is_early && guest | told != Shut::NONE {
                    continue;
                }
                for (update, ask) in asks.iter().flat_map(|ask| [(false, *ask), (true, *ask)]) {
                    let mut p = Protocol::new(phase, from(), ToGuest::default());
                    (p.owed, p.ends) = (Owed { update, ask }, SideEnds { guest, far, told });
                    all.push(p);
                }
            }
        }
    }
    all
}

/// The state, but for credit.
fn state(p: &Protocol) -> (Phase, Owed, SideEnds) {
    (p.phase, p.owed, p.ends)
}

#[test]
fn every_packet_in_every_state() {
    let counts = [0, 1, BUFFER];
    let mut seen = 0;
    for p in states(Instant::now()) {
        for (op, row) in VERDICTS {
            for (shut, is_kind) in SHUTS.iter().flat_map(|s| [(*s, true), (*s, false)]) {
                for (sent, forwarded) in counts.iter().flat_map(|s| counts.map(|f| (*s, f))) {
                    let mut after = p;
                    after.to.update(BUFFER, 0).expect("a new connection");
                    after.to.send(sent, 1, true);
                    let free = after.to.free();
                    let h = header(op, shut.flags(), BUFFER, forwarded);
                    let (fields, verdict) = after.take_packet(op, &h, is_kind);
                    let ignored = matches!(op, Op::Request | Op::Rst);
                    let is_beyond = !ignored && forwarded > sent;
                    let expected = match row[column(p.phase)] {
                        _ if is_beyond => Verdict::Broken(DropReason::BeyondCredit),
                        _ if !is_kind => Verdict::Broken(DropReason::BadPacket),
                        Verdict::Payload if p.ends.guest.sends_no_more() => Verdict::OutOfPlace,
                        Verdict::Shut(_) => Verdict::Shut(shut),
                        verdict => verdict,
                    };
                    assert_eq!(verdict, expected, "{op:?} of {shut:?} in {p:?}");
                    check_after(&p, &after, &fields, verdict);
                    assert_eq!(fields.credit.is_err(), is_beyond);
                    let taken = if ignored || is_beyond { 0 } else { forwarded };
                    assert_eq!(after.to.free(), free + taken, "{fields:?}");
                    // Counts of no bytes retire a packet of none, too.
                    assert_eq!(fields.more_room, !ignored && !is_beyond && (taken > 0 || sent == 0));
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 100_000, "{seen} cases");
}

#[test]
fn another_guest_hears_what_its_side_of_the_connection_needs() {
    let heard = [Verdict::Accepted, Verdict::Shut(Shut::SEND), ASKS, TELLS].map(Verdict::signal);
    let signals = [Signal::Accepted, Signal::Shut(Shut::SEND), Signal::AsksCredit, Signal::TellsCredit];
    assert_eq!(heard, signals.map(Some));
    for verdict in [Verdict::Payload, OUT, STRAY, RESET, RENEWED] {
        assert_eq!(verdict.signal(), None);
    }
}

/// What a packet may have changed.
fn check_after(p: &Protocol, after: &Protocol, fields: &Fields, verdict: Verdict) {
    let (mut phase, mut owed, mut ends) = state(p);
    if fields.more_room {
        owed.ask = if owed.ask.is_due() { Asking::Passed } else { Asking::No };
    }
    match verdict {
        Verdict::Accepted => phase = Phase::Open { due: false, until: None },
        Verdict::Shut(shut) => ends.guest |= shut,
        Verdict::AsksCredit => owed.update |= is_open(p),
        _ => {}
    }
    assert_eq!(state(after), (phase, owed, ends), "{verdict:?} in {p:?}");
}

#[test]
fn every_control_packet_in_every_state() {
    let now = Instant::now();
    for (p, delivered) in states(now).into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let (mut after, mut said) = (p, Vec::new());
        while after.has_control(delivered) {
            let control = after.next_control(delivered).expect("there is one");
            said.push(control);
            match control {
                ControlPacket::Rst => {
                    assert!(delivered && matches!(p.phase, Phase::Resetting { .. }));
                    break;
                }
                ControlPacket::Request => assert_eq!((column(p.phase), said.len()), (1, 1), "{p:?}"),
                ControlPacket::Response => assert_eq!((column(p.phase), said.len()), (2, 1), "{p:?}"),
                ControlPacket::Ask => assert!(is_open(&p) && p.owed.ask.is_due()),
                ControlPacket::Update => assert!(is_open(&p) && p.owed.update && !p.owes_beginning()),
                ControlPacket::Shutdown(shut) => {
                    let new = (shut | p.ends.told) != p.ends.told;
                    assert!(is_open(&p) && new && shut | p.ends.far == p.ends.far, "{shut:?} in {p:?}");
                    assert!(delivered || !shut.sends_no_more() || p.ends.told.sends_no_more());
                }
            }
            assert!(said.len() < 5, "{said:?}");
        }
        if said.last() != Some(&ControlPacket::Rst) {
            assert_eq!(after.next_control(delivered), None);
        }
        let silent = matches!(p.phase, Phase::Asked { .. } | Phase::Draining { .. });
        assert!(!silent || said.is_empty());
        assert_eq!(
            p.owes_beginning(),
            matches!(said.first(), Some(ControlPacket::Request | ControlPacket::Response))
        );
        if is_open(&p) && delivered {
            assert_eq!(after.ends.told, p.ends.far, "{said:?}");
        }
    }
}

#[test]
fn every_end_in_every_state() {
    let now = Instant::now();
    let (start, pending) = (now - Duration::from_secs(1), [false, true]);
    for (p, pending) in states(start).into_iter().flat_map(|p| pending.map(|n| (p, n))) {
        let (before, is_over) = (state(&p), p.ends.guest.is_both());
        assert!(p.until().is_some() || matches!(p.phase, Phase::Asked { .. } | Phase::Open { .. }));

        let mut after = p;
        let step = after.settle(pending, || now);
        let expected = match (p.phase, pending) {
            (Phase::Open { until: None, .. }, true) if is_over => Fate::Lingers,
            (_, true) => Fate::Stays,
            (Phase::Draining { .. }, false) => Fate::Gone,
            (_, false) if is_over => Fate::Resets,
            (_, false) => Fate::Stays,
        };
        assert_eq!(step, expected, "{p:?}");
        if step == Fate::Lingers {
            assert_eq!(after.until(), Some(now + LINGER));
            assert_eq!((after.owed, after.ends), (p.owed, p.ends));
        } else {
            assert_eq!(state(&after), before);
        }

        let mut after = p;
        let step = after.guest_ended(pending, now);
        assert_eq!(step, if pending { Fate::Drains } else { Fate::Gone });
        assert!(!pending || (after.is_draining() && after.until() == Some(now + LINGER)));
        assert!(!pending || !after.has_control(true));
        assert_eq!(after.ends, p.ends);

        let mut after = p;
        let was = matches!(p.phase, Phase::Resetting { .. });
        assert_eq!(after.reset(now), !was);
        let until = if was { p.until() } else { Some(now + CLOSE_PATIENCE) };
        assert_eq!((after.until(), after.ends), (until, p.ends));
        assert!(!after.has_control(false) && after.has_control(true) && !after.takes_payload());

        let mut after = p;
        after.accepted();
        let asked = matches!(p.phase, Phase::Asked { .. });
        let phase = if asked { Phase::Open { due: true, until: None } } else { p.phase };
        assert_eq!(state(&after), (phase, p.owed, p.ends));

        let mut after = p;
        after.wait_for_answer(now);
        after.await_end(now);
        let until = match p.phase {
            Phase::Asked { .. } => Some(now + ANSWER_PATIENCE),
            Phase::Open { .. } => Some(now + CLOSE_PATIENCE),
            _ => p.until(),
        };
        assert_eq!((after.until(), after.owed, after.ends), (until, p.owed, p.ends));
    }
}
