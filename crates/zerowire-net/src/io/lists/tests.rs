use super::*;

fn entry(len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::null_mut(), iov_len: len }
}

#[test]
fn a_full_array_refuses_entries_and_stays_where_it_is() {
    for most in [1, 7, 4096] {
        let mut lists = Lists::new(most);
        let (at, _) = lists.list_from(0);
        for n in 0..most {
            assert_eq!((lists.end(), lists.room()), (n, most - n));
            assert_eq!(lists.push(entry(n)), Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(lists.push(entry(0)), Err(Full));
            assert_eq!(lists.list_from(0), (at, most as u32));
            assert_eq!(lists.entries.last().map(|e| e.iov_len), Some(most - 1));
        }
        lists.clear();
        assert_eq!(lists.push(entry(3)), Ok(()));
        assert_eq!(lists.list_from(0), (at, 1));
    }
}

#[test]
fn a_list_begins_where_it_is_said_to() {
    let mut lists = Lists::new(8);
    (1..=5).for_each(|n| assert_eq!(lists.push(entry(n)), Ok(())));
    let (all, _) = lists.list_from(0);
    assert_eq!(lists.list_from(3), (all.wrapping_add(3), 2));
    assert_eq!((lists.list_from(5).1, lists.list_from(9).1), (0, 0));
    lists.truncate(3);
    assert_eq!((lists.list_from(3).1, lists.entries.last().map(|e| e.iov_len)), (0, Some(3)));
}

#[test]
fn what_lies_behind_the_last_entry_of_the_same_list_becomes_part_of_it() {
    let at = |n: usize| std::ptr::without_provenance_mut::<u8>(n);
    let lens = |lists: &Lists| lists.entries.iter().map(|e| e.iov_len).collect::<Vec<_>>();
    let mut lists = Lists::new(3);
    assert_eq!(lists.add(0, at(4096), 100), Ok(()));
    assert_eq!(lists.add(0, at(4196), 50), Ok(()));
    assert_eq!(lens(&lists), [150]);
    assert_eq!(lists.add(0, at(4247), 1), Ok(()), "a byte lies between");
    assert_eq!(lists.add(2, at(4248), 7), Ok(()), "another list begins");
    assert_eq!(lens(&lists), [150, 1, 7]);
    assert_eq!(lists.add(2, at(4095), 1), Err(Full));
    assert_eq!(lists.add(2, at(4255), 3), Ok(()), "this takes no entry");
    assert_eq!(lens(&lists), [150, 1, 10]);
}
