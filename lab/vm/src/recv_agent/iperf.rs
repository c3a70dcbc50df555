//! The server's part of iperf3's protocol, for one test whose client sends: enough for `iperf3 -c …
//! -F FILE`.
//!
//! ```text
//!  client                          server              (control connection; a byte is a state)
//!  cookie, 37 bytes         ──>
//!                           <──    PARAM_EXCHANGE
//!  length, JSON             ──>
//!                           <──    CREATE_STREAMS      each stream begins with the cookie
//!                           <──    TEST_START, TEST_RUNNING
//!  TEST_END                 ──>
//!                           <──    EXCHANGE_RESULTS
//!  length, JSON             ──>    length, JSON
//!                           <──    DISPLAY_RESULTS
//!  IPERF_DONE               ──>
//! ```
//! From <https://software.es.net/iperf/> and what version 3.12 sends; a length has four bytes, the
//! first is the highest.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use zerowire::recv::{Receiver, RecvBackend};

use super::cases::{load, options, said};
use super::wire::Book;

const TEST_START: u8 = 1;
const TEST_RUNNING: u8 = 2;
const TEST_END: u8 = 4;
const PARAM_EXCHANGE: u8 = 9;
const CREATE_STREAMS: u8 = 10;
const EXCHANGE_RESULTS: u8 = 13;
const DISPLAY_RESULTS: u8 = 14;
const IPERF_DONE: u8 = 16;

const COOKIE_BYTES: usize = 37;
/// The seed of the file that the client sends.
pub const SEED: u64 = 600;
/// A JSON text has a few hundred bytes.
const MOST_JSON: usize = 1 << 20;

/// Takes one test, in which each stream sends the same file of `bytes` bytes from its beginning.
pub fn serve(backend: RecvBackend, port: u16, bytes: u64) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 256))?;
    let listener = TcpListener::bind(("0.0.0.0", port)).context("listen")?;
    println!("listening");
    let (mut control, cookie) = accept(&listener)?;
    control.write_all(&[PARAM_EXCHANGE])?;
    let parameters = read_json(&mut control).context("the client's parameters")?;
    let count = parameters["parallel"].as_u64().unwrap_or(1);
    control.write_all(&[CREATE_STREAMS])?;
    let mut book = Book::default();
    let mut ids = Vec::new();
    for _ in 0..count {
        let (stream, other) = accept(&listener)?;
        ensure!(other == cookie, "a stream of another client");
        let id = receiver.add(stream.into())?;
        book.add(id, load(SEED, bytes));
        ids.push(id);
    }
    control.write_all(&[TEST_START])?;
    control.write_all(&[TEST_RUNNING])?;
    let mut batch = Vec::new();
    while !says_something(&control)? {
        receiver.recv(&mut batch, Some(Duration::from_millis(20)))?;
        batch.drain(..).try_for_each(|a| book.note(&a))?;
    }
    expect(&mut control, TEST_END)?;
    control.write_all(&[EXCHANGE_RESULTS])?;
    let theirs = read_json(&mut control).context("the client's results")?;
    let streams = theirs["streams"].as_array().context("no streams in the results")?;
    let mut sent: Vec<u64> = streams.iter().filter_map(|s| s["bytes"].as_u64()).collect();
    sent.sort_unstable();
    // The first stream at the end of its file ends the test.
    ensure!(sent.last() == Some(&bytes), "no stream has sent the whole file: {theirs}");
    while book.total() < sent.iter().sum() {
        book.turn(&mut receiver, &mut batch)?;
        batch.clear();
    }
    let mut got: Vec<u64> = ids.iter().map(|id| book.got(*id)).collect();
    got.sort_unstable();
    ensure!(got == sent, "iperf3 says that it sent {sent:?}, {got:?} came");
    write_json(&mut control, &results(streams))?;
    control.write_all(&[DISPLAY_RESULTS])?;
    expect(&mut control, IPERF_DONE)?;
    Ok(said(&receiver, book.total()))
}

fn says_something(control: &TcpStream) -> Result<bool> {
    control.set_nonblocking(true)?;
    let peeked = control.peek(&mut [0]);
    control.set_nonblocking(false)?;
    match peeked {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e).context("the control connection"),
    }
}

fn accept(listener: &TcpListener) -> Result<(TcpStream, [u8; COOKIE_BYTES])> {
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut cookie = [0; COOKIE_BYTES];
    stream.read_exact(&mut cookie).context("the cookie")?;
    Ok((stream, cookie))
}

fn expect(control: &mut TcpStream, state: u8) -> Result<()> {
    let mut got = [0];
    control.read_exact(&mut got).with_context(|| format!("waiting for state {state}"))?;
    ensure!(got[0] == state, "the client went to state {}, {state} was to come", got[0]);
    Ok(())
}

fn read_json(control: &mut TcpStream) -> Result<Value> {
    let mut length = [0; 4];
    control.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= MOST_JSON, "a text of {length} bytes");
    let mut text = vec![0; length];
    control.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn write_json(control: &mut TcpStream, value: &Value) -> Result<()> {
    let text = value.to_string();
    control.write_all(&(text.len() as u32).to_be_bytes())?;
    control.write_all(text.as_bytes())?;
    Ok(())
}

/// The server's view: all that the client sent has come.
fn results(theirs: &[Value]) -> Value {
    let stream = |s: &Value| {
        json!({"id": s["id"], "bytes": s["bytes"], "retransmits": -1, "jitter": 0, "errors": 0, "omitted_errors": 0,
            "packets": 0, "omitted_packets": 0, "start_time": 0, "end_time": s["end_time"]})
    };
    let streams: Vec<Value> = theirs.iter().map(stream).collect();
    json!({"cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": -1,
        "streams": streams})
}
