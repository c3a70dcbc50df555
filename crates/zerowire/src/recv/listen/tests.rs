use super::*;

fn socket() -> OwnedFd {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().into()
}

fn put(l: &mut Listeners) -> (u32, ListenerId) {
    let index = l.vacant();
    (index, l.put(index, socket(), SocketShape::Stream))
}

fn accept(index: u32, fd: RawFd, many: bool) -> Option<ListenStep> {
    Some(ListenStep::Accept { index, fd, many })
}

#[test]
fn what_is_asked_follows_the_room() {
    let mut l = Listeners::default();
    assert!(!l.set_room(0) && l.is_empty());
    let (index, id) = put(&mut l);
    let fd = l.fd(index).unwrap().as_raw_fd();
    assert_eq!(l.step(), None, "no room");
    assert!(!l.set_room(5000), "it was told with the first room");
    assert_eq!((l.step(), l.step()), (accept(0, fd, true), None));
    l.set_room(10);
    assert_eq!((l.step(), l.step()), (Some(ListenStep::Cancel(0)), None));
    l.completed(0, -libc::ECANCELED, false, |_| unreachable!("a failure has no descriptor"));
    assert_eq!((l.step(), l.step()), (accept(0, fd, false), None));
    l.undo(ListenStep::Accept { index, fd, many: false });
    assert_eq!(l.step(), accept(0, fd, false));
    let one = std::fs::File::open("/dev/null").unwrap();
    l.completed(0, one.as_raw_fd(), false, |_| one.into());
    assert!(l.is_due() && l.room() == 9);
    assert!(l.set_room(1), "one is accepted, and there is no room for another");
    assert_eq!((l.step(), l.set_room(1)), (None, false));
    assert!(l.next_accepted().is_some_and(|(from, ..)| from == id) && !l.is_due());
    assert_eq!((l.find(id), l.take(index).is_some(), l.find(id)), (Some(0), true, None));
}

#[test]
fn what_can_not_be_added_waits() {
    let mut l = Listeners::default();
    let (index, id) = put(&mut l);
    l.set_room(5);
    l.accept(index, socket());
    l.accept(index, socket());
    let first = l.next_accepted().unwrap();
    let fd = first.2.as_raw_fd();
    l.put_back(first.0, first.1, first.2);
    assert!(!l.is_due() && !l.may_accept(index) && l.room() == 3);
    std::thread::sleep(RETRY);
    assert_eq!(l.cap(None), None);
    assert!(l.is_due());
    assert!(l.next_accepted().is_some_and(|(from, _, s)| from == id && s.as_raw_fd() == fd));
    assert!(l.next_accepted().is_some() && l.next_accepted().is_none());
}

#[test]
fn errors_stall_or_end_a_listener() {
    let mut l = Listeners::default();
    let (index, id) = put(&mut l);
    l.set_room(1);
    for errno in [libc::ECONNABORTED, libc::EAGAIN] {
        l.refused(index, errno);
        assert!(l.may_accept(index));
    }
    l.refused(index, libc::EMFILE);
    assert!(!l.may_accept(index) && l.step().is_none());
    l.accept(index, socket());
    assert!(l.is_due() && l.next_accepted().is_some(), "only accepting waits");
    let left = l.cap(None).expect("a time to try again");
    assert!(left <= RETRY && l.cap(Some(Duration::ZERO)) == Some(Duration::ZERO));
    std::thread::sleep(RETRY);
    assert_eq!(l.cap(None), None);
    assert!(l.may_accept(index));
    l.refused(index, libc::EINVAL);
    assert!(!l.may_accept(index));
    assert!(l.failure().is_some_and(|(l, e)| l == id && e.raw_os_error() == Some(libc::EINVAL)));
    assert!(l.failure().is_none());
}

#[test]
fn each_listener_that_fails_is_told() {
    let mut l = Listeners::default();
    let all = [put(&mut l), put(&mut l), put(&mut l)];
    l.set_room(1);
    l.want(1, false);
    for (index, _) in all {
        l.refused(index, libc::EINVAL);
        l.refused(index, libc::EBADF);
    }
    let told: Vec<_> = std::iter::from_fn(|| l.failure()).map(|(id, e)| (id, e.raw_os_error())).collect();
    // Nobody waits for the one that is being given back.
    assert_eq!(told, [(all[0].1, Some(libc::EINVAL)), (all[2].1, Some(libc::EINVAL))]);
}

#[test]
fn completions_of_nothing_are_ignored() {
    let mut l = Listeners::default();
    let (index, _) = put(&mut l);
    l.set_room(1);
    for index in [index, 7] {
        l.completed(index, 1, true, |_| unreachable!("nothing was asked for"));
    }
    assert!(!l.is_due());
}
