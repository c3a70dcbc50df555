//! Two guests, one process: what happens to one must not reach the other.
//!
//! ```text
//!  guest a 10.77.1.2 ── socket a ─┐               ┌─ tap0 10.77.1.1
//!                                 ├ zerowire net ─┤                  (one namespace)
//!  guest b 10.77.2.2 ── socket b ─┘               └─ tap1 10.77.2.1
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::{Running, output, wait_for};
use zerowire_vmtest::device::NetDevice;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::Env;

use super::ledger::Ledger;
use super::setup::LINK;
use super::traffic::Way;

/// For a paced transfer of some seconds.
const TRANSFER: Duration = Duration::from_secs(60);

/// Names and addresses of one guest's link.
struct Ends {
    name: &'static str,
    tap: &'static str,
    host: &'static str,
    guest: &'static str,
}

const A: Ends = Ends { name: "a", tap: "tap0", host: "10.77.1.1", guest: "10.77.1.2" };
const B: Ends = Ends { name: "b", tap: "tap1", host: "10.77.2.1", guest: "10.77.2.2" };

/// Guest a is killed with its QEMU in the middle of a transfer; guest b's transfer goes
/// on. Another guest then takes a's place.
pub fn one_is_killed(env: &Env<'_>) -> Result<String> {
    let namespace = Netns::new()?;
    let mut backend = start(env.dir, &namespace)?;
    let mut a = plug(env, &A, "a0")?;
    let mut b = plug(env, &B, "b0")?;
    for (guest, ends) in [(&mut a, &A), (&mut b, &B)] {
        guest.until(&format!("ping -c 1 -W 1 {}", ends.host), LINK)?;
        guest.sh("iperf3 -s >/tmp/iperf3.log 2>&1 &")?;
        // Port 5201 in state LISTEN.
        guest.until("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1451 .* 0A '", COMMAND)?;
    }

    let mut on_a = transfer(env.dir, &namespace, &A)?;
    let mut on_b = transfer(env.dir, &namespace, &B)?;
    for ends in [A, B] {
        wait_for("both transfers to flow", COMMAND, || {
            let ledger = Ledger::read(&mut backend, ends.name)?;
            Ok((ledger.count(Way::FromGuest, "bytes")? > 200_000).then_some(()))
        })?;
    }
    ensure!(on_a.0.ended()?.is_none() && on_b.0.ended()?.is_none(), "a transfer ended too early");
    drop(a);
    wait_for("the back end to see the end of guest a", LINK, || {
        Ok((!Ledger::read(&mut backend, A.name)?.is_connected()).then_some(()))
    })?;
    ensure!(on_b.0.ended()?.is_none(), "guest b's transfer ended before guest a did");
    on_a.0.kill();
    let status = on_b.0.wait(TRANSFER)?;
    let report = std::fs::read_to_string(&on_b.1).unwrap_or_default();
    ensure!(status.success(), "guest b's transfer failed: {report}");
    let report: Value = serde_json::from_str(&report).context("no JSON from iperf3")?;
    ensure!(report.get("error").is_none(), "guest b's transfer: {}", report["error"]);
    Ledger::at_rest(&mut backend, B.name)?.check_sound()?;

    // The place of a is free again, and b is still there.
    let mut a = plug(env, &A, "a1")?;
    a.until(&format!("ping -c 1 -W 1 {}", A.host), LINK)?;
    b.until(&format!("ping -c 1 -W 1 {}", B.host), LINK)?;
    let ledger = Ledger::at_rest(&mut backend, A.name)?;
    ledger.check_sound()?;
    ensure!(ledger.number("connections")? == 2, "guest a's connections: {ledger:?}");
    backend.stop()?;
    Ok(String::new())
}

fn socket(dir: &Path, ends: &Ends) -> PathBuf {
    dir.join(ends.name)
}

fn start(dir: &Path, namespace: &Netns) -> Result<BackendProcess> {
    let mut command = namespace.command(backend::program()?);
    command.arg("net").arg("--json");
    for ends in [A, B] {
        let Ends { name, tap, .. } = ends;
        let path = socket(dir, &ends);
        command.arg("--vm").arg(format!("name={name},socket={},port=tap:{tap}", path.display()));
    }
    let backend = BackendProcess::start(&mut command, &socket(dir, &B), dir, "backend")?;
    for ends in [A, B] {
        wait_for("the back end's taps", LINK, || {
            Ok(namespace.ip(&["link", "show", "dev", ends.tap]).is_ok().then_some(()))
        })?;
        namespace.ip(&["link", "set", "dev", ends.tap, "up"])?;
        namespace.ip(&["addr", "replace", &format!("{}/24", ends.host), "dev", ends.tap])?;
    }
    Ok(backend)
}

/// Restores a guest with its files in the folder `place`, and gives it its device.
fn plug(env: &Env<'_>, ends: &Ends, place: &str) -> Result<Guest> {
    let dir = env.dir.join(place);
    std::fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
    let mut guest = Guest::restore(env.lab, env.machine, &dir)?;
    let device = NetDevice::new(ends.name, &socket(env.dir, ends));
    let interface = device.plug(&mut guest)?;
    guest.sh(&format!("ip addr add {}/24 dev {interface} && ip link set {interface} up", ends.guest))?;
    Ok(guest)
}

/// Starts a paced transfer from a guest; returns it with the file of its report.
fn transfer(dir: &Path, namespace: &Netns, ends: &Ends) -> Result<(Running, PathBuf)> {
    output(namespace.command("ping").args(["-c", "1", "-W", "5", ends.guest]), COMMAND)?;
    let report = dir.join(format!("transfer-{}.out", ends.name));
    let mut command = namespace.command("iperf3");
    command.args(["-c", ends.guest, "-J", "-R", "-n", "10M", "-b", "16M"]);
    Ok((Running::start_logged(&mut command, &report)?, report))
}
