//! vhost-user-net devices, plugged into a running guest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::assets::Qemu;
use crate::guest::{COMMAND, Guest};

/// Offload properties of `virtio-net-pci` that both QEMUs know.
const OFFLOADS: &[&str] = &[
    "csum",
    "guest_csum",
    "gso",
    "guest_tso4",
    "guest_tso6",
    "guest_ecn",
    "guest_ufo",
    "host_tso4",
    "host_tso6",
    "host_ecn",
    "host_ufo",
];

/// Those that QEMU 7.2 does not know.
const OFFLOADS_V10: &[&str] = &["host_uso", "guest_uso4", "guest_uso6"];

/// A device to plug: a socket to the back end and properties.
#[derive(Clone, Debug)]
pub struct NetDevice {
    id: String,
    socket: PathBuf,
    queue_pairs: u16,
    reconnect: bool,
    offloads: bool,
    properties: Map<String, Value>,
}

impl NetDevice {
    /// One queue pair, everything on that the back end offers.
    pub fn new(id: &str, socket: &Path) -> Self {
        Self {
            id: id.to_owned(),
            socket: socket.to_owned(),
            queue_pairs: 1,
            reconnect: false,
            offloads: true,
            properties: Map::new(),
        }
    }

    /// The number of queue pairs.
    pub fn queue_pairs(mut self, pairs: u16) -> Self {
        self.queue_pairs = pairs;
        self
    }

    /// QEMU connects again by itself when the back end was gone.
    pub fn reconnect(mut self) -> Self {
        self.reconnect = true;
        self
    }

    /// Turns checksum and segmentation offloads off for the guest.
    pub fn no_offloads(mut self) -> Self {
        self.offloads = false;
        self
    }

    /// Sets a property of `virtio-net-pci`.
    pub fn property(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.properties.insert(name.to_owned(), value.into());
        self
    }

    /// The device's own name in QEMU.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Connects QEMU to the back end, without a device yet: features are exchanged,
    /// the guest sees nothing.
    ///
    /// # Errors
    /// QEMU can't connect.
    pub fn connect(&self, guest: &mut Guest) -> Result<()> {
        let chardev = self.chardev();
        add_socket(guest, &chardev, &self.socket, self.reconnect)?;
        guest.qmp.execute(
            "netdev_add",
            json!({
                "type": "vhost-user", "id": self.netdev(), "chardev": chardev,
                "queues": self.queue_pairs,
            }),
        )?;
        Ok(())
    }

    /// Takes back [`NetDevice::connect`]; the back end sees the connection end. The
    /// socket's own object goes with the network one.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn disconnect(&self, guest: &mut Guest) -> Result<()> {
        guest.qmp.execute("netdev_del", json!({"id": self.netdev()}))?;
        Ok(())
    }

    /// Connects, plugs the device and waits until the guest has its interface;
    /// returns the interface's name.
    ///
    /// # Errors
    /// QEMU refuses, or the guest's driver does not take the device.
    pub fn plug(&self, guest: &mut Guest) -> Result<String> {
        self.connect(guest)?;
        let port = guest.take_port(&self.id)?;
        guest.qmp.execute("device_add", self.arguments(guest.machine().qemu, &port))?;
        interface(guest, &self.mac())
    }

    /// The device at a port of a machine that starts, as arguments of QEMU: for a machine that a
    /// guest with this device migrates to.
    pub fn command_line(&self, qemu: Qemu, port: &str) -> Vec<std::ffi::OsString> {
        let chardev = format!("socket,id={},path={}", self.chardev(), self.socket.display());
        let netdev =
            format!("vhost-user,id={},chardev={},queues={}", self.netdev(), self.chardev(), self.queue_pairs);
        let device = self.arguments(qemu, port).to_string();
        ["-chardev", &chardev, "-netdev", &netdev, "-device", &device].map(Into::into).into()
    }

    /// Unplugs the device, waits until the guest has let it go, and disconnects.
    ///
    /// # Errors
    /// The guest keeps it.
    pub fn unplug(&self, guest: &mut Guest) -> Result<()> {
        guest.unplug(&self.id)?;
        self.disconnect(guest)
    }

    /// The address in the device's configuration: locally administered, and the same
    /// for the same id.
    pub fn mac(&self) -> String {
        let sum = self.id.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        format!("52:54:00:77:00:{sum:02x}")
    }

    fn chardev(&self) -> String {
        format!("{}-socket", self.id)
    }

    fn netdev(&self) -> String {
        format!("{}-net", self.id)
    }

    fn arguments(&self, qemu: Qemu, port: &str) -> Value {
        let mut arguments = json!({
            "driver": "virtio-net-pci", "id": self.id, "netdev": self.netdev(), "bus": port,
            "mac": self.mac(), "romfile": "", "mq": self.queue_pairs > 1,
        });
        if qemu == Qemu::V7_2 {
            arguments["vectors"] = json!(0);
        }
        if !self.offloads {
            let more = if qemu == Qemu::V7_2 { &[] } else { OFFLOADS_V10 };
            for name in OFFLOADS.iter().chain(more) {
                arguments[*name] = json!(false);
            }
        }
        for (name, value) in &self.properties {
            arguments[name] = value.clone();
        }
        arguments
    }
}

/// Connects QEMU to a back end's socket. With `reconnect` it connects again when the back end was
/// gone.
pub(crate) fn add_socket(guest: &mut Guest, id: &str, path: &Path, reconnect: bool) -> Result<()> {
    let mut data = json!({"addr": {"type": "unix", "data": {"path": path}}, "server": false});
    if reconnect {
        match guest.machine().qemu {
            Qemu::V7_2 => data["reconnect"] = json!(1),
            Qemu::V10 => data["reconnect-ms"] = json!(500),
        }
    }
    let backend = json!({"type": "socket", "data": data});
    guest.qmp.execute("chardev-add", json!({"id": id, "backend": backend}))?;
    Ok(())
}

/// Waits until the guest has an interface with this MAC address; returns its name.
///
/// # Errors
/// The guest's driver does not take the device.
pub fn interface(guest: &mut Guest, mac: &str) -> Result<String> {
    let found = format!("read -r mac <$d/address && [ \"$mac\" = {mac} ] && echo ${{d##*/}} && exit");
    guest
        .until(&format!("for d in /sys/class/net/*; do {found}; done; false"), COMMAND)
        .with_context(|| format!("the guest's interface with MAC address {mac}"))
}

/// Whether the guest's driver and the device agreed on a feature bit (virtio 1.3,
/// section 5.1.3 for network devices).
///
/// # Errors
/// The interface is none of a virtio device.
pub fn has_feature(guest: &mut Guest, interface: &str, bit: usize) -> Result<bool> {
    let features = guest.sh(&format!("cat /sys/class/net/{interface}/device/features"))?;
    let bits = features.trim().as_bytes();
    bits.get(bit)
        .map(|&digit| digit == b'1')
        .with_context(|| format!("{interface} shows no feature bit {bit}: '{features}'"))
}
