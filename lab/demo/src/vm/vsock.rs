//! The demo's second half: streams between the same guest and the host's programs.
//!
//! ```text
//!  guest, CID 3: zw-vsock ── QEMU ── vhost-user ── zerowire vsock ── unix socket ── this program
//! ```

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host};
use zerowire_vmtest::vsock_device::VsockDevice;

use super::{TICK, TRANSFER, features};
use crate::story::Story;
use crate::story::ledger::{self, Way};

/// The guest's address.
const CID: u32 = 3;

/// A port of the host's, and one of the guest's.
const HOST_PORT: u32 = 1000;
const GUEST_PORT: u32 = 2000;

/// What each transfer moves: some seconds of work for an emulated CPU, which makes and
/// checks every byte.
const LOAD: Load = Load { seed: 1, bytes: 128 << 20, write_bytes: 64 << 10 };

/// Steps that this part of the story takes.
pub const STEPS: u32 = 4;

/// Tells it.
pub fn tell(story: &mut Story, guest: &mut Guest, dir: &Path) -> Result<()> {
    story.step("Start zerowire vsock and plug its device into the same guest");
    let uds = dir.join("vm");
    let mut backend = start_backend(story, &uds, dir)?;
    let cid = VsockDevice::new("vsock0", backend.socket()).plug(guest)?;
    ensure!(cid == CID, "the guest says that its CID is {cid}, not {CID}");
    let vm = backend.statistics()?["vms"][0].take();
    story.say(format!("the guest's CID: {cid}"));
    story.say(format!("path: {}", vm["path"].as_str().unwrap_or("unknown")));
    story.say(format!("features: {}", features(&vm, "VSOCK_")));

    let mut cpu = Vec::new();
    for way in Way::BOTH {
        let title = format!("A stream, {}: {} MiB, every byte checked", way.name(), LOAD.bytes >> 20);
        story.step(&title);
        let before = backend.statistics()?;
        match way {
            Way::FromGuest => from_guest(story, guest, &mut backend, &uds)?,
            Way::ToGuest => to_guest(story, guest, &mut backend, &uds)?,
        }
        let after = backend.statistics()?;
        cpu.push((way, ledger::cpu_seconds_a_gigabyte(&before, &after, way).context("no bytes counted")?));
    }

    story.step("The ledger: what zerowire vsock did with the bytes");
    let last = backend.stop()?.context("no statistics at the end")?;
    story.say(ledger::table_of("zerowire vsock", "packets", &last["vms"][0], &cpu));
    ensure!(last["vms"][0]["ring_errors"] == 0, "ring errors: {}", last["vms"][0]["last_error"]);
    Ok(())
}

fn start_backend(story: &Story, uds: &Path, dir: &Path) -> Result<BackendProcess> {
    let socket = dir.join("vsock");
    let cid = CID.to_string();
    let mut command = Command::new(backend::program()?);
    command.args(["vsock", "--cid", &cid, "--json"]).arg("--socket").arg(&socket).arg("--uds").arg(uds);
    let (socket_text, uds_text) = (socket.display(), uds.display());
    story.say(format!("$ zerowire vsock --socket {socket_text} --cid {cid} --uds {uds_text} --json"));
    BackendProcess::start(&mut command, &socket, dir, "vsock")
}

/// The guest connects to a port of the host's, which is a unix socket.
fn from_guest(story: &Story, guest: &mut Guest, backend: &mut BackendProcess, uds: &Path) -> Result<()> {
    let listener = host::Listener::new(uds, HOST_PORT, VsockKind::Stream)?;
    story.say(format!("host: listens on {}_{HOST_PORT}", uds.display()));
    let line = format!("stream connect 2 {HOST_PORT} send {LOAD}");
    story.say(format!("guest$ zw-vsock {line}"));
    let job = Background::start(guest, &line)?;
    let socket = listener.accept()?;
    watch(story, backend, Way::FromGuest, || job::receive_whole(&socket, LOAD))?;
    // The guest waits for the end of this one.
    drop(socket);
    job.finish(guest)?;
    Ok(())
}

/// A program on the host connects to a port of the guest's.
fn to_guest(story: &Story, guest: &mut Guest, backend: &mut BackendProcess, uds: &Path) -> Result<()> {
    let line = format!("stream listen {GUEST_PORT} receive {LOAD}");
    story.say(format!("guest$ zw-vsock {line}"));
    let job = Background::listen(guest, &line)?;
    let (socket, port) = host::connect_to(uds, GUEST_PORT, VsockKind::Stream)?;
    story.say(format!("host to {}: CONNECT {GUEST_PORT}; answer: OK {port}", uds.display()));
    watch(story, backend, Way::ToGuest, || job::send_whole(&socket, LOAD))?;
    drop(socket);
    job.finish(guest)?;
    Ok(())
}

/// Shows the back end's own byte counter while the host's end works.
fn watch(
    story: &Story,
    backend: &mut BackendProcess,
    way: Way,
    work: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let counted = |backend: &mut BackendProcess| -> Result<u64> {
        let statistics: Value = backend.statistics()?;
        way.of(&statistics["vms"][0])["bytes"].as_u64().context("no byte counter")
    };
    let before = counted(backend)?;
    std::thread::scope(|scope| {
        let mut progress = story.progress(LOAD.bytes);
        let work = scope.spawn(work);
        let deadline = Instant::now() + TRANSFER;
        while !work.is_finished() {
            ensure!(Instant::now() < deadline, "the transfer takes longer than {TRANSFER:?}");
            std::thread::sleep(TICK);
            progress.set(counted(backend)?.saturating_sub(before));
        }
        work.join().unwrap_or_else(|_| bail!("the host's end panicked"))?;
        progress.finish(LOAD.bytes);
        Ok(())
    })
}
