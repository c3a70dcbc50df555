use super::*;
use std::os::unix::net::UnixDatagram;

/// A queue that takes no more, as a stand-in for a full buffer.
fn full() -> (OwnedFd, UnixDatagram) {
    let (a, b) = UnixDatagram::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    while a.send(b"before").is_ok() {}
    (a.into(), b)
}

fn batch() -> (Vec<Payload>, Vec<Accepted>) {
    let took = Accepted { bytes: 2, id: Some(0), refused: None };
    let lost = Accepted::lost;
    let sent = vec![lost(libc::EAGAIN), took, lost(libc::EPERM), lost(libc::EAGAIN), took];
    let payloads = (0u8..5).map(|i| Payload::from(vec![b'0' + i; 2])).collect();
    (payloads, sent)
}

#[test]
fn those_without_room_are_sent_when_there_is_some() {
    let (a, b) = full();
    let (payloads, mut sent) = batch();
    let reader = std::thread::spawn(move || {
        let mut got = [0; 100];
        let mut all = Vec::new();
        while all.len() < 2 {
            let n = b.recv(&mut got).unwrap();
            if &got[..n] != b"before" {
                all.push(got[..n].to_vec());
            }
        }
        all
    });
    Stragglers::new(Duration::from_secs(20)).send(&a, &payloads, &mut sent);
    assert_eq!(reader.join().unwrap(), [b"00", b"33"], "and no other");
    let late = Accepted { bytes: 2, id: None, refused: Some(libc::EAGAIN) };
    let (_, before) = batch();
    assert_eq!(sent, [late, before[1], before[2], late, before[4]]);
}

#[test]
fn those_that_never_have_room_stay_lost() {
    let (a, _b) = full();
    let (payloads, mut sent) = batch();
    let mut stragglers = Stragglers::new(Duration::from_millis(5));
    stragglers.send(&a, &payloads, &mut sent);
    assert_eq!(sent, batch().1);
    let end = stragglers.end.expect("the deadline began with the first");
    stragglers.send(&a, &payloads, &mut sent);
    assert_eq!(stragglers.end, Some(end), "one deadline for all");
}

#[test]
fn one_that_is_refused_for_good_says_why() {
    let (a, b) = full();
    drop(b);
    let (payloads, mut sent) = batch();
    Stragglers::new(Duration::from_secs(20)).send(&a, &payloads, &mut sent);
    let why = (sent[0].refused, sent[3].refused);
    // The first call forgets the peer.
    assert_eq!(why, (Some(libc::ECONNREFUSED), Some(libc::ENOTCONN)));
    assert!(sent[0].is_lost() && sent[3].is_lost());
}
