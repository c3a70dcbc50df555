//! `zerowire-bench vsock-rx` between a real guest and the host, in each of its modes. The same
//! static program runs at both ends, `zerowire vsock` between them.
//!
//! It doesn't measure, for the guest's CPU is emulated. It compares the sums over all bytes, and
//! the ways that the bytes took.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::backend;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::rx::{self, GuestServer, HostServer, Said};

use super::pair::{KERNEL, PROGRAM, Pair};
use super::setup::{HOST, at_rest};
use crate::checks::ledger::Ledger;
use crate::checks::traffic::Way;

/// What a server sends, MiB: several rounds of the credit and of all windows.
const MEGABYTES: u32 = 4;

/// The client's buffer, or each of its windows: 64 KiB, a quarter of it makes a dequeue
/// worth while.
const BUFFER: &str = "-b 16 -r 16384";

/// Half of the credit that there is without it. A copying client of the host can't choose.
const CREDIT: &str = "-v 131072";

/// The port that both take where none is named.
const PORT: u32 = 1234;

/// Pages of 2 MiB that a client on a device of its own asks for with this buffer.
const HUGE_PAGES: usize = 5;

/// Percent of the bytes that can be read without a copy which are read so. What a program that is
/// late for a moment leaves behind is copied out of the ring.
const IN_PLACE: u64 = 50;

/// All modes of the host's program, and of the guest's.
pub fn bench(env: &Env<'_>) -> Result<String> {
    let program = backend::static_bench()?;
    let mut pair = Pair::start(env, &["--share-guest-memory"], HUGE_PAGES)?;
    let mut text = Vec::new();
    for mode in ["n", "y", "u", "d"] {
        let said = to_host(&mut pair, &program, mode);
        text.push(said.with_context(|| format!("guest to host, -z {mode}"))?);
    }
    for mode in ["n", "y", "u"] {
        let said = to_guest(&mut pair, &program, mode);
        text.push(said.with_context(|| format!("host to guest, -z {mode}"))?);
    }
    pair.finish()?;
    Ok(text.join("; "))
}

/// The guest's kernel sends, a program of the host receives.
fn to_host(pair: &mut Pair, program: &Path, mode: &str) -> Result<String> {
    let before = at_rest(&mut pair.backend, KERNEL.0)?;
    let server = GuestServer::start(&mut pair.guest, MEGABYTES)?;
    let credit = if mode == "n" { "" } else { CREDIT };
    let arguments = format!("-c {} -z {mode} {BUFFER} {credit}", KERNEL.1);
    let client = rx::host_client(program, &pair.uds(KERNEL.0), &arguments);
    let client = client.with_context(|| format!("in the guest: {}", server.said(&mut pair.guest)))?;
    let server = server.finish(&mut pair.guest)?;
    check(&server, &client, mode)?;

    let after = at_rest(&mut pair.backend, KERNEL.0)?;
    let zero_copied = zero_copied(&before, &after, Way::FromGuest)?;
    let in_windows = after.copied(Way::FromGuest, "window") - before.copied(Way::FromGuest, "window");
    match mode {
        "n" => ensure!(client.windows == 0 && in_windows == 0, "{in_windows} bytes went to windows"),
        "d" => {
            // The back end counts as zero-copied what it left in the guest's memory.
            ensure!(client.direct_bytes == zero_copied, "{client:?}, but {zero_copied} zero-copied");
            check_in_place(&client)?;
        }
        _ => {
            ensure!(client.windows > 0 && client.direct_bytes == 0, "no copied windows: {client:?}");
            ensure!(zero_copied == 0, "{zero_copied} bytes zero-copied of a program with copied windows");
            ensure!(in_windows > 0, "nothing was copied to a window: {after:?}");
        }
    }
    Ok(format!("to host, {mode}: {}", summary(&client)))
}

/// A program of the host sends; the guest receives through its kernel, or on a device of
/// its own.
fn to_guest(pair: &mut Pair, program: &Path, mode: &str) -> Result<String> {
    let (name, _) = if mode == "n" { KERNEL } else { PROGRAM };
    let before = at_rest(&mut pair.backend, name)?;
    let server = HostServer::start(program, &pair.uds(name), MEGABYTES, PORT, &pair.dir)?;
    let mut arguments = format!("-c {HOST} -z {mode} {BUFFER} {CREDIT}");
    if mode == "u" {
        // The first program takes the only device that is free, and leaves it bound.
        let address = pair.guest.sh("basename /sys/bus/pci/drivers/uio_pci_generic/0000:*")?;
        arguments += &format!(" --device {address}");
    }
    let client = rx::guest_client(&mut pair.guest, &arguments)?;
    let server = server.finish()?;
    check(&server, &client, mode)?;

    let after = at_rest(&mut pair.backend, name)?;
    zero_copied(&before, &after, Way::ToGuest)?;
    match mode {
        "n" => ensure!(client.direct_bytes == 0, "the kernel's sockets copy: {client:?}"),
        _ => check_in_place(&client)?,
    }
    Ok(format!("to guest, {mode}: {}", summary(&client)))
}

/// Fails unless the client received what the server sent, in this mode.
fn check(server: &Said, client: &Said, mode: &str) -> Result<()> {
    let bytes = u64::from(MEGABYTES) << 20;
    ensure!(server.bytes == bytes, "the server sent {} bytes, not {bytes}", server.bytes);
    ensure!(client.bytes == bytes, "the client received {} bytes of {bytes}", client.bytes);
    ensure!(client.sum == server.sum, "the sums differ: {} sent, {} received", server.sum, client.sum);
    let name = match mode {
        "n" => "copy",
        "y" => "mapped",
        "u" => "polling",
        _ => "direct",
    };
    ensure!(client.mode == name, "the client received in mode '{}', not '{name}'", client.mode);
    Ok(())
}

fn check_in_place(client: &Said) -> Result<()> {
    let Said { bytes, direct_bytes, .. } = client;
    ensure!(
        direct_bytes * 100 >= bytes * IN_PLACE,
        "only {direct_bytes} of {bytes} bytes were read in place"
    );
    Ok(())
}

/// Fails unless the ledger has all bytes; returns how many were zero-copied.
fn zero_copied(before: &Ledger, after: &Ledger, way: Way) -> Result<u64> {
    let (bytes, wanted) = (after.grown(before, way, "bytes")?, u64::from(MEGABYTES) << 20);
    ensure!(bytes == wanted, "the ledger has {bytes} bytes, not {wanted}");
    after.grown(before, way, "zero_copied_bytes")
}

fn summary(client: &Said) -> String {
    let Said { bytes, dequeues, direct_bytes, .. } = client;
    match direct_bytes {
        0 => format!("{bytes} bytes in {dequeues} dequeues"),
        _ => format!("{bytes} bytes in {dequeues} dequeues, {direct_bytes} in place"),
    }
}
