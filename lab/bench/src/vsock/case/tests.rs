use super::*;

#[test]
fn cases_multiply_out_and_lengths_are_checked() {
    let all = |writes: &[usize], credits: &[u32]| {
        VsockCase::all(SocketKind::Stream, &Direction::ALL, writes, credits, &WorkingSet::ALL)
    };
    let cases = all(&[4096, 65_536], &[65_536, 262_144]).unwrap();
    assert_eq!(cases.len(), 16);
    assert_eq!(cases[0].to_string(), "guest -> host, 4 KiB writes, 64 KiB credit, hot");
    assert!(all(&[0], &[65_536]).unwrap_err().to_string().contains("0 bytes"));
    assert!(all(&[4096], &[100]).unwrap_err().to_string().contains("100"));
}

#[test]
fn a_message_is_never_longer_than_the_credit() {
    let all = |writes: &[usize], credits: &[u32]| {
        VsockCase::all(SocketKind::Seqpacket, &[Direction::Receive], writes, credits, &[WorkingSet::Hot])
    };
    let cases = all(&SocketKind::Seqpacket.writes(), &[65_536]).unwrap();
    assert_eq!(cases[0].to_string(), "host -> guest, 64 B messages, 64 KiB credit, hot");
    let error = all(&[65_537], &[262_144, 65_536]).unwrap_err().to_string();
    assert!(error.contains("65537") && error.contains("--credit"), "{error}");
    all(&[65_537], &[262_144]).unwrap();
}

#[test]
fn samples_are_whole_writes_and_fit_the_set() {
    let sockets = [SocketKind::Stream, SocketKind::Seqpacket];
    for (direction, socket) in Direction::ALL.into_iter().zip(sockets) {
        for write_len in [1, 4096, 5000, 512 << 10, 4 << 20] {
            let (credit, working_set) = (65_536, WorkingSet::Hot);
            let case = VsockCase { direction, write_len, credit, working_set, socket };
            for bytes in [case.sample_bytes(true), case.sample_bytes(false), case.warm_up_bytes()] {
                assert!(bytes > 0 && bytes.is_multiple_of(write_len));
            }
            assert!(case.set_bytes() >= write_len);
        }
    }
}
