use super::*;

fn sound() -> Header {
    Header { src_cid: 3, dst_cid: 2, src_port: 7, dst_port: 8, len: 5, kind: 1, op: 5, ..Header::default() }
}

#[test]
fn numbers_name_operations() {
    for number in 0..=8 {
        let named = (1..=7).contains(&number).then_some(number);
        assert_eq!(Op::new(number).map(|op| op as u16), named);
    }
}

#[test]
fn fields_lie_in_order() {
    let h = Header {
        src_cid: 0x0807_0605_0403_0201,
        dst_cid: 0x100f_0e0d_0c0b_0a09,
        src_port: 0x1413_1211,
        dst_port: 0x1817_1615,
        len: 0x1c1b_1a19,
        kind: 0x1e1d,
        op: 0x201f,
        flags: 0x2423_2221,
        buf_alloc: 0x2827_2625,
        fwd_cnt: 0x2c2b_2a29,
    };
    let bytes: Vec<u8> = (1..=44).collect();
    assert_eq!(h.to_bytes()[..], bytes);
    assert_eq!(Header::from_bytes(&h.to_bytes()), h);
    assert_eq!((h.op(), Kind::new(h.kind)), (None, None));
}

#[test]
fn an_answer_goes_back_without_credit() {
    let h = Header { flags: 3, buf_alloc: 9, fwd_cnt: 9, ..sound() };
    let back = Header { src_cid: 2, dst_cid: 3, src_port: 8, dst_port: 7, len: 0, op: 3, ..sound() };
    assert_eq!(h.answer(Op::Rst), back);
}

#[test]
fn each_wrong_field_is_found() {
    assert_eq!(sound().check(3, 5), Ok((Op::Rw, Kind::Stream)));
    assert_eq!(sound().check(4, 5), Err(Fault::Forged));
    assert_eq!(sound().check(3, 4), Err(Fault::Wrong), "longer than its chain");
    for broken in [
        Header { kind: 0, ..sound() },
        Header { kind: 3, ..sound() },
        Header { op: 0, ..sound() },
        Header { op: 8, ..sound() },
        Header { flags: 1, ..sound() },
        Header { flags: 4, kind: 2, ..sound() },
        Header { flags: 4, op: 4, len: 0, ..sound() },
        Header { op: 1, ..sound() },
    ] {
        assert_eq!(broken.check(3, 5), Err(Fault::Wrong), "{broken:?}");
    }
    assert!(Header { flags: 3, kind: 2, ..sound() }.check(3, 5).is_ok());
}
