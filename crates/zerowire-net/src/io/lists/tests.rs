use super::*;

fn at(n: usize) -> HostPtr {
    std::ptr::without_provenance_mut::<u8>(n).into()
}

fn lists(most: usize) -> Lists {
    Lists::new(most, 4096).expect("private memory")
}

fn list_from(lists: &mut Lists, start: usize) -> (*const libc::iovec, u32) {
    let op = lists.operation(0, true, start);
    (op.iov, op.len)
}

#[test]
fn a_full_array_refuses_entries_and_stays_where_it_is() {
    for most in [1, 7, 4096] {
        let mut lists = lists(most);
        let (first, _) = list_from(&mut lists, 0);
        for n in 0..most {
            assert_eq!((lists.end(), lists.room()), (n, most - n));
            assert_eq!(lists.add(HostPtr::NULL, n), Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(lists.add(HostPtr::NULL, 0), Err(Full));
            assert_eq!(lists.add_private(0..1), Err(Full));
            assert_eq!(list_from(&mut lists, 0), (first, most as u32));
            assert_eq!(lists.entries.last().map(|e| e.iov_len), Some(most - 1));
        }
        lists.clear();
        assert_eq!(lists.add(HostPtr::NULL, 3), Ok(()));
        assert_eq!(list_from(&mut lists, 0), (first, 1));
    }
}

#[test]
fn a_list_begins_where_it_is_said_to() {
    let mut lists = lists(8);
    (1..=5).for_each(|n| assert_eq!(lists.add(HostPtr::NULL, n), Ok(())));
    lists.truncate(4);
    let (all, _) = list_from(&mut lists, 0);
    assert_eq!(list_from(&mut lists, 3), (all.wrapping_add(3), 1));
    assert_eq!((list_from(&mut lists, 4).1, list_from(&mut lists, 9).1), (0, 0));
}

#[test]
fn the_list_of_an_operation_stays() {
    let mut lists = lists(8);
    (1..=3).for_each(|n| assert_eq!(lists.add(HostPtr::NULL, n), Ok(())));
    lists.queue(7, false, 1);
    assert_eq!(lists.add(HostPtr::NULL, 4), Ok(()));
    lists.truncate(0);
    assert_eq!((lists.end(), lists.entries.last().map(|e| e.iov_len)), (3, Some(3)));
    assert!(matches!(lists.queued().as_slice(), [Op { slot: 7, write: false, len: 2, .. }]));
    lists.clear();
    assert!(lists.end() == 0 && lists.queued().is_empty());
}

#[test]
fn what_lies_behind_the_last_entry_of_the_same_list_becomes_part_of_it() {
    let lens = |lists: &Lists| lists.entries.iter().map(|e| e.iov_len).collect::<Vec<_>>();
    let mut lists = lists(3);
    assert_eq!(lists.extend(0, at(4096), 100), Ok(()));
    assert_eq!(lists.extend(0, at(4196), 50), Ok(()));
    assert_eq!(lens(&lists), [150]);
    assert_eq!(lists.extend(0, at(4247), 1), Ok(()), "a byte lies between");
    assert_eq!(lists.extend(2, at(4248), 7), Ok(()), "another list begins");
    assert_eq!(lens(&lists), [150, 1, 7]);
    assert_eq!(lists.extend(2, at(4095), 1), Err(Full));
    assert_eq!(lists.extend(2, at(4255), 3), Ok(()), "this takes no entry");
    assert_eq!(lens(&lists), [150, 1, 10]);
}

#[test]
fn private_memory_is_named_where_it_is() {
    let mut lists = lists(1);
    lists.private()[4000..4096].fill(7);
    assert_eq!(lists.add_private(4000..4096), Ok(()));
    let bytes = lists.private()[4000..].as_ptr();
    assert!(lists.entries[0].iov_base.cast_const().cast() == bytes && lists.entries[0].iov_len == 96);
}
