//! `zerowire recv --mode nodev` in a guest: the tool itself, whose files and JSON are compared with
//! what was sent to it through the guest's virtio-net card.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::send::PatternFile;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::pattern::Pattern;

use super::setup::{Net, Plan};
use super::zcrx::{connect, has_all};

const PORT: u16 = 7110;

/// For a run of the tool to end by itself.
const RUN: Duration = Duration::from_secs(120);

/// What is sent on the connections, in the order in which they are opened.
const FILES: [PatternFile; 3] = [
    PatternFile { seed: 700, bytes: (3 << 20) + 4_321 },
    PatternFile { seed: 701, bytes: (2 << 20) + 1 },
    PatternFile { seed: 702, bytes: (4 << 20) - 77 },
];

/// Three connections to three files; an end by `-r`; an end by a signal, with connections open.
pub fn tool(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    has_all(&mut net.guest)?;
    net.wait_for_link()?;
    for file in FILES {
        file.write_to(&mut net.guest, "/tmp")?;
    }
    doctor(&mut net.guest).context("zerowire doctor")?;
    let complete = complete(&mut net).context("three connections")?;
    let limited = limited(&mut net).context("-r")?;
    let stopped = stopped(&mut net).context("a signal")?;
    net.finish()?;
    Ok(format!("{complete} bytes of three connections, {limited} by -r 1, {stopped} until a signal"))
}

/// The doctor finds here what the tool and the library use.
fn doctor(guest: &mut Guest) -> Result<()> {
    let said = guest.sh("zerowire doctor --path recv --json")?;
    let said: Value = serde_json::from_str(&said).with_context(|| format!("no JSON: {said}"))?;
    for id in ["recv.zcrx", "recv.areas"] {
        let check = said["checks"].as_array().and_then(|c| c.iter().find(|c| c["id"] == id));
        ensure!(check.is_some_and(|c| c["outcome"] == "ok"), "{id}: {said}");
    }
    Ok(())
}

/// All is taken, and the tool ends by itself.
fn complete(net: &mut Net) -> Result<u64> {
    start(&mut net.guest, "-c 3")?;
    net.namespace.inside(|| {
        for (socket, file) in connect_all()?.into_iter().zip(FILES) {
            send(&socket, file, file.bytes)?;
            job::end_data(&socket)?;
        }
        Ok(())
    })?;
    let said = end(&mut net.guest, 0)?;
    let bytes = FILES.iter().map(|f| f.bytes).sum();
    booked(&said, bytes)?;
    let counts = &said["connections"];
    ensure!(said["outcome"] == "complete" && counts["accepted"] == 3 && counts["ended"] == 3, "{said}");
    for (i, file) in FILES.iter().enumerate() {
        net.guest.sh(&format!("cmp {} /tmp/got.{}", file.path("/tmp"), i + 1))?;
    }
    Ok(bytes)
}

/// It ends when a megabyte has come, though more is sent: the senders see a reset.
fn limited(net: &mut Net) -> Result<u64> {
    start(&mut net.guest, "-c 3 -r 1")?;
    net.namespace.inside(|| {
        let mut sockets = connect_all()?;
        let mut sent = 0;
        let refused = loop {
            ensure!(sent < 256 << 20, "256 MiB went to a tool that takes one megabyte");
            let piece = Pattern::new(FILES[0].seed).bytes(sent, 100_000);
            if let Err(error) = sockets[0].write_all(&piece) {
                break error;
            }
            sent += piece.len() as u64;
        };
        let is_reset = matches!(refused.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE));
        ensure!(is_reset, "the sender got another error: {refused}");
        Ok(())
    })?;
    let said = end(&mut net.guest, 0)?;
    let bytes = said["bytes"].as_u64().context("bytes")?;
    booked(&said, bytes)?;
    ensure!(said["outcome"] == "complete" && bytes >= 1_000_000, "{said}");
    ensure!(said["connections"]["ended"] == 0 && said["list"][0]["state"] == "open", "{said}");
    // What came with the last of the megabyte counts, too: on a busy machine that may be more than
    // one file of the three.
    let taken = PatternFile { seed: FILES[0].seed, bytes };
    taken.write_to(&mut net.guest, "/tmp")?;
    net.guest.sh(&format!("cmp {} /tmp/got.1", taken.path("/tmp")))?;
    Ok(bytes)
}

/// A signal ends it while all connections are open: what came until then is in the files and in the
/// ledger.
fn stopped(net: &mut Net) -> Result<u64> {
    const SENT: [u64; 3] = [1_234_567, 7, 2 << 20];
    start(&mut net.guest, "-c 0")?;
    let sockets = net.namespace.inside(|| {
        let sockets = connect_all()?;
        for ((socket, file), bytes) in sockets.iter().zip(FILES).zip(SENT) {
            send(socket, file, bytes)?;
        }
        Ok(sockets)
    })?;
    // With an end that isn't known each connection has a file of its own, too.
    for (i, bytes) in SENT.iter().enumerate() {
        net.guest.until(&format!("[ $(wc -c </tmp/got.{}) = {bytes} ]", i + 1), RUN)?;
    }
    net.guest.sh("kill -TERM $(cat /tmp/pid)")?;
    let said = end(&mut net.guest, 143)?;
    drop(sockets);
    let bytes = SENT.iter().sum();
    booked(&said, bytes)?;
    let counts = &said["connections"];
    ensure!(said["outcome"] == "interrupted" && counts["accepted"] == 3 && counts["ended"] == 0, "{said}");
    for (i, bytes) in SENT.into_iter().enumerate() {
        same_beginning(&mut net.guest, i, bytes)?;
    }
    Ok(bytes)
}

/// Starts the tool in the guest, and waits until it listens.
fn start(guest: &mut Guest, arguments: &str) -> Result<()> {
    let tool = format!("zerowire recv -p {PORT} --mode nodev --to /tmp/got --json /tmp/said {arguments}");
    guest.sh(&format!(
        "rm -f /tmp/got* /tmp/said /tmp/status; \
         (sh -c 'echo $$ >/tmp/pid; exec {tool}'; echo $? >/tmp/status) </dev/null >/tmp/words 2>&1 & true"
    ))?;
    guest.until("grep -q '^listening' /tmp/words || test -s /tmp/status", COMMAND)?;
    let words = guest.sh("cat /tmp/words")?;
    ensure!(words.starts_with("listening") && words.contains("no device"), "{tool}: {words}");
    Ok(())
}

/// Waits for its end with this status; its JSON.
fn end(guest: &mut Guest, status: u32) -> Result<Value> {
    guest.until("test -s /tmp/status", RUN)?;
    let words = guest.sh("cat /tmp/status /tmp/words")?;
    ensure!(words.lines().next() == Some(&status.to_string()), "status {status} was to come: {words}");
    let json = guest.sh("cat /tmp/said")?;
    serde_json::from_str(&json).with_context(|| format!("no JSON: {json}"))
}

/// Every byte is in the ledger once, as one that the kernel copied, and the count is exact.
fn booked(said: &Value, bytes: u64) -> Result<()> {
    let is_right = said["mode"] == "nodev"
        && said["path"].as_str().is_some_and(|p| p.contains("no device, the kernel copies"))
        && said["error"].is_null()
        && said["bytes"] == bytes
        && said["copied_bytes"] == bytes
        && said["zero_copied_bytes"] == 0
        && said["zero_copied_is"] == "exact"
        && said["ledger"]["bytes"] == bytes
        && said["ledger"]["copied_bytes"]["kernel"] == bytes
        && said["events"]["copied"].as_u64().is_some_and(|n| n > 0);
    ensure!(is_right, "{bytes} bytes: {said}");
    Ok(())
}

fn same_beginning(guest: &mut Guest, index: usize, bytes: u64) -> Result<()> {
    let (pattern, got) = (FILES[index].path("/tmp"), index + 1);
    guest.sh(&format!(
        "[ $(wc -c </tmp/got.{got}) = {bytes} ] && head -c {bytes} {pattern} | cmp - /tmp/got.{got}"
    ))?;
    Ok(())
}

/// One connection after the other: they are accepted in this order.
fn connect_all() -> Result<Vec<TcpStream>> {
    FILES.iter().map(|_| connect(PORT)).collect()
}

fn send(socket: &TcpStream, file: PatternFile, bytes: u64) -> Result<()> {
    job::send_load(socket, Load { seed: file.seed, bytes, write_bytes: 100_000 })
}
