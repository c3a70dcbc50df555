use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::control::conversation::converse;
use crate::control::http::{ControlRequest, Response, Stream};
use crate::control::serve::Handler;

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

/// Its place is not another one's meanwhile, also where its request was there at the beginning. And
/// it gets its answer when all connections end.
#[test]
fn a_client_that_is_worked_for_is_not_one_that_is_waited_for() {
    struct Ends(Arc<Connections>);

    impl Handler for Ends {
        fn answer(&self, _request: &ControlRequest, _body: &[u8]) -> Response {
            assert!(self.0.enter(pair().1).is_err(), "its place is taken");
            self.0.close();
            Response::stream(Stream::JsonLines)
        }

        fn piece(&self, _stream: Stream) -> Vec<u8> {
            b"{}\n".to_vec()
        }
    }

    let all = Connections::new(1);
    let (mut client, socket) = pair();
    client.write_all(b"GET /stats?stream HTTP/1.1\r\n\r\n").expect("sent");
    converse(&all.enter(socket).expect("a place"), &Ends(all.clone()), true);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"), "{answer:?}");
}
