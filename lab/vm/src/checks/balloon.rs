//! Memory is taken away from a guest, and given back, while its devices run.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::balloon;
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;

use super::ledger::Ledger;
use super::setup::{GUEST, HostPort, LINK, NAME, Net, Plan};
use super::traffic::{self, Way};
use super::vsock::setup::Vsock;
use super::vsock::transfer;

/// The ledger's reason for frames in memory that is not registered.
const NOT_PINNED: &str = "bounce_not_pinned";

/// What the balloon takes, MiB.
const TAKEN: u32 = 96;

/// What of it QEMU has to give back to the host at the least, KiB.
const FREED_KIB: u64 = 16 << 10;

/// A balloon, and reports of free pages. Each time the back end says so and what to do about it. It
/// registers the memory that is there now; the third time it stops registering. Traffic is whole
/// after each.
pub fn discards(env: &Env<'_>) -> Result<String> {
    let all = env.machine.memory_mib;
    let mut net = Net::start(env, Plan { port: HostPort::Xdp, ..Plan::default() })?;
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
    // What is taken before the memory is registered anew is not missed, so it is taken again.
    wait_for("a third notice", LINK, || {
        balloon::leave(&mut net.guest, all - TAKEN)?;
        let third = notices(&mut net).get(2).cloned();
        balloon::leave(&mut net.guest, all)?;
        Ok(third)
    })?;
    notice(&mut net, 3).context("inflated again")?;
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    let ledger = net.ledger()?;
    for way in [Way::ToGuest, Way::FromGuest] {
        ensure!(ledger.copied(way, NOT_PINNED) > 0, "nothing was copied, {way:?}: {ledger:?}");
    }
    for name in ["ring_errors", "connection_errors"] {
        ensure!(ledger.number(name)? == 0, "{name} in {ledger:?}");
    }
    net.backend.stop()?;
    Ok(format!("{taken} KiB taken by the balloon were noticed, then {reported} KiB reported"))
}

/// What the back end has said of discarded memory, behind a frame each way.
fn notices(net: &mut Net) -> Vec<String> {
    // Frames in memory that was discarded are lost.
    let _ = net.on_host(&["ping", "-c", "1", "-W", "1", GUEST], LINK);
    let log = net.backend.log_text();
    log.lines().filter(|line| line.contains("were discarded")).map(str::to_owned).collect()
}

/// Lets frames pass until the back end has said `n` times that memory was discarded. Returns how
/// much it was the last time, KiB.
fn notice(net: &mut Net, n: usize) -> Result<u64> {
    let line = wait_for("the notice of discarded memory", LINK, || Ok(notices(net).get(n - 1).cloned()))?;
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

/// A tap has nothing registered: a guest's frames are what it wrote last, whatever was discarded
/// before.
pub fn tap(env: &Env<'_>) -> Result<String> {
    unregistered(env, HostPort::Tap)
}

/// The same over a packet port.
pub fn packet(env: &Env<'_>) -> Result<String> {
    unregistered(env, HostPort::Packet("auto"))
}

fn unregistered(env: &Env<'_>, port: HostPort) -> Result<String> {
    let all = env.machine.memory_mib;
    let mut net = Net::start(env, Plan { port, ..Plan::default() })?;
    // Pages that are in use when the first frames pass.
    dirty(&mut net.guest)?;
    traffic::file_both_ways(&mut net)?;
    let taken = take(&mut net.guest, all)?;
    for _ in 0..3 {
        traffic::file_both_ways(&mut net)?;
    }
    let reported = report(&mut net.guest)?;
    for _ in 0..3 {
        traffic::file_both_ways(&mut net)?;
    }
    net.finish()?;
    Ok(format!("{taken} KiB taken by the balloon, {reported} KiB reported free"))
}

/// The same of streams and messages.
pub fn vsock(env: &Env<'_>) -> Result<String> {
    let all = env.machine.memory_mib;
    let mut vsock = Vsock::start(env)?;
    dirty(&mut vsock.guest)?;
    transfer::bulk(&mut vsock)?;
    let taken = take(&mut vsock.guest, all)?;
    transfer::bulk(&mut vsock)?;
    let reported = report(&mut vsock.guest)?;
    transfer::bulk(&mut vsock)?;
    vsock.finish()?;
    Ok(format!("{taken} KiB taken by the balloon, {reported} KiB reported free"))
}

/// Has the guest write to memory that it then has free.
fn dirty(guest: &mut Guest) -> Result<()> {
    guest.sh("dd if=/dev/zero of=/tmp/fill bs=1M count=64 && rm /tmp/fill")?;
    Ok(())
}

/// A balloon takes memory that the guest has written to, and gives it back. Returns what QEMU gave
/// to the host, KiB.
fn take(guest: &mut Guest, all: u32) -> Result<u64> {
    let before = shared_kib(guest)?;
    balloon::plug(guest, false)?;
    balloon::leave(guest, all - TAKEN)?;
    let freed = freed(guest, before).context("inflated")?;
    balloon::leave(guest, all)?;
    balloon::unplug(guest)?;
    Ok(freed)
}

/// The guest tells of memory that is free, which QEMU gives to the host. Returns how much, KiB.
fn report(guest: &mut Guest) -> Result<u64> {
    dirty(guest)?;
    let before = shared_kib(guest)?;
    balloon::plug(guest, true)?;
    freed(guest, before).context("free pages were reported")
}

fn freed(guest: &Guest, before: u64) -> Result<u64> {
    wait_for("memory given to the host", COMMAND, || {
        let freed = before.saturating_sub(shared_kib(guest)?);
        Ok((freed >= FREED_KIB).then_some(freed))
    })
}

/// What QEMU has of the guest's memory, KiB.
fn shared_kib(guest: &Guest) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    kib.with_context(|| format!("no RssShmem in {status}"))
}
