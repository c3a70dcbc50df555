//! A guest, a namespace and `zerowire net` between them.
//!
//! ```text
//!  guest eth0 10.77.0.2 ── vhost-user ── zerowire net ── tap0 10.77.0.1 (namespace)
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::{self, wait_for};
use zerowire_vmtest::device::NetDevice;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::Env;

use super::ledger::Ledger;

/// The host's end.
pub const HOST: &str = "10.77.0.1";

/// The guest's end.
pub const GUEST: &str = "10.77.0.2";

/// The tap's name in its namespace.
pub const TAP: &str = "tap0";

/// The near end of the veth that takes the tap's place, see [`HostPort`].
pub const VETH: &str = "zw0";

/// The VM's name in the statistics.
pub const NAME: &str = "vm";

/// For the link to work again after a restart. QEMU tries each second at most; TCG
/// guests are slow to answer when two run at once.
pub const LINK: Duration = Duration::from_secs(30);

/// What the back end's frames come out of and go into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPort {
    /// A tap.
    Tap,
    /// A veth in the tap's place. Its far end has the tap's name, and on the near one is a packet
    /// port with this value of `rings`.
    Packet(&'static str),
    /// The same with an AF_XDP port, on a queue of the veth for each queue pair.
    Xdp,
}

/// Features of the device that a guest can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Checksum and segmentation offloads.
    Offloads,
    /// Frames over several receive buffers (VIRTIO_NET_F_MRG_RXBUF).
    Mergeable,
}

/// How a test wants its network.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The host's end.
    pub port: HostPort,
    /// Queue pairs of the device and the tap.
    pub queue_pairs: u16,
    /// MTU of the tap, bytes; the device announces it when it is not 1500.
    pub mtu: u16,
    /// What the metadata service serves, if it runs.
    pub metadata: Option<PathBuf>,
    /// The back end gets a configuration file instead of arguments.
    pub config: bool,
    /// QEMU connects again when the back end comes back.
    pub reconnect: bool,
    /// The back end's control socket, if it has one.
    pub control: Option<PathBuf>,
    /// What the guest is not offered, although the back end has it.
    pub left_out: &'static [LeftOut],
    /// What the guest is offered besides, as properties of QEMU's device: `iommu_platform` for
    /// VIRTIO_F_ACCESS_PLATFORM, `in_order` for VIRTIO_F_IN_ORDER (QEMU 10).
    pub turned_on: &'static [&'static str],
    /// The device's address in the back end's arguments, for front ends that read it.
    pub mac: Option<String>,
    /// The guest sees the state of the port's interface, which isn't a tap.
    pub follow_link: bool,
    /// Further arguments of QEMU.
    pub qemu_arguments: Vec<OsString>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            port: HostPort::Tap,
            queue_pairs: 1,
            mtu: 1500,
            metadata: None,
            config: false,
            reconnect: false,
            control: None,
            left_out: &[],
            turned_on: &[],
            mac: None,
            follow_link: false,
            qemu_arguments: Vec::new(),
        }
    }
}

/// The running whole. Fields are dropped in this order: first QEMU, the namespace
/// last.
#[derive(Debug)]
pub struct Net {
    pub guest: Guest,
    pub backend: BackendProcess,
    pub device: NetDevice,
    /// The guest's name of the interface.
    pub interface: String,
    pub namespace: Netns,
    /// The interface in the namespace that has the host's address.
    pub host_end: &'static str,
    plan: Plan,
    dir: PathBuf,
    starts: u32,
}

impl Net {
    /// Starts everything; both ends have their addresses then.
    pub fn start(env: &Env<'_>, plan: Plan) -> Result<Self> {
        Self::start_in(env, plan, Netns::new()?)
    }

    /// As [`Self::start`], in a namespace that may have interfaces already.
    pub fn start_in(env: &Env<'_>, plan: Plan, namespace: Netns) -> Result<Self> {
        let backend = start_backend(env.dir.into(), &namespace, &plan, 0)?;
        let mut guest = Guest::restore_with(env.lab, env.machine, env.dir, &plan.qemu_arguments)?;
        let device = device(&plan, backend.socket());
        let interface = device.plug(&mut guest)?;
        let (host_end, dir) = (TAP, env.dir.into());
        let mut net = Self { guest, backend, device, interface, namespace, host_end, plan, dir, starts: 1 };
        net.set_guest_address()?;
        Ok(net)
    }

    /// Gives the guest's interface its address.
    pub fn set_guest_address(&mut self) -> Result<()> {
        let interface = &self.interface;
        self.guest.sh(&format!("ip addr add {GUEST}/24 dev {interface} && ip link set {interface} up"))?;
        Ok(())
    }

    /// Kills the back end without warning and starts another one.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.backend.kill();
        let backend = start_backend(self.dir.clone(), &self.namespace, &self.plan, self.starts)?;
        self.backend = backend;
        self.starts += 1;
        Ok(())
    }

    /// The folder of the test.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Waits until the guest reaches the host.
    pub fn wait_for_link(&mut self) -> Result<()> {
        self.guest.until(&format!("ping -c 1 -W 1 {HOST}"), LINK)?;
        Ok(())
    }

    /// Runs a program on the host's end of the link; returns what it prints.
    pub fn on_host(&self, line: &[&str], limit: Duration) -> Result<String> {
        command::output(&mut self.host_command(line)?, limit)
    }

    /// A command for the host's end of the link.
    pub fn host_command(&self, line: &[&str]) -> Result<Command> {
        let (program, arguments) = line.split_first().context("an empty command line")?;
        let mut command = self.namespace.command(program);
        command.args(arguments);
        Ok(command)
    }

    /// Whether the guest and the device agreed on a feature bit.
    pub fn feature(&mut self, bit: usize) -> Result<bool> {
        zerowire_vmtest::device::has_feature(&mut self.guest, &self.interface, bit)
    }

    /// Fails unless the bits are agreed on (or not, as told).
    pub fn expect_features(&mut self, on: bool, bits: &[(usize, &str)]) -> Result<()> {
        for &(bit, name) in bits {
            if self.feature(bit)? != on {
                let state = if on { "off" } else { "on" };
                bail!("feature {name} (bit {bit}) is {state} in the guest");
            }
        }
        Ok(())
    }

    /// The back end's statistics, when every byte is accounted for.
    pub fn ledger(&mut self) -> Result<Ledger> {
        Ledger::at_rest(&mut self.backend, NAME)
    }

    /// Fails unless the back end's own account is in order; returns it.
    pub fn check(&mut self) -> Result<Ledger> {
        let ledger = self.ledger()?;
        ledger.check(&self.plan)?;
        Ok(ledger)
    }

    /// The last check of every test: the back end's own account is in order, and it
    /// ends cleanly.
    pub fn finish(mut self) -> Result<()> {
        self.check()?;
        self.backend.stop()?;
        Ok(())
    }
}

/// Starts `zerowire net` in the namespace and sets its tap up.
fn start_backend(dir: PathBuf, namespace: &Netns, plan: &Plan, number: u32) -> Result<BackendProcess> {
    let socket = dir.join("net");
    let mut port = match plan.port {
        HostPort::Tap => format!("tap:{TAP}"),
        HostPort::Packet(rings) => format!("packet:{VETH},rings={rings}"),
        HostPort::Xdp => format!("xdp:{VETH}"),
    };
    if plan.port != HostPort::Tap {
        if namespace.ip(&["link", "show", "dev", VETH]).is_err() {
            add_veth(namespace, plan)?;
        }
        namespace.ip(&["link", "set", "dev", VETH, "mtu", &plan.mtu.to_string(), "up"])?;
    }
    if plan.follow_link {
        port.push_str(",link=follow");
    }
    if plan.queue_pairs > 1 {
        port.push_str(&format!(",queues={}", plan.queue_pairs));
    }
    let mut command = namespace.command(backend::program()?);
    command.arg("net").arg("--json");
    if plan.config {
        command.arg("--config").arg(write_config(&dir, &socket, &port, plan)?);
    } else {
        command.args(["--name", NAME]).arg("--socket").arg(&socket).arg("--port").arg(port);
        if let Some(file) = &plan.metadata {
            command.arg("--metadata").arg(file);
        }
        if let Some(mac) = &plan.mac {
            command.args(["--mac", mac]);
        }
    }
    if let Some(control) = &plan.control {
        command.arg("--control").arg(control);
    }
    let backend = BackendProcess::start(&mut command, &socket, &dir, &format!("backend{number}"))?;
    wait_for("the back end's tap", LINK, || {
        Ok(namespace.ip(&["link", "show", "dev", TAP]).is_ok().then_some(()))
    })?;
    set_host_up(namespace, plan.mtu)?;
    Ok(backend)
}

/// The veth in the tap's place.
fn add_veth(namespace: &Netns, plan: &Plan) -> Result<()> {
    let pairs = plan.queue_pairs.to_string();
    let queues = ["numtxqueues", &pairs, "numrxqueues", &pairs];
    let (near, far) = (["link", "add", VETH], ["type", "veth", "peer", "name", TAP]);
    namespace.ip(&[&near[..], &queues, &far, &queues].concat())?;
    if plan.port == HostPort::Xdp {
        // A frame of AF_XDP has no place for an unfinished checksum.
        namespace.finish_checksums(TAP)?;
    }
    Ok(())
}

/// Gives the host's end of the link its address.
pub fn set_host_up(namespace: &Netns, mtu: u16) -> Result<()> {
    namespace.ip(&["link", "set", "dev", TAP, "mtu", &mtu.to_string(), "up"])?;
    namespace.ip(&["addr", "replace", &format!("{HOST}/24"), "dev", TAP])?;
    Ok(())
}

/// Runs `zerowire ctl` at a back end's control socket; returns what it prints. The error holds what
/// it says of a request that is refused.
pub fn ctl(control: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new(backend::program()?);
    command.arg("ctl").args(words).arg("--control").arg(control);
    command::output(&mut command, LINK)
}

/// Has `zerowire ctl` ask for a change that must be refused; returns what it says.
pub fn refused(control: &Path, words: &[&str]) -> Result<String> {
    match ctl(control, words) {
        Ok(_) => bail!("it was not refused: {words:?}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

fn write_config(dir: &Path, socket: &Path, port: &str, plan: &Plan) -> Result<PathBuf> {
    let mut text =
        format!("[[vm]]\nname = '{NAME}'\n[vm.net]\nsocket = '{}'\nport = '{port}'\n", socket.display());
    if let Some(file) = &plan.metadata {
        text.push_str(&format!("metadata = '{}'\n", file.display()));
    }
    let path = dir.join("zerowire.toml");
    std::fs::write(&path, text).context("write the configuration file")?;
    Ok(path)
}

/// Writes what the metadata service is to serve into a file in `dir`.
pub fn write_metadata(dir: &Path, tree: &serde_json::Value) -> Result<PathBuf> {
    let path = dir.join("metadata.json");
    std::fs::write(&path, tree.to_string()).context("write the metadata")?;
    Ok(path)
}

fn device(plan: &Plan, socket: &std::path::Path) -> NetDevice {
    let mut device = NetDevice::new("net0", socket).queue_pairs(plan.queue_pairs);
    if plan.reconnect {
        device = device.reconnect();
    }
    for feature in plan.left_out {
        device = match feature {
            LeftOut::Offloads => device.no_offloads(),
            LeftOut::Mergeable => device.property("mrg_rxbuf", false),
        };
    }
    if plan.mtu != 1500 {
        device = device.property("host_mtu", plan.mtu);
    }
    for property in plan.turned_on {
        device = device.property(property, true);
    }
    device
}
