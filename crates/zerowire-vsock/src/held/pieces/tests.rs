use super::*;

fn append(p: &mut Pieces, next: &mut u8, len: usize) {
    p.append(len, |run| {
        for b in run {
            *b = *next;
            *next = next.wrapping_add(1);
        }
    });
}

/// What is there, and that it is in as few pieces as hold it.
fn check(p: &Pieces, first: u8, len: usize) {
    let all = p.runs(0, usize::MAX).collect::<Vec<_>>().concat();
    assert!(all.iter().enumerate().all(|(i, b)| *b == first.wrapping_add(i as u8)));
    assert_eq!((p.len(), all.len()), (len, len));
    assert_eq!(p.list.len(), if len == 0 { 0 } else { (p.start + len).div_ceil(PIECE) });
    assert!(p.list.capacity() <= p.list.len() * 5 / 4 + SPARE_ENTRIES, "{}", p.list.capacity());
    for (skip, max) in [(0, 1), (len / 2, 3000), (len, 1), (len.saturating_sub(1), 7)] {
        let part = p.runs(skip, max).collect::<Vec<_>>().concat();
        assert_eq!(part[..], all[skip..len.min(skip + max)]);
    }
}

#[test]
fn bytes_come_and_go_at_both_ends() {
    let (mut p, mut next, mut first, mut len) = (Pieces::default(), 0, 0u8, 0);
    for (add, take, drop) in
        [(1, 0, 0), (1023, 0, 0), (1, 1, 0), (5000, 1023, 1), (300_000, 7, 4000), (0, 290_000, 100)]
    {
        append(&mut p, &mut next, add);
        len += add;
        check(&p, first, len);
        p.consume(take);
        (first, len) = (first.wrapping_add(take as u8), len - take);
        check(&p, first, len);
        p.drop_last(drop);
        (next, len) = (next.wrapping_sub(drop as u8), len - drop);
        check(&p, first, len);
    }
    p.consume(len);
    check(&p, 0, 0);
    append(&mut p, &mut next, 10);
    p.drop_last(10);
    check(&p, 0, 0);
}

#[test]
fn a_thread_keeps_a_buffer_full_of_pieces_and_no_more() {
    let (mut p, mut next) = (Pieces::default(), 0);
    append(&mut p, &mut next, 1 << 20);
    p.consume(1 << 20);
    PIECES.with_borrow(|kept| assert_eq!((kept.len(), kept.capacity()), (SPARE, SPARE)));
    append(&mut p, &mut next, 10 * PIECE);
    PIECES.with_borrow(|kept| assert_eq!(kept.len(), SPARE - 10));
    drop(p);
    PIECES.with_borrow(|kept| assert_eq!(kept.len(), SPARE));
}
