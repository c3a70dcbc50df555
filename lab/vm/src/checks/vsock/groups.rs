//! A VM gets other groups while its guest runs (`PATCH /vms/NAME?reconnect`). QEMU has its device
//! unplugged and plugged again.
//!
//! ```text
//!  guest a, CID 81 ── left ── zerowire vsock ── right ── guest b, CID 82
//! ```

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host, job};

use super::setup::{at_rest, check_sound, plug};
use super::siblings::{A, B, SiblingVm, pair, refuse, restore, start};
use crate::checks::ledger::Ledger;
use crate::checks::setup::{ctl, refused};

/// Those of another group than [`A`]. The second one never has a guest.
const OTHERS: [SiblingVm; 2] =
    [SiblingVm { groups: "right", ..B }, SiblingVm { name: "c", cid: 83, groups: "right" }];

/// Guest b joins guest a's group. Its connections end, and those of guest a go on. A change that
/// can't be carried out ends none.
pub fn change(env: &Env<'_>) -> Result<String> {
    let control = env.dir.join("control");
    let [other, third] = OTHERS;
    let mut backend = start(env.dir, &[A, other, third], "backend")?;
    let mut a = restore(env, &A, "a0")?;
    let mut b = restore(env, &B, "b0")?;
    refuse(&mut a, &mut b)?;

    let stays = Background::listen(&mut a.guest, "stream listen 2030 echo 1")?;
    let (of_a, _) = host::connect_to(&env.dir.join("a.uds"), 2030, VsockKind::Stream)?;
    job::ask_tokens(&[&of_a], 1)?;
    let ends = Background::listen(&mut b.guest, "stream listen 2030 hold 2 1")?;
    let (of_b, _) = host::connect_to(&env.dir.join("b.uds"), 2030, VsockKind::Stream)?;
    job::answer_token(&of_b)?;
    ends.wait_for(&mut b.guest, "holding")?;

    let text = refused(&control, &["change", B.name, "--reconnect", "--groups", "left+right"])?;
    ensure!(text.contains("connect VMs a with c"), "{text}");
    let open = Ledger::read(&mut backend, B.name)?.number("connections_open")?;
    ensure!(open == 1, "{open} connections are open, and the change was refused");

    ctl(&control, &["change", B.name, "--reconnect", "--groups", A.groups])?;
    job::wait_gone(&of_b).context("the host's end of guest b's connection")?;
    ensure!(!Ledger::read(&mut backend, B.name)?.is_connected(), "QEMU has connected again by itself");
    b.device.unplug(&mut b.guest)?;
    ends.finish(&mut b.guest).context("guest b's end, after the device was unplugged")?;
    plug(&b.device, &mut b.guest, b.cid)?;
    pair(&mut a, &mut b, 5000, ("stream", "echo 2"), "exchange 3 65536 1 65536")?;
    pair(&mut b, &mut a, 5001, ("seqpacket", "echo 1"), "exchange-messages 4 1 65536")?;

    job::ask_tokens(&[&of_a], 5).context("guest a's connection")?;
    drop(of_a);
    stays.finish(&mut a.guest)?;
    for vm in [A, B] {
        let ledger = at_rest(&mut backend, vm.name)?;
        check_sound(&ledger).with_context(|| format!("guest {}", vm.name))?;
        ensure!(ledger.number("connections")? == 1, "guest {}: {ledger:?}", vm.name);
    }
    backend.stop()?;
    Ok(String::new())
}
