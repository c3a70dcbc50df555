//! `zerowire send`, started, and what it says.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

pub use zerowire_testkit::PATIENCE;

/// Bytes that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    zerowire_testkit::net::lab::pattern(1, len)
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.arg("send").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn spawn(args: &[&str]) -> Child {
    command(args).spawn().expect("the program starts")
}

pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Bytes in the ledger, however they went.
pub fn booked(result: &Value) -> u64 {
    let ledger = &result["ledger"];
    let copied: u64 = ledger["copied_bytes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    ledger["zero_copied_bytes"].as_u64().unwrap() + copied
}

pub fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}
