//! `zw-recv`: receives through `zerowire::recv` in a guest, from senders of its own over loopback.
//!
//! ```text
//! zw-recv cases
//! zw-recv no-device|multishot|plain CASE
//! zw-recv BACKEND serve PORT SEED BYTES CONNECTIONS
//! zw-recv recv:BUFFER_BYTES serve PORT SEED BYTES CONNECTIONS
//! zw-recv BACKEND iperf3 PORT BYTES
//! zw-recv BACKEND victim
//! ```
//! `cases` prints the names. `serve` says `listening`, takes connections and compares what comes
//! with the patterns of SEED, SEED + 1, …. They go in the order of their first byte, which is the
//! connection's number; `recv:` does so without a receiver. `iperf3` is an iperf3 server for one
//! test. The last line is `ok …` or `failed: …`; the exit status is 0 or 1.

mod added;
mod c_calls;
mod cases;
mod flush;
mod iperf;
mod killed;
mod memlock;
mod serve;
mod shared;
mod wire;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use zerowire::recv::RecvBackend;
use zerowire_vmtest::report;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    report(run(&words))
}

fn run(words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["cases"] => Ok(cases::ALL.map(|(name, _)| name).join(" ")),
        [backend, "serve", port, seed, bytes, connections] => {
            let (seed, bytes, connections) = (number(seed)?, number(bytes)?, number(connections)? as usize);
            let expected = serve::Expected { seed, bytes, connections };
            let port = number(port)? as u16;
            match backend.strip_prefix("recv:") {
                Some(buffer_bytes) => serve::by_recv(port, number(buffer_bytes)? as usize, expected),
                None => serve::serve(parse(backend)?, port, expected),
            }
        }
        [backend, "iperf3", port, bytes] => {
            iperf::serve(parse(backend)?, number(port)? as u16, number(bytes)?)
        }
        [backend, "victim"] => killed::victim(parse(backend)?),
        [backend, name] => {
            let case =
                cases::ALL.iter().find(|(n, _)| *n == name).with_context(|| format!("no case {name}"))?;
            case.1(parse(backend)?).with_context(|| name.to_owned())
        }
        _ => bail!(
            "usage: zw-recv cases | BACKEND CASE | BACKEND serve PORT SEED BYTES CONNECTIONS | BACKEND iperf3 PORT BYTES"
        ),
    }
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("'{word}' is no number"))
}

fn parse(word: &str) -> Result<RecvBackend> {
    Ok(match word {
        "no-device" => RecvBackend::NoDevice,
        "multishot" => RecvBackend::Multishot,
        "plain" => RecvBackend::Plain,
        other => bail!("no back end {other}"),
    })
}
