//! Many connections: at once, and one after the other.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::backend::Holdings;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job;
use zerowire_vmtest::vsock::{VsockKind, host};

use super::setup::{HOST, Vsock};
use super::transfer;

/// Connections that are open at the same time.
const MANY: usize = 1000;

/// Connections one after the other.
const CHURN: usize = 100;

/// What an open connection may cost of resident memory, which grows here by 5 KiB for each. The
/// pages of the guest's memory that the device touches count in it, and the allocator keeps what it
/// had once. A connection takes at most 4 KiB of the heap; crates/zerowire-vsock/tests/heap
/// asserts that, where it can be counted.
const CONNECTION_KIB: u64 = 8;

/// Growth that is taken for the allocator's own, KiB. A page leaked on each of the short
/// connections is more.
const SLACK_KIB: u64 = 256;

/// A thousand connections each way, and a hundred short ones: everything is given back.
pub fn many(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    // Threads and tables that are made once.
    transfer::echo(&mut vsock)?;
    let before = settled(&mut vsock)?;
    from_guest(&mut vsock)?;
    from_host(&mut vsock)?;
    let between = settled(&mut vsock)?;
    check_given_back(before, between, CONNECTION_KIB * MANY as u64)?;
    churn(&mut vsock)?;
    let after = settled(&mut vsock)?;
    check_given_back(between, after, SLACK_KIB)?;
    // And it still works.
    transfer::echo(&mut vsock)?;
    let opened = vsock.ledger()?.number("connections_opened")?;
    vsock.finish()?;
    Ok(format!(
        "{opened} connections; {} descriptors; {} KiB, {} after {MANY} at once, {} at the end",
        after.descriptors, before.resident_kib, between.resident_kib, after.resident_kib
    ))
}

fn from_guest(vsock: &mut Vsock) -> Result<()> {
    let listener = host::Listener::new(&vsock.uds(), 1000, VsockKind::Stream)?;
    vsock.with_host(&format!("stream connect {HOST} 1000 ask-tokens 70 {MANY}"), || {
        let sockets = listener.accept_all(MANY)?;
        for (number, socket) in sockets.iter().enumerate() {
            job::answer_token(socket).with_context(|| format!("connection {number}"))?;
        }
        for socket in &sockets {
            job::receive_end(socket)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn from_host(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    vsock.with_listener(&format!("stream listen 2000 answer-tokens {MANY}"), || {
        let mut sockets = Vec::with_capacity(MANY);
        for number in 0..MANY {
            let connection = host::connect_to(&uds, 2000, VsockKind::Stream);
            sockets.push(connection.with_context(|| format!("connection {number}"))?.0);
        }
        job::ask_tokens(&sockets, 80)
    })
}

fn churn(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1000, VsockKind::Stream)?;
    vsock.with_host(&format!("stream connect {HOST} 1000 churn 90 {CHURN}"), || {
        for _ in 0..CHURN {
            job::answer_token(listener.accept()?)?;
        }
        Ok(())
    })?;
    vsock.with_listener(&format!("stream listen 2000 echo {CHURN}"), || {
        for number in 0..CHURN as u64 {
            let (socket, _) = host::connect_to(&uds, 2000, VsockKind::Stream)?;
            job::ask_tokens(&[socket], 100 + number)?;
        }
        Ok(())
    })
}

/// What the back end holds when no connection is open.
fn settled(vsock: &mut Vsock) -> Result<Holdings> {
    vsock.ledger()?;
    vsock.backend.holdings_at_rest()
}

fn check_given_back(before: Holdings, after: Holdings, slack_kib: u64) -> Result<()> {
    ensure!(after.descriptors == before.descriptors, "descriptors: {before:?}, then {after:?}");
    ensure!(
        after.resident_kib <= before.resident_kib + slack_kib,
        "resident memory: {before:?}, then {after:?}"
    );
    Ok(())
}
