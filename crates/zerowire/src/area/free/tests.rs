use super::*;

#[test]
fn every_index_is_given_once() {
    let list = FreeList::new(3);
    let mut got: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
    assert_eq!(got, [0, 1, 2]);
    assert_eq!((list.len(), list.pop()), (0, None));
    for i in got.drain(..) {
        list.push(i);
    }
    assert_eq!((list.len(), list.pop()), (3, Some(2)));
}

#[test]
fn two_threads_never_hold_the_same_index() {
    let list = FreeList::new(4);
    let held: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..20_000 {
                    if let Some(i) = list.pop() {
                        assert_eq!(held[i as usize].fetch_add(1, Ordering::SeqCst), 0);
                        held[i as usize].fetch_sub(1, Ordering::SeqCst);
                        list.push(i);
                    }
                }
            });
        }
    });
    assert_eq!(list.len(), 4);
}
