//! Senders on connections that the guest's kernel encrypts: it takes SO_ZEROCOPY there, and refuses
//! each loan. All is copied then, whatever was asked for, and the ledger says why.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::tls::Sent;
use zerowire_vmtest::vsock::remote;

const SEED: u64 = 80;
const WRITE_BYTES: u64 = 65_536;
const PAYLOADS: u64 = 60;
/// Sends of a block of the trial that `auto` begins with.
const BLOCK: u64 = 20;

/// Modes and back ends of the sender.
const MODES: [&str; 2] = ["auto", "zerocopy"];
const BACKENDS: [&str; 2] = ["socket", "uring"];

/// Over loopback in the guest; no device is involved.
pub fn refuses_loans(env: &Env<'_>) -> Result<String> {
    let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
    for mode in MODES {
        for backend in BACKENDS {
            let case = || format!("{mode} by {backend}");
            let line = format!("tls {mode} {backend} {SEED} {WRITE_BYTES} {}", PAYLOADS * WRITE_BYTES);
            let said = remote::run(&mut guest, &line).with_context(case)?;
            let sent: Sent = serde_json::from_str(&said).with_context(|| said.clone())?;
            check(&sent, mode).with_context(case)?;
        }
    }
    let encrypted = counter(&mut guest, "TlsTxSw")?;
    let decrypted = counter(&mut guest, "TlsRxSw")?;
    // One connection for each sender, and one of a plain program.
    let wanted = 2 * (MODES.len() * BACKENDS.len()) as u64;
    ensure!(encrypted == wanted && decrypted == wanted, "TlsTxSw {encrypted}, TlsRxSw {decrypted}");
    Ok("EOPNOTSUPP for each loan".to_owned())
}

fn check(sent: &Sent, mode: &str) -> Result<()> {
    ensure!(
        sent.errno == libc::EOPNOTSUPP,
        "a plain loan: {}",
        std::io::Error::from_raw_os_error(sent.errno)
    );
    sent.ledger.check(PAYLOADS * WRITE_BYTES)?;
    // A block of the trial copies before the first loan is refused.
    let trial = if mode == "auto" { BLOCK } else { 0 };
    let copied = [("trial", trial), ("unsupported", PAYLOADS - trial)];
    let copied = copied.into_iter().filter(|(_, payloads)| *payloads > 0);
    let copied: BTreeMap<String, u64> =
        copied.map(|(reason, payloads)| (reason.to_owned(), payloads * WRITE_BYTES)).collect();
    ensure!(sent.ledger.copied_bytes == copied, "not {copied:?}: {sent:?}");
    ensure!(sent.path.contains("EOPNOTSUPP"), "the path does not name it: {}", sent.path);
    Ok(())
}

/// Connections that the guest's kernel had in software since its boot.
fn counter(guest: &mut Guest, name: &str) -> Result<u64> {
    let all = guest.sh("cat /proc/net/tls_stat")?;
    let line = all.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.trim().parse().ok());
    number.with_context(|| format!("no {name} in /proc/net/tls_stat: {all}"))
}
