//! The client's side of an iperf3 test that sends TCP on one stream; the protocol is in
//! [`super::iperf3`].

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use zerowire_sys::socket::unsent;

use super::iperf3::{
    COOKIE, CREATE_STREAMS, DISPLAY_RESULTS, EXCHANGE_RESULTS, IPERF_DONE, PARAM_EXCHANGE, PATIENCE,
    TEST_END, TEST_RUNNING, TEST_START, read_json, read_state, write_json,
};

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
