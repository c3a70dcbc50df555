use super::super::capture::testing::{checksum, tcp4, tcp6};
use super::*;

fn fields(h: VnetHeader) -> (u8, u8, [u16; 4]) {
    let b = h.to_bytes();
    let w = |i: usize| u16::from_ne_bytes([b[2 + 2 * i], b[3 + 2 * i]]);
    (b[0], b[1], [w(0), w(1), w(2), w(3)])
}

#[test]
fn tcp_over_both_is_cut_to_the_mtu_or_the_mss() {
    let mut f = tcp4(5000);
    assert_eq!(fields(prepare(&mut f, None, 1500).expect("TCP")), (1, 1, [54, 1460, 34, 16]));
    // The field holds the sum of the pseudo header, not inverted.
    let pseudo = [&f[26..34], &[0, 6], &((f.len() - 34) as u16).to_be_bytes()].concat();
    assert_eq!(f[50..52], (!checksum(&pseudo)).to_be_bytes());
    let mut f = tcp6(5000);
    assert_eq!(fields(prepare(&mut f, Some(1000), 1500).expect("TCP")), (1, 4, [74, 1000, 54, 16]));
    let mut tagged = tcp4(5000);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(fields(prepare(&mut tagged, None, 1500).expect("TCP")), (1, 1, [58, 1460, 38, 16]));
}

#[test]
fn further_tags_take_room_from_the_payload() {
    for (tags, size) in [
        (&[0x88, 0xa8, 0, 7][..], 1456),
        (&[0x81, 0, 0, 7, 0x81, 0, 0, 8], 1456),
        (&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8], 1452),
    ] {
        let mut f = tcp4(5000);
        f.splice(12..12, tags.iter().copied());
        let end = 54 + tags.len() as u16;
        let header = fields(prepare(&mut f, None, 1500).expect("TCP"));
        assert_eq!(header, (1, 1, [end, size, end - 20, 16]), "{tags:x?}");
    }
}

#[test]
fn a_length_that_was_left_out_is_filled_in() {
    let mut f = tcp4(5000);
    let whole = f.clone();
    f[16..18].fill(0);
    prepare(&mut f, None, 1500).expect("TCP");
    assert_eq!(f[14..34], whole[14..34]);
    let mut f = tcp6(5000);
    f[18..20].fill(0);
    prepare(&mut f, None, 1500).expect("TCP");
    assert_eq!(f[18..20], 5020u16.to_be_bytes());
}

proptest::proptest! {
    #[test]
    fn any_headers_end_in_a_header_or_a_reason(
        v6 in proptest::bool::ANY,
        changes in proptest::collection::vec((12usize..80, proptest::num::u8::ANY), 0..8),
        len in 14usize..3000,
    ) {
        let mut f = if v6 { tcp6(2900) } else { tcp4(2900) };
        for (at, value) in changes {
            f[at] = value;
        }
        f.truncate(len);
        if let Ok(header) = prepare(&mut f, None, 1500) {
            proptest::prop_assert!(header.check(f.len()).is_ok());
        }
    }
}

#[test]
fn what_can_t_be_cut_is_named() {
    let why = |f: &mut Vec<u8>, mss| prepare(f, mss, 1500).expect_err("refused");
    let mut f = tcp4(5000);
    assert!(why(&mut f, Some(1461)).contains("--mss 1461"));
    f[23] = 17;
    assert!(why(&mut f, None).contains("protocol 17"));
    let mut f = tcp4(5000);
    f[20] = 0x20;
    assert!(why(&mut f, None).contains("fragment"));
    let mut f = tcp4(5000);
    f.push(0);
    assert!(why(&mut f, None).contains("5040 bytes and it has 5041"));
    let mut f = tcp4(5000);
    (f[14], f[16], f[17]) = (0x40, 0, 0);
    assert!(why(&mut f, None).contains("says that it has 0 bytes"));
    assert!(why(&mut vec![9; 2000], None).contains("ethertype 0909"));
    let short = tcp4(5000);
    for len in 0..54 {
        assert!(prepare(&mut short[..len].to_vec(), None, 1500).is_err(), "{len}");
    }
    assert!(prepare(&mut tcp4(5000), None, 40).expect_err("refused").contains("no room"));
}
