use super::super::capture::testing::{frame, tcp4};
use super::*;

fn policy() -> Policy {
    Policy {
        mtu: 1500,
        short: Short::Fail,
        cut: TruncatedPolicy::Fail,
        oversized: Oversized::Fail,
        mss: None,
    }
}

fn apply(policy: &Policy, data: &[u8], wire: u32) -> Result<Result<(VnetHeader, Vec<u8>), Skip>, String> {
    let mut out = vec![1, 2, 3];
    let packet = CapturedPacket { number: 7, time: None, wire_bytes: wire, data };
    let done = policy.apply(&packet, &mut out).map_err(|e| e.to_string())?;
    Ok(done.map(|h| (h, out)))
}

fn refused(policy: &Policy, data: &[u8], wire: u32, words: &[&str]) {
    let e = apply(policy, data, wire).expect_err("refused");
    for word in [&["packet 7"], words].concat() {
        assert!(e.contains(word), "no '{word}' in {e}");
    }
}

fn sent(policy: &Policy, data: &[u8], wire: u32) -> (VnetHeader, Vec<u8>) {
    apply(policy, data, wire).expect("not refused").expect("not left out")
}

#[test]
fn ordinary_frames_are_left_as_they_are() {
    for len in [14, 60, 1514] {
        let f = frame(1, len);
        assert_eq!(sent(&policy(), &f, len as u32), (VnetHeader::NONE, f));
    }
    let mut tagged = frame(1, 1518);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(sent(&policy(), &tagged, 1518).1, tagged);
}

#[test]
fn short_ones_are_refused_or_left_out() {
    refused(&policy(), &[], 0, &["no bytes", "--short skip"]);
    refused(&policy(), &[0; 13], 13, &["13 bytes", "--short skip"]);
    let skip = Policy { short: Short::Skip, ..policy() };
    assert_eq!(apply(&skip, &[0; 13], 60), Ok(Err(Skip::Short)));
}

#[test]
fn parts_are_refused_left_out_sent_or_filled_up() {
    let f = frame(1, 96);
    refused(&policy(), &f, 1514, &["96 of its 1514", "--pad", "--truncated send"]);
    let with = |cut| Policy { cut, ..policy() };
    assert_eq!(apply(&with(TruncatedPolicy::Skip), &f, 1514), Ok(Err(Skip::Truncated)));
    assert_eq!(sent(&with(TruncatedPolicy::Send), &f, 1514).1, f);
    let padded = sent(&with(TruncatedPolicy::Pad), &f, 1514).1;
    assert_eq!((padded.len(), &padded[..96]), (1514, &f[..]));
    assert!(padded[96..].iter().all(|b| *b == 0));
    // A length that no frame has is not filled up.
    refused(&with(TruncatedPolicy::Pad), &f, u32::MAX, &["4294967295"]);
}

#[test]
fn long_ones_are_refused_left_out_or_cut() {
    let f = frame(1, 1515);
    refused(&policy(), &f, 1515, &["1515", "1514 (MTU 1500)", "--oversized gso", "--oversized skip"]);
    let with = |oversized| Policy { oversized, ..policy() };
    assert_eq!(apply(&with(Oversized::Skip), &f, 1515), Ok(Err(Skip::Oversized)));
    refused(&with(Oversized::Gso), &f, 1515, &["ethertype 88b5", "gso-skip"]);
    assert_eq!(apply(&with(Oversized::GsoSkip), &f, 1515), Ok(Err(Skip::Oversized)));
    let tcp = tcp4(20_000);
    let len = tcp.len() as u32;
    for oversized in [Oversized::Gso, Oversized::GsoSkip] {
        let (header, out) = sent(&with(oversized), &tcp, len);
        assert!(header.is_segmented());
        assert_eq!((&out[..50], &out[52..]), (&tcp[..50], &tcp[52..]));
    }
    // Short frames go as they are.
    assert_eq!(sent(&with(Oversized::Gso), &frame(1, 60), 60).0, VnetHeader::NONE);
    refused(&with(Oversized::Gso), &vec![0; 70_000], 70_000, &["70000", "65550"]);
    let lo = Policy { mtu: 65_536, ..policy() };
    refused(&Policy { mtu: 100_000, ..lo }, &vec![0; 70_000], 70_000, &["65550"]);
}
