//! Two guests, one process: they reach each other by CID if they share a group.
//!
//! ```text
//!  guest a, CID 81 ── socket a ─┐
//!                               ├ zerowire vsock
//!  guest b, CID 82 ── socket b ─┘
//! ```

use std::path::Path;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::backend::BackendProcess;
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::ask_tokens;
use zerowire_vmtest::vsock::remote::{self, Background};
use zerowire_vmtest::vsock::{VsockKind, host};
use zerowire_vmtest::vsock_device::VsockDevice;

use super::setup::{at_rest, check_sound, plug, start_vms};
use crate::checks::ledger::Ledger;
use crate::checks::traffic::Way;

/// What each bulk transfer moves, bytes.
const BULK_BYTES: u64 = (16 << 20) + 4_321;

/// The longest write of the guest's that one packet may carry on a stream.
const WRITE_BYTES: usize = 64 << 10;

/// Lengths of messages, with marked records.
const RECORDS: &str = "1 7 100 3776 3777 4096 4097 16384 65535 65536 65537 100000 200000";

/// One VM of the back end.
pub(super) struct SiblingVm {
    pub name: &'static str,
    pub cid: u32,
    pub groups: &'static str,
}

/// Connections that the guests may have with each other; the jobs here have up to 100 at once.
const SHARE: u32 = 110;

pub(super) const A: SiblingVm = SiblingVm { name: "a", cid: 81, groups: "left" };
pub(super) const B: SiblingVm = SiblingVm { name: "b", cid: 82, groups: "left" };

/// The second one is a stranger to the first. The third, which never has a guest, shares
/// a group with each, so that one thread serves all.
const STRANGERS: [SiblingVm; 3] = [
    SiblingVm { name: "a", cid: 81, groups: "left" },
    SiblingVm { name: "b", cid: 82, groups: "right" },
    SiblingVm { name: "bridge", cid: 83, groups: "left+right" },
];

/// A guest with its device.
pub(super) struct Side {
    pub guest: Guest,
    pub device: VsockDevice,
    pub cid: u32,
}

/// Echo, bulk, messages, half-close, refusals and a sibling's death; then the same two
/// as strangers.
pub fn siblings(env: &Env<'_>) -> Result<String> {
    let mut backend = start(env.dir, &[A, B], "backend0")?;
    let mut a = restore(env, &A, "a0")?;
    let mut b = restore(env, &B, "b0")?;
    let text = friends(&mut backend, &mut a, &mut b)?;
    share(env, &mut a, &mut b)?;
    let mut a = one_is_killed(env, &mut backend, a, &mut b)?;
    for vm in [A, B] {
        check_sound(&at_rest(&mut backend, vm.name)?).with_context(|| format!("guest {}", vm.name))?;
    }
    for side in [&mut a, &mut b] {
        side.device.unplug(&mut side.guest)?;
    }
    backend.stop()?;

    let mut backend = start(env.dir, &STRANGERS, "backend1")?;
    for side in [&mut a, &mut b] {
        plug(&side.device, &mut side.guest, side.cid)?;
    }
    strangers(&mut backend, &mut a, &mut b)?;
    backend.stop()?;
    Ok(text)
}

fn friends(backend: &mut BackendProcess, a: &mut Side, b: &mut Side) -> Result<String> {
    pair(a, b, 5000, ("stream", "echo 5"), "exchange 1 65536 1 7 4096 65536 1048576")?;
    pair(b, a, 5001, ("stream", "echo 5"), "exchange 2 65536 1 7 4096 65536 1048576")?;
    pair(a, b, 5002, ("seqpacket", "echo 1"), &format!("exchange-messages 3 {RECORDS}"))?;
    pair(
        b,
        a,
        5003,
        ("seqpacket", &format!("receive-records 4 {RECORDS}")),
        &format!("send-records 4 {RECORDS}"),
    )?;
    pair(a, b, 5004, ("stream", "reply 5 10000 100003 600007"), "request 5 10000 100003 600007")?;
    pair(b, a, 5005, ("stream", "request 6 10000 100003 600007"), "reply 6 10000 100003 600007")?;
    pair(a, b, 5006, ("stream", "answer-tokens 100"), "ask-tokens 7 100")?;

    // Many packets, of which each byte is copied once.
    let load = format!("8 {WRITE_BYTES} {BULK_BYTES}");
    let before = at_rest(backend, A.name)?;
    pair(a, b, 5007, ("stream", &format!("receive {load}")), &format!("send {load}"))?;
    let after = at_rest(backend, A.name)?;
    let moved = after.grown(&before, Way::FromGuest, "bytes")?;
    ensure!(moved == BULK_BYTES, "the ledger has {moved} bytes from guest a, not {BULK_BYTES}: {after:?}");
    let calls = after.grown(&before, Way::FromGuest, "calls")?;

    let (to_b, to_a) = (b.cid, a.cid);
    for (side, sibling) in [(&mut *a, to_b), (&mut *b, to_a)] {
        for kind in ["stream", "seqpacket"] {
            // A port where nobody listens, and a guest that does not exist.
            for cid in [sibling, 99] {
                remote::run(&mut side.guest, &format!("{kind} connect {cid} 4999 refused"))?;
            }
        }
    }
    Ok(format!("{BULK_BYTES} bytes from guest to guest, {calls} notifications"))
}

/// One guest opens all the connections to the other one that it may have. A further one is refused.
/// The host still reaches the other guest, by a line in the form that other devices take.
fn share(env: &Env<'_>, a: &mut Side, b: &mut Side) -> Result<()> {
    let job = Background::listen(&mut b.guest, &format!("stream listen 5030 hold 9 {SHARE}"))?;
    let line = format!("stream connect {} 5030 answer-tokens {SHARE}", b.cid);
    let holder = Background::start(&mut a.guest, &line)?;
    job.wait_for(&mut b.guest, "holding")?;
    let beyond = Background::listen(&mut b.guest, "stream listen 5031 echo 1")?;
    remote::run(&mut a.guest, &format!("stream connect {} 5031 refused", b.cid))?;
    let uds = env.dir.join("b.uds");
    let (socket, _) = host::connect_by(&uds, "connect\t5031\r\n", VsockKind::Stream)?;
    ask_tokens(&[&socket], 31)?;
    drop(socket);
    beyond.finish(&mut b.guest)?;
    job.signal(&mut b.guest, "KILL")?;
    holder.finish(&mut a.guest).context("guest a's ends after the death of the program")?;
    Ok(())
}

/// A guest is killed with its QEMU; the other one's ends of their connections are reset.
/// Another guest takes its place.
fn one_is_killed(env: &Env<'_>, backend: &mut BackendProcess, mut a: Side, b: &mut Side) -> Result<Side> {
    let job = Background::listen(&mut b.guest, "stream listen 5010 hold 9 2")?;
    let line = format!("stream connect {} 5010 answer-tokens 2", b.cid);
    // Its end of the story goes with its guest.
    let _ = Background::start(&mut a.guest, &line)?;
    job.wait_for(&mut b.guest, "holding")?;
    drop(a);
    job.finish(&mut b.guest).context("guest b's ends after the death of guest a")?;
    wait_for("the back end to see the end of guest a", COMMAND, || {
        Ok((!Ledger::read(backend, A.name)?.is_connected()).then_some(()))
    })?;
    let mut a = restore(env, &A, "a1")?;
    pair(&mut a, b, 5011, ("stream", "echo 1"), "exchange 10 65536 65536")?;
    Ok(a)
}

fn strangers(backend: &mut BackendProcess, a: &mut Side, b: &mut Side) -> Result<()> {
    refuse(a, b)?;
    refuse(b, a)?;
    for name in ["a", "b"] {
        let ledger = at_rest(backend, name)?;
        check_sound(&ledger)?;
        let opened = ledger.number("connections_opened")?;
        ensure!(opened == 0, "{opened} connections of guest {name}: {ledger:?}");
    }
    Ok(())
}

/// One guest can't reach the other, though it listens there.
pub(super) fn refuse(from: &mut Side, to: &mut Side) -> Result<()> {
    for kind in ["stream", "seqpacket"] {
        let job = Background::listen(&mut to.guest, &format!("{kind} listen 5020 echo 1"))?;
        remote::run(&mut from.guest, &format!("{kind} connect {} 5020 refused", to.cid))?;
        job.signal(&mut to.guest, "KILL")?;
    }
    Ok(())
}

/// A job that listens in one guest, and one that connects in the other.
pub(super) fn pair(
    from: &mut Side,
    to: &mut Side,
    port: u32,
    listening: (&str, &str),
    connecting: &str,
) -> Result<()> {
    let (kind, line) = listening;
    let job = Background::listen(&mut to.guest, &format!("{kind} listen {port} {line}"))?;
    remote::run(&mut from.guest, &format!("{kind} connect {} {port} {connecting}", to.cid))?;
    job.finish(&mut to.guest)?;
    Ok(())
}

/// Its control socket is `control` in the folder.
pub(super) fn start(dir: &Path, vms: &[SiblingVm], log: &str) -> Result<BackendProcess> {
    let vms: Vec<_> =
        vms.iter().map(|vm| (vm.name, format!("cid={},groups={}", vm.cid, vm.groups))).collect();
    let control = dir.join("control").display().to_string();
    start_vms(dir, &vms, &["--peer-connections", &SHARE.to_string(), "--control", &control], log)
}

/// Restores a guest with its files in the folder `place`, and gives it its device.
pub(super) fn restore(env: &Env<'_>, vm: &SiblingVm, place: &str) -> Result<Side> {
    let dir = env.dir.join(place);
    std::fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
    let mut guest = Guest::restore(env.lab, env.machine, &dir)?;
    let device = VsockDevice::new("vsock0", &env.dir.join(vm.name));
    plug(&device, &mut guest, vm.cid)?;
    Ok(Side { guest, device, cid: vm.cid })
}
