//! vhost-user-vsock devices, plugged into a running guest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::wait_for;
use crate::device::add_socket;
use crate::guest::{COMMAND, Guest};

/// A device to plug: a socket to the back end, which also tells the CID.
#[derive(Clone, Debug)]
pub struct VsockDevice {
    id: String,
    socket: PathBuf,
    reconnect: bool,
    in_order: bool,
}

impl VsockDevice {
    /// A device with the name `id` in QEMU.
    pub fn new(id: &str, socket: &Path) -> Self {
        Self { id: id.to_owned(), socket: socket.to_owned(), reconnect: false, in_order: false }
    }

    /// QEMU connects again by itself when the back end was gone.
    pub fn reconnect(self) -> Self {
        Self { reconnect: true, ..self }
    }

    /// QEMU offers VIRTIO_F_IN_ORDER if the back end does; not before QEMU 10.
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Connects QEMU to the back end, plugs the device and waits until the guest's
    /// driver has it; returns the CID that the guest sees.
    ///
    /// # Errors
    /// QEMU refuses, or the guest's driver does not take the device.
    pub fn plug(&self, guest: &mut Guest) -> Result<u32> {
        self.plug_second(guest)?;
        guest
            .until("ls /sys/bus/virtio/drivers/vmw_vsock_virtio_transport | grep -q ^virtio", COMMAND)
            .context("the guest's vsock device")?;
        let answer = guest.sh("zw-vsock cid")?;
        let cid = answer.strip_prefix("ok ").and_then(|cid| cid.parse().ok());
        cid.with_context(|| format!("the guest says of its CID: {answer}"))
    }

    /// Connects QEMU to the back end and plugs the device, of which the guest's
    /// driver takes no more than one.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn plug_second(&self, guest: &mut Guest) -> Result<()> {
        add_socket(guest, &self.chardev(), &self.socket, self.reconnect)?;
        if self.reconnect {
            // QEMU connects in the background then, and its vsock device does not wait for that.
            wait_for("QEMU's connection", COMMAND, || {
                let all = guest.qmp.execute("query-chardev", json!({}))?;
                let mut all = all.as_array().into_iter().flatten();
                let ours = all.find(|chardev| chardev["label"] == self.chardev().as_str());
                let file = ours.and_then(|chardev| chardev["filename"].as_str()).unwrap_or("disconnected:");
                Ok((!file.starts_with("disconnected:")).then_some(()))
            })?;
        }
        let port = guest.take_port(&self.id)?;
        guest.qmp.execute("device_add", self.arguments(&port))?;
        Ok(())
    }

    /// Unplugs the device, waits until the guest has let it go, and hangs up.
    ///
    /// # Errors
    /// The guest keeps it.
    pub fn unplug(&self, guest: &mut Guest) -> Result<()> {
        guest.unplug(&self.id)?;
        guest.qmp.execute("chardev-remove", json!({"id": self.chardev()}))?;
        Ok(())
    }

    fn chardev(&self) -> String {
        format!("{}-socket", self.id)
    }

    fn arguments(&self, port: &str) -> Value {
        let mut arguments = json!({
            "driver": "vhost-user-vsock-pci", "id": self.id, "chardev": self.chardev(), "bus": port,
        });
        if self.in_order {
            arguments["in_order"] = json!(true);
        }
        arguments
    }
}
