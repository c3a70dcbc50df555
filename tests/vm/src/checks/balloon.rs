//! Memory is taken away from a guest while it is AF_XDP's.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::balloon;
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::runner::Env;

use super::ledger::Ledger;
use super::setup::{GUEST, LINK, NAME, Net, Plan, Port};
use super::traffic::{self, Way};

/// The ledger's reason for frames in memory that is not registered.
const NOT_PINNED: &str = "bounce: not pinned";

/// What the balloon takes, MiB.
const TAKEN: u32 = 96;

/// A balloon, and reports of free pages. Each time the back end says so, what to do about it, and registers the memory that is
/// there now; the third time it stops registering. Traffic is whole after each.
pub fn discards(env: &Env<'_>) -> Result<String> {
    let all = env.machine.memory_mib;
    let mut net = Net::start(env, Plan { port: Port::Xdp, ..Plan::default() })?;
    traffic::ping(&mut net)?;

    balloon::plug(&mut net.guest, false)?;
    balloon::leave(&mut net.guest, all - TAKEN)?;
    let taken = notice(&mut net, 1).context("inflated")?;
    balloon::leave(&mut net.guest, all)?;
    traffic::file_both_ways(&mut net)?;
    balloon::unplug(&mut net.guest)?;

    // Some seconds later the guest tells of what is free, and goes on doing so.
    balloon::plug(&mut net.guest, true)?;
    let reported = notice(&mut net, 2).context("free pages were reported")?;
    balloon::leave(&mut net.guest, all - TAKEN)?;
    notice(&mut net, 3).context("inflated again")?;
    balloon::leave(&mut net.guest, all)?;
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    let ledger = net.ledger()?;
    for way in [Way::ToGuest, Way::FromGuest] {
        ensure!(ledger.copied(way, NOT_PINNED) > 0, "nothing was copied, {way:?}: {ledger:?}");
    }
    for name in ["ring_errors", "connection_errors"] {
        ensure!(ledger.number(name)? == 0, "{name} in {ledger:?}");
    }
    let (status, _) = net.backend.stop()?;
    ensure!(status.success(), "after SIGTERM the back end ended with {status}");
    Ok(format!("{taken} KiB taken by the balloon were noticed, then {reported} KiB reported"))
}

/// Lets frames pass until the back end has said `n` times that memory was discarded. Returns how much it was the last time, KiB.
fn notice(net: &mut Net, n: usize) -> Result<u64> {
    let line = wait_for("the notice of discarded memory", LINK, || {
        // Frames in memory that was discarded are lost.
        let _ = net.on_host(&["ping", "-c", "1", "-W", "1", GUEST], LINK);
        let log = net.backend.log_text();
        Ok(log.lines().filter(|line| line.contains("were discarded")).nth(n - 1).map(str::to_owned))
    })?;
    let next = if n < 3 { "it is registered anew" } else { "it is not registered any more" };
    for words in [next, "no balloon", "no free-page-reporting"] {
        ensure!(line.contains(words), "no '{words}' in '{line}'");
    }
    let said = Ledger::read(&mut net.backend, NAME)?.last_error().unwrap_or_default();
    // It may have said so once more since.
    ensure!(said.contains("no balloon"), "the last error is '{said}', the log has '{line}'");
    let kib = line.split_whitespace().zip(line.split_whitespace().skip(1)).find(|(_, word)| *word == "KiB");
    kib.and_then(|(kib, _)| kib.parse().ok()).with_context(|| format!("no figure in '{line}'"))
}
