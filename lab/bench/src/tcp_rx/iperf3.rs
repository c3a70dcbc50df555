//! Both sides of an iperf3 test in which the client sends TCP. The server speaks as much of the
//! protocol as `iperf3 -c HOST -p PORT`, with -P, -t, -n, -l, needs; the client, `send`, has one
//! stream.
//!
//! ```text
//!   client                                     server
//!   connects, cookie (37 bytes)            ->
//!                                          <-  PARAM_EXCHANGE (9)
//!   length (4 bytes, big-endian), JSON     ->
//!                                          <-  CREATE_STREAMS (10)
//!   a connection a stream, each with the cookie ->
//!                                          <-  TEST_START (1), TEST_RUNNING (2)
//!   payload on the streams                 ->
//!   TEST_END (4)                           ->
//!                                          <-  EXCHANGE_RESULTS (13)
//!   length, JSON with the bytes it sent    ->
//!                                          <-  length, JSON
//!                                          <-  DISPLAY_RESULTS (14)
//!   IPERF_DONE (16), closes                ->
//! ```
//!
//! What comes from the client is bounded and checked. A test that can't be served is refused with
//! ACCESS_DENIED (-1).

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use zerowire_cli::logging;
use zerowire_sys::socket::unsent;

pub(super) const TEST_START: u8 = 1;
pub(super) const TEST_RUNNING: u8 = 2;
pub(super) const TEST_END: u8 = 4;
pub(super) const PARAM_EXCHANGE: u8 = 9;
pub(super) const CREATE_STREAMS: u8 = 10;
const CLIENT_TERMINATE: u8 = 12;
pub(super) const EXCHANGE_RESULTS: u8 = 13;
pub(super) const DISPLAY_RESULTS: u8 = 14;
pub(super) const IPERF_DONE: u8 = 16;
const ACCESS_DENIED: u8 = 0xff;

/// Bytes of a cookie, its NUL included.
pub(super) const COOKIE: usize = 37;
/// The longest JSON that is taken.
const MOST_JSON: usize = 1 << 20;
/// Streams of a test, at most: as many as iperf3 has.
const MOST_STREAMS: u64 = 128;
/// How long a client may take for each step but the test.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a test may take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A test whose streams are connected and may send.
#[derive(Debug)]
pub struct Test {
    control: TcpStream,
    /// The receiving ends of its streams.
    pub streams: Vec<OwnedFd>,
}

/// Waits for a client, however long that takes, and goes on until it sends. A client that can't be
/// served gets a refusal, and standard error names it.
pub fn accept(listener: &TcpListener) -> Result<Test> {
    loop {
        let (mut control, peer) = listener.accept().context("waiting for iperf3")?;
        match serve(&mut control, listener) {
            Ok(streams) => return Ok(Test { control, streams }),
            Err(e) => logging::say(&format!("the client {peer} {e:#}; waiting for another one")),
        }
    }
}

/// The test of the next client, which has to come within [`PATIENCE`], and before `gone`.
pub(crate) fn accept_one(listener: &TcpListener, gone: &AtomicBool) -> Result<Test> {
    let mut control = accept_unless(gone, listener, PATIENCE).context("waiting for iperf3")?;
    let streams = serve(&mut control, listener)?;
    Ok(Test { control, streams })
}

fn serve(control: &mut TcpStream, listener: &TcpListener) -> Result<Vec<OwnedFd>> {
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_nodelay(true)?;
    let cookie = read_cookie(control).context("is no iperf3: it sent no cookie")?;
    control.write_all(&[PARAM_EXCHANGE])?;
    let count = read_json(control).and_then(|parameters| streams_of(&parameters)).inspect_err(|_| {
        // Whether it reads the answer doesn't matter.
        let _ = control.write_all(&[ACCESS_DENIED]);
    })?;
    control.write_all(&[CREATE_STREAMS])?;
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        let mut stream = accept_within(listener, PATIENCE)
            .with_context(|| format!("made {} of {count} streams", streams.len()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        match read_cookie(&mut stream) {
            Ok(own) if own == cookie => {
                stream.set_read_timeout(None)?;
                streams.push(stream.into());
            }
            // Another client that has to wait, or no client at all.
            Ok(_) | Err(_) => drop(stream.write_all(&[ACCESS_DENIED])),
        }
    }
    control.write_all(&[TEST_START])?;
    control.write_all(&[TEST_RUNNING])?;
    Ok(streams)
}

impl Test {
    /// Ends a test from another thread: [`Test::sent`] returns with an error.
    pub fn breaker(&self) -> io::Result<TcpStream> {
        self.control.try_clone()
    }

    /// Waits until the client has sent all; how many bytes that were. The streams have to be
    /// received on meanwhile.
    pub fn sent(&mut self) -> Result<Sent> {
        self.control.set_read_timeout(Some(LONGEST))?;
        loop {
            match read_state(&mut self.control)? {
                TEST_END => break,
                CLIENT_TERMINATE => bail!("the client ended the test (state 12)"),
                // TEST_RUNNING and the like are of no meaning here.
                _ => {}
            }
        }
        self.control.set_read_timeout(Some(PATIENCE))?;
        self.control.write_all(&[EXCHANGE_RESULTS])?;
        sent_of(&read_json(&mut self.control)?)
    }

    /// Tells the client what was received, so that it ends well.
    pub fn finish(mut self, sent: &Sent, seconds: f64, cpu_seconds: f64) -> Result<()> {
        let percent = cpu_seconds * 100.0 / seconds.max(1e-9);
        let streams: Vec<Value> = sent
            .streams
            .iter()
            .map(|(id, bytes)| {
                json!({
                    "id": id, "bytes": bytes, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
                    "start_time": 0, "end_time": seconds,
                })
            })
            .collect();
        let results = json!({
            "cpu_util_total": percent, "cpu_util_user": 0, "cpu_util_system": percent,
            "sender_has_retransmits": -1, "streams": streams,
        });
        write_json(&mut self.control, &results)?;
        self.control.write_all(&[DISPLAY_RESULTS])?;
        match read_state(&mut self.control) {
            Ok(IPERF_DONE) => Ok(()),
            Ok(state) => bail!("the client ended with state {state} and not with {IPERF_DONE}"),
            // It has all that it needs.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// What a client says that it sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Number and bytes of each stream.
    streams: Vec<(i64, u64)>,
}

impl Sent {
    /// Bytes of all streams.
    pub fn bytes(&self) -> u64 {
        self.streams.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// The next connection, which has to come within `patience`.
fn accept_within(listener: &TcpListener, patience: Duration) -> Result<TcpStream> {
    accept_unless(&AtomicBool::new(false), listener, patience)
}

/// The next connection, which has to come within `patience`, and before the program that makes it
/// is `gone`.
pub(crate) fn accept_unless(
    gone: &AtomicBool,
    listener: &TcpListener,
    patience: Duration,
) -> Result<TcpStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (begin, step) = (Instant::now(), Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
    loop {
        // One that it made before its end is taken.
        let is_gone = gone.load(Ordering::Acquire);
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&step))? > 0 {
            return Ok(listener.accept()?.0);
        }
        if is_gone {
            bail!("the program has ended");
        }
        if begin.elapsed() > patience {
            bail!("and then nothing for {} s", patience.as_secs());
        }
    }
}

fn read_cookie(stream: &mut impl Read) -> io::Result<[u8; COOKIE]> {
    let mut cookie = [0; COOKIE];
    stream.read_exact(&mut cookie)?;
    Ok(cookie)
}

pub(super) fn read_state(stream: &mut impl Read) -> io::Result<u8> {
    let mut state = [0; 1];
    stream.read_exact(&mut state)?;
    Ok(state[0])
}

pub(super) fn read_json(stream: &mut impl Read) -> Result<Value> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).context("sent no parameters or results")?;
    let len = u32::from_be_bytes(len) as usize;
    if len > MOST_JSON {
        bail!("sent {len} bytes of parameters or results, more than {MOST_JSON}");
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text).context("sent its parameters or results in part")?;
    serde_json::from_slice(&text).context("sent parameters or results that are no JSON")
}

pub(super) fn write_json(stream: &mut impl Write, value: &Value) -> Result<()> {
    let text = serde_json::to_vec(value)?;
    let len = u32::try_from(text.len())?.to_be_bytes();
    stream.write_all(&[&len[..], &text].concat())?;
    Ok(())
}

/// How many streams a test has; the error is why it can't be served.
fn streams_of(parameters: &Value) -> Result<usize> {
    let is =
        |key: &str| parameters[key].as_bool().unwrap_or(false) || parameters[key].as_i64().unwrap_or(0) != 0;
    if !is("tcp") {
        bail!("asked for another protocol than TCP: leave -u and --sctp out");
    }
    if is("reverse") || is("bidirectional") {
        bail!("asked to be sent to: leave -R and --bidir out");
    }
    match parameters.get("parallel").map_or(Some(1), Value::as_u64) {
        Some(count @ 1..=MOST_STREAMS) => Ok(count as usize),
        _ => bail!("asked for {} streams: 1 to {MOST_STREAMS} are served", parameters["parallel"]),
    }
}

fn sent_of(results: &Value) -> Result<Sent> {
    let streams = results["streams"].as_array().context("sent results without streams")?;
    let one = |stream: &Value| Some((stream["id"].as_i64()?, stream["bytes"].as_u64()?));
    let streams: Option<Vec<_>> = streams.iter().map(one).collect();
    Ok(Sent { streams: streams.context("sent results with a stream without id or bytes")? })
}

/// How long the server may take to read what has arrived.
const DRAIN: Duration = Duration::from_millis(20);

/// Sends at least `bytes` bytes to a server, `write_len` a call. `control` is connected to it.
/// Returns how many bytes the server says that it received, and how long they took.
pub(crate) fn send(mut control: TcpStream, bytes: u64, write_len: usize) -> Result<(u64, Duration)> {
    // Letters and a NUL; the same for all connections of a test.
    let mut cookie = [b'z'; COOKIE];
    cookie[COOKIE - 1] = 0;
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_nodelay(true)?;
    control.write_all(&cookie)?;
    expect(&mut control, PARAM_EXCHANGE)?;
    let parameters = json!({
        "tcp": true, "omit": 0, "time": 0, "num": bytes, "blockcount": 0, "parallel": 1, "len": write_len,
        "pacing_timer": 1000, "client_version": "3.12",
    });
    write_json(&mut control, &parameters)?;
    expect(&mut control, CREATE_STREAMS)?;
    let mut stream = TcpStream::connect(control.peer_addr()?)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&cookie)?;
    expect(&mut control, TEST_START)?;
    expect(&mut control, TEST_RUNNING)?;
    let buffer = vec![b'z'; write_len];
    let begin = Instant::now();
    let mut sent = 0;
    while sent < bytes {
        stream.write_all(&buffer).context("sending to iperf3")?;
        sent += write_len as u64;
    }
    wait_until_acknowledged(&stream)?;
    let took = begin.elapsed();
    // The server counts nothing that it reads after this.
    std::thread::sleep(DRAIN);
    control.write_all(&[TEST_END])?;
    expect(&mut control, EXCHANGE_RESULTS)?;
    let one = json!({
        "id": 1, "bytes": sent, "retransmits": 0, "jitter": 0, "errors": 0, "packets": 0, "start_time": 0,
        "end_time": took.as_secs_f64(),
    });
    let results = json!({
        "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": 0,
        "streams": [one],
    });
    write_json(&mut control, &results)?;
    let said = read_json(&mut control)?;
    expect(&mut control, DISPLAY_RESULTS)?;
    let _ = stream.shutdown(Shutdown::Both);
    control.write_all(&[IPERF_DONE])?;
    let received = said["streams"][0]["bytes"].as_u64();
    Ok((received.context("the iperf3 server said no number of bytes")?, took))
}

/// Reads the server's next state, which has to be `state`.
fn expect(control: &mut TcpStream, state: u8) -> Result<()> {
    match read_state(control).context("the iperf3 server ended the test")? {
        found if found == state => Ok(()),
        found => bail!("the iperf3 server went to state {found} where {state} comes next"),
    }
}

/// Waits until the peer's kernel has all that was sent.
fn wait_until_acknowledged(stream: &TcpStream) -> Result<()> {
    let begin = Instant::now();
    while unsent(stream)? > 0 {
        if begin.elapsed() > PATIENCE {
            bail!("the iperf3 server reads no further");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
