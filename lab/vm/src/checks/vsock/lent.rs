//! What a guest's kernel sends of memory that is lent on AF_VSOCK, beside what the sender says of
//! it. And what the sender chooses by itself.
//!
//! The back end stands still while the guest sends. So payloads wait in the guest, which changes
//! them there: new bytes arrive where nobody copied.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use rustix::net::{RecvFlags, recv};
use serde_json::Value;
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::send::Ledger;
use zerowire_vmtest::vsock::lend::{AFTER, HELD, NEW, OLD};
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host};

use super::setup::{HOST, Vsock};

const PORT: u32 = 1011;

/// Payloads that wait together: those of `auto` begin with a block of copies, then one of loans.
/// Less than the credit that the back end gives.
const COUNT: usize = 40;
const COPIES: usize = 20;
const BYTES: usize = 4096;

/// A payload that the credit does not cover: what it covers is copied at once.
const TOO_LONG: usize = 300 << 10;

/// Copied loans in a row that end lending (docs/send.md).
const IN_A_ROW: u64 = 16;

/// All modes by all back ends.
pub fn truth(vsock: &mut Vsock, kernel: Kernel) -> Result<String> {
    let listener = host::Listener::new(&vsock.uds(), PORT, VsockKind::Stream)?;
    let mut text = Vec::new();
    for backend in ["socket", "uring"] {
        for mode in ["copy", "zerocopy", "auto"] {
            let lent = match (mode, backend, kernel) {
                ("zerocopy", "socket", Kernel::New) => COUNT,
                ("auto", "socket", Kernel::New) => COUNT - COPIES,
                // Nothing is lent to the old kernel, nor by io_uring, which would not say what is
                // copied all the same.
                _ => 0,
            };
            let checked = held(vsock, &listener, &format!("{mode} {backend} {COUNT} {BYTES}"))
                .and_then(|(said, came)| agree(&said, &came, BYTES, lent).with_context(|| said.to_string()));
            text.push(format!("{mode} {backend}: {}", checked.with_context(|| format!("{mode} {backend}"))?));
        }
        let (said, came) = held(vsock, &listener, &format!("zerocopy {backend} 1 {TOO_LONG}"))?;
        ensure!(came[0] == OLD, "not copied at once, by {backend}: {said}");
        ensure!(said["copied"][0] == true, "a copy that is not told, by {backend}: {said}");
        let ledger = ledger(&said["ledger"])?;
        ledger.check(TOO_LONG as u64)?;
        ensure!(ledger.zero_copied_bytes == 0, "a copy that the ledger does not have, by {backend}: {said}");
    }
    Ok(text.join(", "))
}

/// Runs the guest's part; returns what it says, and the bytes that came.
fn held(vsock: &mut Vsock, listener: &host::Listener, arguments: &str) -> Result<(Value, Vec<u8>)> {
    vsock.guest.sh(&format!("rm -f {HELD}"))?;
    let line = format!("stream connect {HOST} {PORT} held {arguments}");
    let job = Background::start(&mut vsock.guest, &line)?;
    let socket = listener.accept()?;
    job.wait_for(&mut vsock.guest, "ready")?;
    vsock.backend.stand_still()?;
    let changed = vsock.guest.sh(&format!("touch {HELD}"));
    let changed = changed.and_then(|_| job.wait_for(&mut vsock.guest, "changed"));
    vsock.backend.go_on()?;
    changed?;
    let came = read_to_end(&socket)?;
    drop(socket);
    let said = job.finish(&mut vsock.guest)?;
    Ok((serde_json::from_str(&said).with_context(|| said.clone())?, came))
}

fn read_to_end(socket: &OwnedFd) -> Result<Vec<u8>> {
    let mut came = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (_, n) = recv(socket, &mut buffer[..], RecvFlags::empty()).context("receive")?;
        if n == 0 {
            return Ok(came);
        }
        came.extend_from_slice(&buffer[..n]);
    }
}

fn ledger(said: &Value) -> Result<Ledger> {
    serde_json::from_value(said.clone()).with_context(|| format!("no ledger: {said}"))
}

/// Fails unless the completions are true. A payload must have come with the new bytes where its
/// completion says that it was not copied, else with the old ones. New ones: `lent` payloads.
fn agree(said: &Value, came: &[u8], bytes: usize, lent: usize) -> Result<String> {
    let copied = said["copied"].as_array().context("no list")?;
    ensure!(came.len() == copied.len() * bytes, "{} bytes came", came.len());
    let mut new = 0;
    for (n, (payload, copied)) in came.chunks(bytes).zip(copied).enumerate() {
        let is = if *copied == Value::Bool(true) { OLD } else { NEW };
        ensure!(payload.iter().all(|byte| *byte == is), "payload {n}, copied: {copied}, came otherwise");
        new += usize::from(is == NEW);
    }
    ensure!(new == lent, "{new} payloads were not copied, not {lent}");
    let ledger = ledger(&said["ledger"])?;
    ledger.check(came.len() as u64)?;
    ensure!(ledger.zero_copied_bytes == (lent * bytes) as u64, "{ledger:?}");
    Ok(format!("{lent} of {}", copied.len()))
}

/// `Mode::Auto` on its own, by socket calls: once it has chosen, sends go as it says, and its
/// ledger is what the completions say.
pub fn choices(vsock: &mut Vsock) -> Result<String> {
    let listener = host::Listener::new(&vsock.uds(), PORT, VsockKind::Stream)?;
    let mut text = Vec::new();
    for bytes in [32 << 10, TOO_LONG] {
        let line = format!("stream connect {HOST} {PORT} choose {bytes}");
        let (said, came) = vsock.with_host(&line, || Ok(read_to_end(&listener.accept()?)?.len()))?;
        let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let checked = chosen(&said, bytes as u64, came as u64);
        text.push(checked.with_context(|| format!("{bytes} bytes: {said}"))?);
    }
    Ok(text.join("; "))
}

fn chosen(said: &Value, bytes: u64, came: u64) -> Result<String> {
    let number = |value: &Value| value.as_u64().with_context(|| format!("{value} is no number"));
    let (before, after) = (ledger(&said["before"])?, ledger(&said["after"])?);
    ensure!(came == (number(&said["sends"])? + AFTER) * bytes, "{came} bytes came");
    after.check(came)?;
    ensure!(number(&said["lent"])? == after.zero_copied_bytes, "completions of memory that was not copied");
    ensure!(number(&said["copied"])? == came - after.zero_copied_bytes, "completions of memory that was");
    // What was lent behind the decision, copied by the kernel or not.
    let lent = |ledger: &Ledger| ledger.zero_copied_bytes + ledger.copied("kernel");
    let lent_after = lent(&after) - lent(&before);
    let choice = &said["choice"];
    let (copy_ns, lend_ns) = (number(&choice["copy_ns"])?, number(&choice["lend_ns"])?);
    match (choice["way"].as_str(), choice["because"].as_str()) {
        (Some("lend"), Some("measured")) => {
            ensure!(lend_ns < copy_ns, "lending was measured to cost more");
            ensure!(lent_after == AFTER * bytes, "{lent_after} bytes were lent");
        }
        (Some("copy"), Some("measured")) => {
            ensure!(copy_ns * 98 <= (lend_ns + 1) * 100, "copying was measured to cost more");
            ensure!(lent_after == 0, "{lent_after} bytes were lent");
        }
        (Some("copy"), Some("kernel_copied")) => {
            ensure!(before.copied("kernel") >= IN_A_ROW * bytes, "the kernel copied less");
            ensure!(lent_after == 0, "{lent_after} bytes were lent");
        }
        _ => anyhow::bail!("no such choice"),
    }
    // Where the kernel copies all that is lent, nothing else can come of it.
    if bytes == TOO_LONG as u64 {
        ensure!(
            choice["because"] == "kernel_copied" && after.zero_copied_bytes == 0,
            "the kernel copied all"
        );
    }
    Ok(said["words"].as_str().unwrap_or_default().to_owned())
}
