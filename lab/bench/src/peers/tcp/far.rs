//! What the far end of the veth pair does: it reads what a program sends, and writes what one
//! receives.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::CALL;
use crate::tcp_rx::iperf3;

/// How long each step may take: a busy machine stops a program for seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that were moved, and how long that took.
pub(super) type Moved = (u64, Duration);

/// Reads a connection to its end. It has to come before the program is `gone`.
pub(super) fn read_plain(listener: &TcpListener, gone: &AtomicBool) -> Result<Moved> {
    let mut stream = iperf3::accept_unless(gone, listener, PATIENCE)?;
    let count = AtomicU64::new(0);
    let took = read_all(&mut stream, &count)?;
    Ok((count.into_inner(), took))
}

/// Serves a test of an iperf3 client with one stream. It has to come before the program is `gone`.
pub(super) fn read_as_iperf3(listener: &TcpListener, gone: &AtomicBool) -> Result<Moved> {
    let mut test = iperf3::accept_one(listener, gone)?;
    let stream = test.streams.pop().context("a test without a stream")?;
    let mut stream = TcpStream::from(stream);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&mut stream, &count));
        let begin = Instant::now();
        let sent = test.sent()?;
        while count.load(Ordering::Acquire) < sent.bytes() {
            if begin.elapsed() > PATIENCE {
                bail!("{} of {} bytes came", count.load(Ordering::Acquire), sent.bytes());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let took = begin.elapsed();
        // The client shows these figures, and nobody looks at them.
        test.finish(&sent, took.as_secs_f64(), 0.0)?;
        reader.join().map_err(|_| anyhow!("the reader panicked"))??;
        Ok((sent.bytes(), took))
    })
}

/// Reads to the end; how long that took from the first byte to the last.
fn read_all(stream: &mut TcpStream, count: &AtomicU64) -> Result<Duration> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; CALL];
    let mut first = None;
    let mut last = Duration::ZERO;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(last),
            Ok(len) => {
                count.fetch_add(len as u64, Ordering::AcqRel);
                last = first.get_or_insert_with(Instant::now).elapsed();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading what the program sends"),
        }
    }
}

/// Connects to a program that will listen at `address`, unless it is `gone`.
pub(super) fn connect(address: SocketAddr, gone: &AtomicBool) -> Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused
                    && begin.elapsed() < PATIENCE
                    && !gone.load(Ordering::Acquire) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("the program doesn't listen"),
        }
    }
}

/// Writes `bytes` bytes to a program that will listen at `address`, and waits until it has ended.
pub(super) fn write_plain(address: SocketAddr, bytes: u64, gone: &AtomicBool) -> Result<Moved> {
    let mut stream = connect(address, gone)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let buffer = vec![b'z'; CALL];
    let begin = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&buffer[..len]).context("writing to the program")?;
        left -= len as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    // It closes when it has read everything.
    let end = stream.read(&mut [0]).context("the program doesn't end")?;
    anyhow::ensure!(end == 0, "the program answered");
    Ok((bytes, begin.elapsed()))
}
