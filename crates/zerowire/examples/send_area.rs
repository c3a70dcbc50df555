//! Sends standard input over TCP from buffers that are lent: `send_area HOST:PORT < FILE`.
//! docs/send.md shows the function.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::time::Duration;
use zerowire::area::{Area, AreaOptions};
use zerowire::send::{Close, SendOptions, Sender};

/// Sends what `fill` writes into buffers, until it writes nothing.
pub fn send_all(
    socket: OwnedFd,
    options: SendOptions,
    mut fill: impl FnMut(&mut [u8]) -> Result<usize, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let area = Area::new(AreaOptions::default().buffers(64).buffer_bytes(64 << 10))?;
    let mut sender = Sender::with_areas(socket, options, std::slice::from_ref(&area))?;
    loop {
        let mut buffer = sender.lease(&area, None)?; // waits until the kernel has given one back
        let n = fill(&mut buffer)?;
        if n == 0 {
            break;
        }
        if !buffer.set_len(n) {
            return Err(format!("{n} bytes are more than a buffer has").into());
        }
        sender.send(buffer)?; // the sender has the buffer now, and the area after the notification
    }
    let closed = sender.close(Close::Drain(Duration::from_secs(10)))?;
    match closed.aborted {
        0 => Ok(()),
        n => Err(format!("{n} buffers were not sent in time").into()),
    }
}

#[allow(dead_code, reason = "a test takes the function above")]
fn main() -> Result<(), Box<dyn Error>> {
    let to = std::env::args().nth(1).ok_or("usage: send_area HOST:PORT < FILE")?;
    let socket = std::net::TcpStream::connect(to)?;
    let mut input = std::io::stdin().lock();
    send_all(socket.into(), SendOptions::default(), |buffer| Ok(std::io::Read::read(&mut input, buffer)?))
}
