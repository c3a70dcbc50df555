//! One end stops reading: only its own connection waits.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host};

use super::setup::{HOST, NAME, Vsock, together, wait_until_still};
use super::transfer;
use crate::checks::ledger::Ledger;
use crate::checks::traffic::Way;

/// More than all buffers on the way hold.
const LOAD: Load = Load { seed: 30, bytes: (4 << 20) + 5, write_bytes: 64 << 10 };

/// A program at either end stops reading in the middle of a transfer. Others go on, and
/// when it reads again nothing is lost.
pub fn stalled(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    let uds = vsock.uds();

    // The host's program does not read.
    let listener = host::Listener::new(&uds, 1010, VsockKind::Stream)?;
    let before = vsock.ledger()?;
    let line = format!("stream connect {HOST} 1010 send {LOAD}");
    let job = Background::start(&mut vsock.guest, &line)?;
    let socket = listener.accept()?;
    let held = moved(&mut vsock, Way::FromGuest, &before)?;
    transfer::echo(&mut vsock).context("while the host's program does not read")?;
    job::receive_whole(&socket, LOAD)?;
    drop(socket);
    job.finish(&mut vsock.guest)?;

    // The guest's program does not read.
    let before = vsock.ledger()?;
    let job = Background::listen(&mut vsock.guest, &format!("stream listen 2010 receive {LOAD}"))?;
    let (socket, _) = host::connect_to(&uds, 2010, VsockKind::Stream)?;
    job.signal(&mut vsock.guest, "STOP")?;
    let guest = &mut vsock;
    let (kept, ()) = together(
        || job::send_whole(&socket, LOAD),
        || {
            let kept = moved(guest, Way::ToGuest, &before)?;
            transfer::echo(guest).context("while the guest's program does not read")?;
            job.signal(&mut guest.guest, "CONT")?;
            job.finish(&mut guest.guest)?;
            Ok(kept)
        },
    )?;
    vsock.finish()?;
    Ok(format!("of {} bytes {held} went from the guest, {kept} to it, before they waited", LOAD.bytes))
}

/// Waits until no more bytes move, well before all have; returns how many did.
fn moved(vsock: &mut Vsock, way: Way, before: &Ledger) -> Result<u64> {
    let moved = wait_until_still(&mut vsock.backend, NAME, way, before)?.grown(before, way, "bytes")?;
    ensure!(moved < LOAD.bytes, "{moved} bytes moved, to a program that does not read");
    Ok(moved)
}
