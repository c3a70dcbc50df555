use super::*;

#[test]
fn walks_never_leave_the_set() {
    let mut walk = Walk::default();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let range = walk.next(6, 10);
        seen.push((range.start, range.end));
        walk.advance(range.len());
    }
    assert_eq!(seen, [(0, 6), (6, 10), (0, 6), (6, 10)]);
}

#[test]
fn both_ends_agree_on_bytes_and_sum() {
    for copy in [false, true] {
        let (a, b) = UnixStream::pair().unwrap();
        let memory: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
        let sent = std::thread::spawn(move || {
            source(&a, &memory, &mut Walk::default(), (3000, 100_000), copy, true)
        });
        let mut target = vec![0; 7000];
        let got = sink(&b, &mut target, &mut Walk::default(), (2000, 100_000), copy, true).unwrap();
        let sent = sent.join().unwrap().unwrap();
        assert_eq!(sent.sum, got.sum);
        assert_ne!(got.sum, 0);
    }
}

#[test]
fn messages_are_whole_and_read_one_by_one() {
    let (a, b) = pair(SocketKind::Seqpacket, 3000).unwrap();
    let memory: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
    let walk = || Walk::of(SocketKind::Seqpacket);
    let lens = (3000, 300_000);
    let sent =
        std::thread::spawn(move || source(&a, &memory, &mut walk(), lens, false, true).map(|w| (w, a)));
    let got = sink(&b, &mut [0; 7000], &mut walk(), lens, true, true).unwrap();
    let (sent, a) = sent.join().unwrap().unwrap();
    assert_eq!(sent.sum, got.sum);
    // One that is shorter than it should be is noticed.
    (&a).write_all(&[1; 10]).unwrap();
    let error = sink(&b, &mut [0; 20], &mut walk(), (20, 20), false, false).unwrap_err();
    assert!(error.to_string().contains("10 bytes came where one of 20"), "{error}");
}

#[test]
fn a_message_that_no_socket_takes_is_refused_with_the_remedy() {
    let error = pair(SocketKind::Seqpacket, 1 << 30).unwrap_err().to_string();
    assert!(error.contains("1073741824") && error.contains("wmem_max"), "{error}");
    pair(SocketKind::Stream, 1 << 30).unwrap();
}

#[test]
fn an_early_end_is_an_error() {
    let (a, b) = UnixStream::pair().unwrap();
    drop(a);
    let error = sink(&b, &mut [0; 10], &mut Walk::default(), (10, 10), false, false).unwrap_err();
    assert!(error.to_string().contains("0 of 10"));
}
