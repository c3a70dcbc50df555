//! The jobs over pairs of unix sockets.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, socketpair};

use super::*;
use crate::vsock::{VsockKind, limit};

fn pair(kind: VsockKind) -> (OwnedFd, OwnedFd) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, kind.socket_type(), SocketFlags::CLOEXEC, None).unwrap();
    limit(&one).unwrap();
    limit(&other).unwrap();
    (one, other)
}

/// Runs a job against another one; returns both results.
fn run(
    kind: VsockKind,
    ours: impl FnOnce(OwnedFd) -> Result<()>,
    theirs: impl FnOnce(OwnedFd) -> Result<()> + Send,
) -> (Result<()>, Result<()>) {
    let (one, other) = pair(kind);
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| theirs(other));
        let ours = ours(one);
        (ours, theirs.join().unwrap())
    })
}

const LOAD: Load = Load { seed: 5, bytes: 3_000_001, write_bytes: 65_536 };

#[test]
fn an_echo_returns_every_byte() {
    for kind in VsockKind::BOTH {
        let theirs = |socket| {
            assert_eq!(echo(socket)?, LOAD.bytes);
            Ok(())
        };
        let (ours, theirs) = run(kind, |socket| exchange(socket, LOAD), theirs);
        ours.unwrap();
        theirs.unwrap();
    }
}

#[test]
fn a_reply_comes_after_the_half_close() {
    for kind in VsockKind::BOTH {
        let (ours, theirs) =
            run(kind, |socket| request(socket, LOAD, 70_000), |socket| reply(socket, LOAD, 70_000));
        ours.unwrap();
        theirs.unwrap();
    }
}

#[test]
fn wrong_short_and_long_loads_are_errors() {
    let error = |sent: Load, wanted: Load| {
        let ours = |socket: OwnedFd| {
            receive_load(&socket, wanted)?;
            receive_end(socket)
        };
        let (ours, _) = run(VsockKind::Stream, ours, move |socket| send_load(socket, sent));
        format!("{:#}", ours.unwrap_err())
    };
    assert!(error(LOAD, Load { seed: 6, ..LOAD }).contains("byte 0 of"));
    let short = error(Load { bytes: 100, ..LOAD }, LOAD);
    assert!(short.contains("ended after 100 of"), "{short}");
    let long = error(LOAD, Load { bytes: 100, ..LOAD });
    assert!(long.contains("more data"), "{long}");
}

#[test]
fn messages_keep_their_bounds() {
    let lengths = [1, 2, 4096, 65_537, 200_000, 3];
    let (ours, theirs) = run(
        VsockKind::Seqpacket,
        |socket| exchange_messages(socket, 1, &lengths),
        |socket| echo(socket).map(|_| ()),
    );
    ours.unwrap();
    theirs.unwrap();
    // A stream has none, and that is noticed.
    let (ours, _) = run(
        VsockKind::Stream,
        |socket| receive_messages(socket, 1, &[10, 10], false),
        |socket| send_messages(socket, 1, &[5, 15], false),
    );
    assert!(ours.is_err());
}

#[test]
fn tokens_of_other_connections_are_noticed() {
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..8).map(|_| pair(VsockKind::Stream)).unzip();
    std::thread::scope(|scope| {
        scope.spawn(|| theirs.iter().for_each(|socket| answer_token(socket).unwrap()));
        ask_tokens(&ours, 9).unwrap();
    });
    let swapped: Vec<_> = ours.iter().rev().collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, socket) in theirs.iter().enumerate() {
                let token = Pattern::new(number as u64).bytes(0, TOKEN_BYTES);
                send_all(socket, &token).unwrap();
            }
        });
        let error = format!("{:#}", ask_tokens(&swapped, 0).unwrap_err());
        assert!(error.contains("answer of connection 0"), "{error}");
    });
}
