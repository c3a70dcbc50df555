//! virtio-balloon devices, plugged into a running guest: QEMU takes pages away from it, which it
//! punches out of the memory's file.

use anyhow::{Context, Result};
use serde_json::json;

use crate::command::wait_for;
use crate::guest::{COMMAND, Guest};

/// The device's name in QEMU, which allows one of them.
const ID: &str = "balloon0";

/// Plugs a balloon, empty. With `reports` the guest tells of memory that it does not use, which
/// goes at once.
///
/// # Errors
/// QEMU refuses, or the guest's driver does not take the device.
pub fn plug(guest: &mut Guest, reports: bool) -> Result<()> {
    let port = guest.take_port(ID)?;
    guest.qmp.execute(
        "device_add",
        json!({"driver": "virtio-balloon-pci", "id": ID, "bus": port, "free-page-reporting": reports}),
    )?;
    guest.until(
        "grep . /sys/bus/virtio/drivers/virtio_balloon/virtio*/status | grep -i 0x0000000f",
        COMMAND,
    )?;
    Ok(())
}

/// Unplugs it; the guest gets its memory back.
///
/// # Errors
/// The guest keeps it.
pub fn unplug(guest: &mut Guest) -> Result<()> {
    guest.unplug(ID)
}

/// Has the guest keep `mib` MiB of its memory, and waits until it does.
///
/// # Errors
/// It does not.
pub fn leave(guest: &mut Guest, mib: u32) -> Result<()> {
    let bytes = u64::from(mib) << 20;
    guest.qmp.execute("balloon", json!({"value": bytes}))?;
    wait_for("the balloon's size", COMMAND, || {
        let now = guest.qmp.execute("query-balloon", json!({}))?;
        let actual = now["actual"].as_u64().with_context(|| format!("no actual in {now}"))?;
        Ok((actual == bytes).then_some(()))
    })
}
