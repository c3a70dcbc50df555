//! The first example of docs/send.md: it is the function of a program that compiles, and loses
//! nothing.

#[path = "../../examples/send_area.rs"]
mod send_area;

use crate::support::sockets::{pattern, tcp_pair};
use std::io::Read;
use std::time::Duration;
use zerowire::send::{SendBackend, SendMode, SendOptions};

#[test]
fn the_page_shows_the_program() {
    let page = include_str!("../../../../docs/send.md");
    let program = include_str!("../../examples/send_area.rs");
    let start = program.find("use std::error").expect("its beginning");
    let end = program.find("\n#[allow(dead_code").expect("its end");
    let shown = format!("```rust\n{}```\n", &program[start..end]);
    assert!(page.contains(&shown), "docs/send.md does not show crates/zerowire/examples/send_area.rs");
}

/// Many times as many buffers as there are, to a receiver that is late: all are lent, and each is
/// waited for.
#[test]
fn a_late_receiver_gets_everything() {
    const BUFFERS: usize = 1000;
    const LEN: usize = 64 << 10;
    for mode in [SendMode::ZeroCopy, SendMode::Auto] {
        let (a, mut b) = tcp_pair();
        let receiver = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            let mut got = vec![0; LEN];
            for i in 0..BUFFERS {
                b.read_exact(&mut got).unwrap_or_else(|e| panic!("{mode:?}: buffer {i}: {e}"));
                assert!(got == pattern(i, LEN), "{mode:?}: buffer {i}");
            }
            assert_eq!(b.read(&mut got).unwrap(), 0);
        });
        let mut next = 0;
        let options = SendOptions::default().mode(mode).backend(SendBackend::Socket);
        let sent = send_area::send_all(a.into(), options, |buffer| {
            if next == BUFFERS {
                return Ok(0);
            }
            buffer.copy_from_slice(&pattern(next, LEN));
            next += 1;
            Ok(LEN)
        });
        sent.unwrap_or_else(|e| panic!("{mode:?}: {e}"));
        receiver.join().unwrap();
    }
}
