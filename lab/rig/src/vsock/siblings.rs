//! Connections between guests of one server.

use zerowire_guest::vsock::{ConnId, ConnState, SocketType};

use super::{Guest, together};

/// A connection from `a` to a port of `b`: both ends of it. None where it is refused.
pub fn try_join(a: &mut Guest, b: &mut Guest, port: u32, kind: SocketType) -> Option<(ConnId, ConnId)> {
    b.stack.listen(port, kind);
    let from = a.stack.connect(b.stack.cid(), port, kind).expect("asked");
    let mut to = None;
    together([a, b], "an answer", |[a, b]| {
        to = to.or_else(|| b.stack.accept(port));
        match a.stack.state(from) {
            ConnState::Established => to.is_some(),
            ConnState::Connecting => false,
            _ => true,
        }
    });
    let to = to?;
    assert_eq!(b.stack.peer(to).expect("open").0, a.stack.cid());
    Some((from, to))
}

/// The same, where `b` must accept.
pub fn join(a: &mut Guest, b: &mut Guest, port: u32, kind: SocketType) -> (ConnId, ConnId) {
    try_join(a, b, port, kind).expect("a connection")
}

/// Sends the first bytes from `a` and the second ones from `b` at the same time. Each must get what
/// the other sent.
pub fn exchange(a: &mut Guest, b: &mut Guest, (at_a, at_b): (ConnId, ConnId), out: [&[u8]; 2]) {
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    together([a, b], "all bytes", |[a, b]| {
        for (i, (g, conn)) in [(&mut a.stack, at_a), (&mut b.stack, at_b)].into_iter().enumerate() {
            if sent[i] < out[i].len() {
                sent[i] += g.send(conn, &out[i][sent[i]..]).expect("open");
            }
            g.recv(conn, &mut got[1 - i]).expect("open");
        }
        (0..2).all(|i| got[i].len() >= out[i].len())
    });
    assert!(got == out, "{:?} bytes", out.map(<[u8]>::len));
}
