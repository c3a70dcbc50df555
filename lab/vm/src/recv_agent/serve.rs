//! Senders elsewhere.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use zerowire::recv::{Receiver, RecvBackend};
use zerowire_vmtest::vsock::pattern::Pattern;

use super::cases::{load, options, said};
use super::wire::Book;

/// Buffers of the receiver: 2 MiB.
const BUFFERS: usize = 512;

/// What is expected: seed of the first connection, bytes of each, connections.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub seed: u64,
    pub bytes: u64,
    pub connections: usize,
}

/// The connections, with the number that each sender has given itself, so that their order doesn't
/// matter.
fn accept(port: u16, expected: Expected) -> Result<Vec<(TcpStream, u64)>> {
    let listener = TcpListener::bind(("0.0.0.0", port)).context("listen")?;
    println!("listening");
    let numbered = |number| {
        let (mut socket, _) = listener.accept().context("accept")?;
        let mut first = [0];
        socket.read_exact(&mut first).with_context(|| format!("the first byte of connection {number}"))?;
        Ok((socket, first[0].into()))
    };
    (0..expected.connections).map(numbered).collect()
}

/// Receives by a receiver.
pub fn serve(backend: RecvBackend, port: u16, expected: Expected) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, BUFFERS))?;
    let mut book = Book::default();
    for (socket, number) in accept(port, expected)? {
        let id = receiver.add(socket.into())?;
        book.add(id, load(expected.seed + number, expected.bytes));
    }
    book.complete(&mut receiver)?;
    Ok(said(&receiver, book.total()))
}

/// Receives by recv into one buffer, one connection after the other.
pub fn by_recv(port: u16, buffer_bytes: usize, expected: Expected) -> Result<String> {
    let mut buffer = vec![0; buffer_bytes];
    let (mut total, mut calls) = (0, 0);
    for (mut socket, number) in accept(port, expected)? {
        let pattern = Pattern::new(expected.seed + number);
        let mut got = 0;
        loop {
            let count = socket.read(&mut buffer).context("recv")?;
            calls += 1;
            if count == 0 {
                break;
            }
            let wrong = pattern.first_difference(got, &buffer[..count]);
            ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
            got += count as u64;
        }
        ensure!(got == expected.bytes, "{got} of {} bytes came", expected.bytes);
        total += got;
    }
    Ok(format!("{total} bytes, {calls} calls of recv"))
}
