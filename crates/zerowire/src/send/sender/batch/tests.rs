use super::*;

const COPY: Decision = Decision { way: SendWay::Copy, measure: false, reason: CopyReason::Small };
const LEND: Decision = Decision { way: SendWay::Lend, measure: true, reason: CopyReason::Trial };

#[test]
fn turns_stay_with_their_payloads() {
    let ahead = Ahead { turn: LEND, same: 3, next: Some(COPY) };
    assert_eq!(ahead.behind(0), Some(ahead));
    assert_eq!(ahead.behind(1), Some(Ahead { same: 2, ..ahead }));
    assert_eq!(ahead.behind(3), Some(Ahead::of(COPY)));
    assert_eq!(Ahead { next: None, ..ahead }.behind(3), None);
}

/// Three get a turn, and a fourth that goes another way. Then one is sent, and the rest
/// submitted again.
#[test]
fn each_payload_is_asked_for_once() {
    let (a, _b) = std::os::unix::net::UnixDatagram::pair().expect("a pair of sockets");
    let options =
        crate::send::SendOptions { backend: crate::send::SendBackend::Socket, ..Default::default() };
    let mut s = Sender::new(a.into(), options).expect("a sender");
    (s.loans.lending.auto, s.loans.lending.cannot_lend) = (Some(crate::send::auto::Auto::new()), None);
    let payloads: Vec<_> = [1000, 1000, 1000, 10].into_iter().map(|n| Payload::from(vec![0; n])).collect();
    // The first sends of a class are not measured; then they are, unlike the short one.
    for _ in 0..crate::send::auto::WARM_UP {
        s.loans.turn(1000);
    }
    let sends = |s: &Sender| s.choices().iter().map(|c| (c.from_bytes, c.sends)).collect::<Vec<_>>();
    let mut ahead = Ahead::of(s.loans.turn(1000));
    assert_eq!(s.run_of(&payloads, &mut ahead), 3);
    let mut ahead = ahead.behind(1).expect("three are left");
    assert_eq!(s.run_of(&payloads[1..], &mut ahead), 2);
    let mut ahead = ahead.behind(2).expect("one is left");
    assert_eq!(ahead.turn, COPY);
    assert_eq!(s.run_of(&payloads[3..], &mut ahead), 1);
    assert_eq!(sends(&s), [(8, 1), (512, u64::from(crate::send::auto::WARM_UP) + 3)]);
}

/// A back end would give it a number and wait for a notification, which UDP sends for an empty
/// datagram, but not every socket.
#[test]
fn nothing_is_never_lent() {
    let socket = || {
        let s = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        s.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
        s
    };
    let (a, b) = (socket(), socket());
    a.connect(b.local_addr().expect("an address")).expect("connected");
    let options = crate::send::SendOptions {
        mode: crate::send::SendMode::ZeroCopy,
        backend: crate::send::SendBackend::Socket,
        ..Default::default()
    };
    let mut s = Sender::new(a.into(), options).expect("a sender");
    assert!(s.loans.lending.cannot_lend.is_none(), "{:?}", s.loans.lending.cannot_lend);
    let (_, way) = s.lend(empty()).map_err(|r| r.error).expect("sent");
    assert_eq!((way, s.loans.window.ids_out()), (SendWay::Copy, 0));
    assert_eq!(b.recv(&mut [0; 10]).expect("a datagram"), 0);
}
