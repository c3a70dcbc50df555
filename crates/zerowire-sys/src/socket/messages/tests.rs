use super::*;

const HEAD: usize = size_of::<usize>() + 8;

fn piece(len: usize, level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data].concat()
}

fn pieces(bytes: &[u8]) -> Vec<((i32, i32), Vec<u8>)> {
    let bytes: Vec<_> = bytes.iter().copied().map(MaybeUninit::new).collect();
    ControlMessages(&bytes).map(|m| (m.kind, m.data.to_vec())).collect()
}

#[test]
fn control_data_is_read_up_to_the_first_piece_that_is_not_whole() {
    let mut bytes = piece(HEAD + 3, 1, 2, &[7, 8, 9]);
    bytes.resize((HEAD + 3).next_multiple_of(size_of::<usize>()), 0);
    bytes.extend(piece(HEAD, 3, 4, &[]));
    let two = vec![((1, 2), vec![7, 8, 9]), ((3, 4), vec![])];
    assert_eq!(pieces(&bytes), two);
    for wrong in [0, HEAD - 1, HEAD + 4, usize::MAX] {
        assert_eq!(pieces(&[&bytes[..], &piece(wrong, 5, 6, &[1, 2, 3])].concat()), two, "{wrong}");
    }
    assert_eq!(pieces(&bytes[..HEAD - 1]), []);
}
