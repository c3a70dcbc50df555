//! The kernel's numbers where they wrap around. A new socket's begin at 0, so that no test gets
//! there by sending.

use super::*;
use crate::send::Ticket;

/// A back end that gave `next_id - 1` out last, and whose last `failed` lent calls failed.
fn backend(next_id: u32, failed: u32) -> SocketBackend {
    let (socket, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let kind = SocketKind { kind: SocketFamily::Udp, stream: false };
    let options = SendOptions { mode: SendMode::Copy, ..SendOptions::default() };
    let mut back = SocketBackend::new(socket.into(), kind, &options).unwrap();
    back.numbering = Numbering::known(next_id);
    (0..failed).for_each(|_| back.numbering.one_failed());
    back
}

const LAST: u32 = u32::MAX;

#[test]
fn numbers_that_nobody_gave_out_are_somebody_elses_across_the_wrap() {
    for (next_id, failed, lo, hi) in [(LAST, 0, LAST, LAST), (LAST, 1, LAST - 3, 0), (0, 0, LAST, 0)] {
        let mut back = backend(next_id, failed);
        match back.ours(lo, hi) {
            Err(SendError::Foreign { lo: first, hi: last }) => assert_eq!((first, last), (lo, hi)),
            other => panic!("{other:?}"),
        }
        assert!(!back.numbering.is_known() && back.lends().is_err());
        assert_eq!(back.ours(lo, lo).unwrap(), None, "nothing is believed any more");
    }
}

/// Numbers, failed calls and the window together.
#[test]
fn payloads_around_the_wrap_come_back_each_once() {
    let first = LAST - 2;
    let mut back = backend(first, 0);
    let mut window = Window::starting_at(Ticket::new(LAST - 1), first);
    let lend = |back: &mut SocketBackend, window: &mut Window| {
        let id = back.take_id(SendWay::Lend).unwrap();
        (window.lend(vec![0].into(), id, false).unwrap(), id)
    };
    let told = |back: &mut SocketBackend, window: &mut Window, lo, hi| {
        let (lo, hi) = back.ours(lo, hi).unwrap().unwrap();
        window.notified(lo, hi, false).unwrap()
    };
    let before: Vec<_> = (0..2).map(|_| lend(&mut back, &mut window)).collect();
    // A call that failed and used number 2^32 - 1 up: its notification is joined with the one
    // before.
    back.numbering.one_failed();
    assert_eq!(told(&mut back, &mut window, LAST - 1, LAST), 1);
    let behind: Vec<_> = (0..3).map(|_| lend(&mut back, &mut window)).collect();
    assert_eq!(
        before.iter().chain(&behind).map(|(_, id)| *id).collect::<Vec<_>>(),
        [LAST - 2, LAST - 1, 0, 1, 2]
    );
    assert_eq!(told(&mut back, &mut window, 1, 2), 2);
    assert_eq!((window.is_done(before[0].0), window.is_done(behind[0].0)), (Some(false), Some(false)));
    assert_eq!(told(&mut back, &mut window, LAST - 2, LAST - 2), 1);
    assert_eq!(told(&mut back, &mut window, 0, 0), 1);
    assert_eq!((window.outstanding(), window.ids_out()), (0, 0));
}

/// While one call is out to learn its number, no other is lent.
#[test]
fn one_call_alone_learns_the_number() {
    let mut back = backend(7, 0);
    back.numbering.several_failed();
    assert_eq!((back.take_id(SendWay::Lend), back.may_lend()), (Some(7), false));
    assert_eq!(back.ours(LAST, LAST).unwrap(), Some((7, 7)));
    assert!(back.may_lend() && back.numbering.is_known());
    // Two numbers are not of one call.
    let mut back = backend(0, 0);
    back.numbering.several_failed();
    back.take_id(SendWay::Lend);
    assert!(matches!(back.ours(3, 4), Err(SendError::Foreign { lo: 3, hi: 4 })));
}

/// AF_VSOCK sockets hang up as this one does.
#[test]
fn a_socket_that_hangs_up_has_ended_when_nothing_is_lent() {
    use super::connection::{troubles, untold};
    use std::net::Shutdown;
    let (socket, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let kind = SocketKind { kind: SocketFamily::Vsock, stream: true };
    let told = |is_lent| untold(&socket, kind, troubles(&socket).unwrap(), is_lent).unwrap();
    assert_eq!((told(true), told(false)), (None, Some(rustix::io::Errno::PIPE)));
}
