//! Many small packets toward a guest whose program does not read: its kernel bounds how many may be
//! unread, whatever the credit.

use anyhow::{Context, Result};
use zerowire_vmtest::backend::BackendProcess;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host};

use super::setup::{at_rest, check_sound, together, uds_of, wait_until_still};
use super::siblings::{A, B, Side, restore, start};
use crate::checks::ledger::Ledger;
use crate::checks::traffic::Way;

/// Bytes of a write and how many: all of them are within the credit of 256 KiB.
const WRITES: [(usize, u64); 3] = [(64, 456), (64, 1000), (200, 1000)];

/// From a host program and from another guest.
pub fn small_packets(env: &Env<'_>) -> Result<String> {
    let mut backend = start(env.dir, &[A, B], "backend")?;
    let mut reader = restore(env, &A, "a0")?;
    let mut sibling = restore(env, &B, "b0")?;
    let mut text = Vec::new();
    for kind in VsockKind::BOTH {
        for (write_bytes, count) in WRITES {
            let load = Load { seed: 9, bytes: write_bytes as u64 * count, write_bytes };
            let what = format!("{} {count} x {write_bytes} bytes", kind.word());
            let kept = from_host(env, &mut backend, &mut reader, kind, load)
                .with_context(|| format!("{what} from the host"))?;
            let relayed = from_sibling(&mut backend, &mut reader, &mut sibling, kind, load)
                .with_context(|| format!("{what} from another guest"))?;
            text.push(format!("{what}: {kept} and {relayed} packets unread"));
        }
    }
    for vm in [A, B] {
        check_sound(&at_rest(&mut backend, vm.name)?).with_context(|| format!("guest {}", vm.name))?;
    }
    backend.stop()?;
    Ok(text.join("; "))
}

fn from_host(
    env: &Env<'_>,
    backend: &mut BackendProcess,
    reader: &mut Side,
    kind: VsockKind,
    load: Load,
) -> Result<u64> {
    let before = at_rest(backend, A.name)?;
    let job = listen(reader, kind, load)?;
    let (socket, _) = host::connect_to(&uds_of(env.dir, A.name), 2030, kind)?;
    job.signal(&mut reader.guest, "STOP")?;
    let (kept, ()) = together(|| job::send_whole(&socket, load), || go_on(backend, reader, job, &before))?;
    Ok(kept)
}

fn from_sibling(
    backend: &mut BackendProcess,
    reader: &mut Side,
    sibling: &mut Side,
    kind: VsockKind,
    load: Load,
) -> Result<u64> {
    let before = at_rest(backend, A.name)?;
    let job = listen(reader, kind, load)?;
    job.signal(&mut reader.guest, "STOP")?;
    let line = format!("{} connect {} 2030 send {load}", kind.word(), reader.cid);
    let sender = Background::start(&mut sibling.guest, &line)?;
    let kept = go_on(backend, reader, job, &before)?;
    sender.finish(&mut sibling.guest)?;
    Ok(kept)
}

fn listen(reader: &mut Side, kind: VsockKind, load: Load) -> Result<Background> {
    let line = format!("{} listen 2030 receive {load}", kind.word());
    Background::listen(&mut reader.guest, &line)
}

/// Lets the reader go on, to its end, when no more bytes go to it; returns how many packets did.
fn go_on(backend: &mut BackendProcess, reader: &mut Side, job: Background, before: &Ledger) -> Result<u64> {
    let still = wait_until_still(backend, A.name, Way::ToGuest, before)?;
    job.signal(&mut reader.guest, "CONT")?;
    job.finish(&mut reader.guest)?;
    still.grown(before, Way::ToGuest, "frames")
}
