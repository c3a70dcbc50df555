//! `zw-recv`: receives through `zerowire::recv` in a guest, from senders of its own over loopback.
//!
//! ```text
//! zw-recv cases
//! zw-recv no-device|multishot|plain CASE
//! zw-recv BACKEND serve PORT SEED BYTES CONNECTIONS
//! ```
//! `cases` prints the names. `serve` says `listening`, takes connections and compares what comes with the patterns of
//! SEED, SEED + 1, … in the order of their first byte (which is the connection's number). The last line is `ok …` or
//! `failed: …`; the exit status is 0 or 1.

mod cases;
mod wire;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use zerowire::recv::Backend;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(text) => {
            println!("ok {text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["cases"] => Ok(cases::ALL.map(|(name, _)| name).join(" ")),
        [backend, "serve", port, seed, bytes, connections] => {
            let number = |word: &str| word.parse::<u64>().with_context(|| format!("'{word}' is no number"));
            let plan = (number(seed)?, number(bytes)?, number(connections)? as usize);
            cases::serve(parse(backend)?, number(port)? as u16, plan)
        }
        [backend, name] => {
            let case =
                cases::ALL.iter().find(|(n, _)| *n == name).with_context(|| format!("no case {name}"))?;
            case.1(parse(backend)?).with_context(|| name.to_owned())
        }
        _ => bail!("usage: zw-recv cases | BACKEND CASE | BACKEND serve PORT SEED BYTES CONNECTIONS"),
    }
}

fn parse(word: &str) -> Result<Backend> {
    Ok(match word {
        "no-device" => Backend::NoDevice,
        "multishot" => Backend::Multishot,
        "plain" => Backend::Plain,
        other => bail!("no back end {other}"),
    })
}
