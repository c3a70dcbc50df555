//! Two sound connections of one guest, to a program that reads a socket and to one with mapped
//! receive: every byte is checked.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;

use super::flow::Flow;
use super::honest::bytes;
use super::program::{Mapped, Next, Program};

/// Two connections whose bytes all have to arrive, whatever others do.
pub(super) struct Sound {
    pub plain: Flow,
    stream: UnixStream,
    pub read: u32,
    pub flow: Flow,
    program: Mapped,
    // It keeps the port.
    _listening: Program,
    pub got: u32,
    /// Windows that it holds.
    pub held: VecDeque<u32>,
}

impl Sound {
    /// Two connections that are open, with nothing sent on them.
    pub fn new(plain: Flow, stream: UnixStream, flow: Flow, program: Mapped, listening: Program) -> Self {
        Self { plain, stream, read: 0, flow, program, _listening: listening, got: 0, held: VecDeque::new() }
    }

    /// The programs close.
    pub fn close(&self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap_or_else(|e| panic!("{e}"));
        let _ = rustix::net::shutdown(&self.program.socket, rustix::net::Shutdown::Both);
    }

    /// Reads all that is there; of the windows it keeps some, and gives the others back, the oldest
    /// or the newest first.
    pub fn read(&mut self, keep: usize, newest: bool) {
        let mut buffer = [0; 8192];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(n) => {
                    assert!(n > 0, "a sound program sees an end");
                    assert!(buffer[..n] == bytes(self.read, n as u32), "a byte changed on its way");
                    self.read = self.read.wrapping_add(n as u32);
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                    break;
                }
            }
        }
        // Where the next window in order is one that it holds there is none.
        while !self.held.contains(&self.program.next()) {
            match self.program.dequeue() {
                Next::Window(w) => {
                    let n = w.bytes.len() as u32;
                    assert!(w.bytes == bytes(self.got, n), "a byte changed on its way to a window");
                    self.got = self.got.wrapping_add(n);
                    self.held.push_back(w.window);
                }
                Next::Nothing => break,
                Next::End => panic!("a sound program sees an end of its windows"),
            }
        }
        while self.held.len() > keep {
            let window = if newest { self.held.pop_back() } else { self.held.pop_front() };
            window.into_iter().for_each(|w| self.program.release(w));
        }
    }
}
