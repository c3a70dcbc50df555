use zerowire_vhost_user::Request;

use super::*;
use crate::answer::one_answer;
use crate::queue::{QueueInlet, queue};
use crate::session::HandOverError;
use crate::testing::model;

fn seat<'a>(vm: &'a dyn Backing) -> (Seat<'a>, QueueInlet<Order>) {
    let (orders, receiver) = queue();
    (Seat::new(vm, Listener::Connected(None), None, receiver), orders)
}

/// A front end, and the session that serves it.
fn connect(vm: &dyn Backing) -> (MessageSocket, Session<'_>, MessageSocket) {
    let (near, far) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).expect("a socket that does not block");
    (MessageSocket::new(far), Session::new(vm), MessageSocket::new(near))
}

#[test]
fn a_session_that_nobody_waits_for_any_more_goes_on() {
    let vm = model();
    let (mut seat, _orders) = seat(&vm);
    let (mut front, mut session, connection) = connect(&vm);
    let image = session.hand_over(&connection).expect("handed over");
    drop((session, connection));
    let (reply, answer) = one_answer();
    drop(answer);
    seat.give(image, reply);
    let (mut session, mut connection) = seat.take_up().expect("it goes on");
    assert!(!seat.away, "the next front end is accepted");
    front.send_request(Request::GetFeatures, false, &[], &[]).expect("sent");
    let message = connection.recv().expect("sound").expect("a message");
    session.handle(&mut connection, message).expect("answered");
    assert_ne!(front.recv_reply(Request::GetFeatures).expect("a reply").u64().expect("a number"), 0);
}

#[test]
fn a_session_that_was_taken_is_gone() {
    let vm = model();
    let (mut seat, orders) = seat(&vm);
    let (_front, mut session, connection) = connect(&vm);
    let image = session.hand_over(&connection).expect("handed over");
    drop((session, connection));
    let (reply, answer) = one_answer();
    seat.give(image, reply);
    assert!(matches!(answer.close(), Some(Ok(_))));
    assert!(seat.away && seat.take_up().is_none());
    // There is none to hand over, until there is one again.
    let (reply, answer) = one_answer();
    orders.send(Order::HandOver(reply)).expect("sent");
    assert!(seat.take_up().is_none() && seat.away);
    assert!(matches!(answer.close(), Some(Err(HandOverError::NoFrontEnd(_)))));
}
