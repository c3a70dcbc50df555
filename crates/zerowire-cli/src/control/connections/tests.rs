use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

fn pair() -> (UnixStream, OwnedFd) {
    let (client, server) = UnixStream::pair().expect("a pair of sockets");
    (client, server.into())
}

fn is_closed(client: &mut UnixStream) -> bool {
    client.set_nonblocking(true).expect("a socket");
    matches!(client.read(&mut [0]), Ok(0))
}

#[test]
fn the_client_that_was_waited_for_longest_makes_room() {
    let all = Connections::new(2);
    let (mut first, socket) = pair();
    let a = all.enter(socket).expect("a place");
    let (mut second, socket) = pair();
    let b = all.enter(socket).expect("a place");
    // The first one has said something meanwhile.
    a.waiting(|| ());
    a.set_waiting(Some(Instant::now()));
    let (mut third, socket) = pair();
    let c = all.enter(socket).expect("the place of the second one");
    assert!(is_closed(&mut second) && !is_closed(&mut first) && !is_closed(&mut third));
    // Nobody is closed whose request is carried out.
    a.set_waiting(None);
    c.set_waiting(None);
    assert!(all.enter(pair().1).is_err());
    drop(b);
    drop(a);
    assert!(all.enter(pair().1).is_ok());
    drop(c);
    assert!(!all.are_open());
    all.close();
    assert!(all.enter(pair().1).is_err(), "no further one");
}

#[test]
fn streams_have_a_bound() {
    let all = Connections::new(1);
    let (_client, socket) = pair();
    let connection = all.enter(socket).expect("a place");
    let mut streams: Vec<_> = (0..MAX_STREAMS).map_while(|_| connection.begin_stream()).collect();
    assert_eq!(streams.len(), MAX_STREAMS);
    assert!(connection.begin_stream().is_none());
    streams.pop();
    assert!(connection.begin_stream().is_some());
}
