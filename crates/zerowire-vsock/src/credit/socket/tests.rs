use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

#[test]
fn credit_comes_back_for_what_was_read_and_for_what_the_socket_keeps_beside_it() {
    let mut end = SocketCredit { ahead: 100, ..SocketCredit::default() };
    end.took(80);
    assert_eq!((end.leaves(80), end.uncredited), (80, 0), "all of it may stay unread");
    end.took(60);
    assert_eq!((end.leaves(140), end.uncredited), (20, 40));
    assert_eq!((end.leaves(140), end.uncredited), (0, 40), "only once");
    assert_eq!((end.leaves(110), end.uncredited), (30, 10), "30 were read");
    end.took(50);
    assert_eq!((end.in_socket, end.uncredited), (160, 60));
    assert_eq!((end.leaves(0), end.in_socket, end.uncredited), (60, 0, 0));
    // The kernel says that a quarter of the room is unread at most.
    (end.room, end.ahead) = (400, 50);
    end.took(150);
    assert_eq!((end.writable(), end.in_socket, end.uncredited), (150, 100, 0));
    end.took(30);
    assert_eq!((end.leaves(130), end.uncredited), (0, 30), "what may be unread still counts");
    assert_eq!((end.leaves_all(), end.in_socket, end.uncredited), (30, 130, 0));
    assert_eq!(end.measured(0), 0);
    assert_eq!(end.in_socket, 0, "nothing is in the socket");
    // What was credited before the socket had it is not credited again, however much the socket
    // takes of it.
    end.promise(40);
    end.took(30);
    assert_eq!((end.in_socket, end.uncredited, end.promised), (30, 0, 10));
    assert_eq!((end.lost(4), end.lost(9), end.promised), (0, 3, 0));
    end.leaves(0);
    // Without room of its own each byte takes credit until it was read.
    end.ahead = 0;
    end.took(7);
    assert_eq!((end.leaves(7), end.leaves(2), end.uncredited), (0, 5, 2));
}

#[test]
fn a_socket_surely_takes_what_the_kernel_has_room_for() {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .expect("a pair");
    let room = socket::reserve(&ours, 192 << 10);
    let mut end = SocketCredit { room, ahead: 128 << 10, ..SocketCredit::default() };
    let chunk = vec![7u8; 64 << 10];
    let mut sizes = [1, 64, 768, 1000, 4000, 4097, 9000, 17_000, 33_000, 49_000, 65_536].iter().cycle();
    let (mut sure, mut unsure) = (0, 0);
    while unsure < 1000 {
        let Some(n) = sizes.next().copied() else { break };
        let surely = end.surely_takes(n as u32);
        let took = rustix::io::write(&ours, &chunk[..n]).unwrap_or(0);
        assert!(!surely || took == n, "{took} of {n} bytes behind {} in {}", end.in_socket, end.kernel_needs);
        end.took(took);
        let unread = socket::unread(&ours) as u32;
        assert!(
            unread <= end.kernel_needs,
            "{unread} bytes for {}, at most {}",
            end.in_socket,
            end.kernel_needs
        );
        if surely {
            sure += 1;
            continue;
        }
        // Read a bit less each time, to meet it at every depth.
        unsure += 1;
        let mut left = vec![0; end.in_socket as usize * (unsure % 7) / 7];
        let got = rustix::io::read(&theirs, &mut left[..]).unwrap_or(0);
        let in_socket = end.in_socket - got as u32;
        end.kernel_needs = socket::unread(&ours) as u32;
        end.leaves(in_socket);
    }
    assert!(sure > 500, "{sure} sure, {unsure} not");
}

/// A guest with credit for 1000 bytes that has sent `sent` of them, which the socket took.
fn scene(ahead: u32, sent: u32) -> (SocketCredit, FromGuest) {
    let mut end = SocketCredit { room: 4000, ahead, ..SocketCredit::default() };
    let mut incoming = FromGuest::new(1000);
    assert!(incoming.receive(sent));
    end.took(sent as usize);
    (end, incoming)
}

#[test]
fn the_kernel_is_asked_only_where_that_makes_a_difference() {
    let never = || -> usize { panic!("the kernel is asked") };
    let (mut end, mut incoming) = scene(300, 300);
    let review = end.review(&mut incoming, Why::Idle, never);
    assert_eq!(review, CreditReview { due: true, quiet: false }, "all of it lies ahead");
    let (mut end, mut incoming) = scene(0, 500);
    let review = end.review(&mut incoming, Why::Routine, never);
    assert_eq!(review, CreditReview { due: false, quiet: true }, "the guest knows of half its credit");
    assert!(!end.waits);
    let (mut end, mut incoming) = scene(0, 300);
    let review = end.review(&mut incoming, Why::PartWaits, never);
    assert_eq!((review.due, end.uncredited), (true, 0), "the rest of a message needs it");
}

#[test]
fn a_guest_without_credit_waits_for_the_program() {
    let (mut end, mut incoming) = scene(0, 600);
    let review = end.review(&mut incoming, Why::Routine, || 1100);
    assert_eq!(review, CreditReview { due: false, quiet: false }, "the kernel will tell of room");
    assert!(end.waits && end.uncredited == 600);
    let review = end.review(&mut incoming, Why::Routine, || 500);
    assert_eq!(review, CreditReview { due: true, quiet: false });
    assert!(!end.waits && end.uncredited == 0, "less than a quarter of the room is unread");

    // One that asks hears of little, too, and one that has not much to hear waits for all.
    let (mut end, mut incoming) = scene(0, 400);
    let review = end.review(&mut incoming, Why::GuestAsks, || 1100);
    assert!(!review.due && !review.quiet && end.waits);
    incoming.forward(end.writable());
    assert!(!end.waits && incoming.untold() == 400);
    let review = end.review(&mut incoming, Why::Routine, || 0);
    assert_eq!(review, CreditReview { due: false, quiet: true }, "less than half of its credit");
    let review = end.review(&mut incoming, Why::Idle, || 0);
    assert_eq!(review, CreditReview { due: true, quiet: false });
}
