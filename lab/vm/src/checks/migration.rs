//! A guest moves from one QEMU to another while a TCP connection to it is busy.
//!
//! ```text
//!              ┌─ QEMU ── zerowire net ── porta ─┐
//!  the guest ──┤                                 ├─ br0 10.77.0.1 (one namespace) ── this program
//!              └─ QEMU ── zerowire net ── portb ─┘
//! ```
//! The ports are taps in the bridge, or one end each of a veth pair, by AF_XDP, whose other end is
//! in the bridge.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with};
use serde_json::json;
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::device::NetDevice;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::pattern::Pattern;
use zerowire_vmtest::vsock_device::VsockDevice;

use super::ledger::Ledger;
use super::setup::{GUEST, HOST, LINK};
use super::traffic::Way;

/// A busy guest of 320 MiB, sent as fast as it goes.
const MIGRATION: Duration = Duration::from_secs(120);

/// The connection waits while the guest is between two machines.
const STALL: Duration = Duration::from_secs(60);

/// The echo server's port in the guest.
const PORT: u16 = 7000;

/// What is sent at once, bytes, and how often: some MB a second, which leaves an emulated guest
/// time for itself.
const CHUNK_BYTES: usize = 24 << 10;
const PACE: Duration = Duration::from_millis(8);

/// What must have come back before the next step, bytes.
const STEP_BYTES: u64 = 2 << 20;

/// Slow, so that the guest works for a while with its writes noted; then as fast as it goes.
const SLOW: u64 = 1 << 20;
const FAST: u64 = 2 << 30;

/// The guest's address on the vsock.
const CID: u32 = 77;

/// What the back ends have for a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MigrationPort {
    Tap,
    Xdp,
}

/// When the guest goes on at its new place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    /// When all of its memory is there.
    Behind,
    /// Before its memory is there (post-copy).
    Ahead,
}

/// [`under_load`] with taps; and what QEMU says of a vsock device.
pub fn over_a_tap(env: &Env<'_>) -> Result<String> {
    under_load(env, MigrationPort::Tap, Switch::Behind)
}

/// [`under_load`] with taps, by post-copy.
pub fn postcopy(env: &Env<'_>) -> Result<String> {
    under_load(env, MigrationPort::Tap, Switch::Ahead)
}

/// [`under_load`] with the guest's memory as AF_XDP's, which rules out post-copy.
pub fn over_xdp(env: &Env<'_>) -> Result<String> {
    under_load(env, MigrationPort::Xdp, Switch::Behind)
}

/// Moves a guest with a busy connection, whose every byte is checked, there and back.
fn under_load(env: &Env<'_>, port: MigrationPort, switch: Switch) -> Result<String> {
    let namespace = Netns::new()?;
    namespace.ip(&["link", "add", "br0", "type", "bridge"])?;
    namespace.ip(&["addr", "add", &format!("{HOST}/24"), "dev", "br0"])?;
    namespace.ip(&["link", "set", "br0", "up"])?;
    let mut hosts = [start(env.dir, &namespace, port, "a")?, start(env.dir, &namespace, port, "b")?];
    let devices = hosts.each_ref().map(|host| NetDevice::new("net0", host.socket()));

    let mut guest = Guest::restore(env.lab, env.machine, &folder(env.dir, "qemu0")?)?;
    let interface = devices[0].plug(&mut guest)?;
    guest.sh(&format!("ip addr add {GUEST}/24 dev {interface} && ip link set {interface} up"))?;
    guest.until(&format!("ping -c 1 -W 1 {HOST}"), LINK)?;
    if (port, switch) == (MigrationPort::Tap, Switch::Behind) {
        stays_with_vsock(env.dir, &mut guest)?;
    }

    guest.sh(&format!("zw-vsock tcp-echo {PORT} >/tmp/echo.log 2>&1 &"))?;
    guest.until("grep -q listening /tmp/echo.log", COMMAND)?;
    let announcements = namespace.inside(announcements)?;
    let stream = namespace.inside(|| {
        let to: SocketAddr = format!("{GUEST}:{PORT}").parse()?;
        TcpStream::connect_timeout(&to, COMMAND).with_context(|| format!("connect to {to}"))
    })?;
    let load = Load::default();
    std::thread::scope(|scope| {
        let ends = [scope.spawn(|| load.send(&stream)), scope.spawn(|| load.receive(&stream))];
        let moved = (1..=2).try_for_each(|round| {
            let (from, to) = ((round + 1) % 2, round % 2);
            let dir = folder(env.dir, &format!("qemu{round}"))?;
            let line = devices[to].command_line(env.machine.qemu, "port0");
            let mut next = Guest::await_migration(env.lab, env.machine, &dir, &[devices[to].id()], &line)?;
            allow_postcopy(port, switch, &mut guest, &mut next)?;
            move_over(&mut guest, &mut next, &mut hosts[from], &dir.join("migration"), switch, &load)
                .with_context(|| format!("migration {round}"))?;
            // The machine that the guest has left goes.
            guest = next;
            load.wait_for_more().with_context(|| format!("behind migration {round}"))?;
            let mac = announced(&announcements)?;
            ensure!(mac == devices[to].mac(), "migration {round}: {mac} was announced");
            Ok(())
        });
        load.stop.store(true, Ordering::Release);
        let ends = ends.map(|end| end.join().unwrap_or_else(|_| bail!("it panicked")));
        ends.into_iter().collect::<Result<Vec<()>>>().context("this end of the connection")?;
        moved
    })?;
    guest.until("grep -q '^ok ' /tmp/echo.log", COMMAND).context("the guest's end of the connection")?;
    let (sent, bytes) = (load.sent.load(Ordering::Acquire), load.received.load(Ordering::Acquire));
    ensure!(sent == bytes, "{sent} bytes were sent, and {bytes} came back");
    guest.sh(&format!("ping -c 3 -i 0.1 -W 5 {HOST}"))?;
    hosts.iter_mut().try_for_each(moved_without_errors)?;
    drop(guest);
    for mut host in hosts {
        host.stop()?;
    }
    Ok(format!("{} MiB echoed across two migrations", bytes >> 20))
}

/// Has QEMU switch ahead of the pages, where `switch` wants that; over AF_XDP it must refuse.
fn allow_postcopy(port: MigrationPort, switch: Switch, guest: &mut Guest, next: &mut Guest) -> Result<()> {
    match (port, switch) {
        (_, Switch::Ahead) => [guest, next].into_iter().try_for_each(Guest::allow_postcopy),
        (MigrationPort::Xdp, Switch::Behind) => {
            ensure!(next.allow_postcopy().is_err(), "QEMU takes an xdp port for one that waits for pages");
            Ok(())
        }
        (MigrationPort::Tap, Switch::Behind) => Ok(()),
    }
}

/// A back end has moved frames to the guest, and no ring or connection of it broke.
fn moved_without_errors(host: &mut BackendProcess) -> Result<()> {
    let ledger = Ledger::at_rest(host, "vm")?;
    for name in ["ring_errors", "connection_errors"] {
        ensure!(ledger.number(name)? == 0, "{name} in {ledger:?}");
    }
    ensure!(ledger.count(Way::ToGuest, "bytes")? > STEP_BYTES, "little to the guest: {ledger:?}");
    Ok(())
}

/// Moves the guest from one machine to another, whose connection is a unix socket at `path`. It is
/// slow until the guest has worked with its writes noted, by `host`, for a while.
fn move_over(
    from: &mut Guest,
    to: &mut Guest,
    host: &mut BackendProcess,
    path: &Path,
    switch: Switch,
    load: &Load,
) -> Result<()> {
    load.wait_for_more()?;
    from.start_migration(to, path, SLOW)?;
    wait_for("the back end to note its writes", COMMAND, || {
        Ok(Ledger::read(host, "vm")?.expect(&["VHOST_LOG_ALL"], true).is_ok().then_some(()))
    })?;
    load.wait_for_more().context("while writes are noted")?;
    ensure!(!from.has_migrated()?, "it migrated before its time");
    if switch == Switch::Ahead {
        from.start_postcopy()?;
    }
    from.limit_migration(FAST)?;
    wait_for("the migration", MIGRATION, || Ok(from.has_migrated()?.then_some(())))?;
    if switch == Switch::Ahead {
        ensure!(from.postcopy_requests()? > 0, "all memory was there before the guest");
    }
    to.wait_migrated(COMMAND)
}

/// QEMU does not migrate a vhost-user vsock device. It says so, and the guest works on. When the
/// device is unplugged nothing is in the way.
fn stays_with_vsock(dir: &Path, guest: &mut Guest) -> Result<()> {
    let dir = folder(dir, "vsock")?;
    let socket = dir.join("vsock");
    let mut command = Command::new(backend::program()?);
    command.args(["vsock", "--json", "--name", "vm", "--cid", &CID.to_string()]);
    command.arg("--socket").arg(&socket).arg("--uds").arg(dir.join("uds"));
    let mut host = BackendProcess::start(&mut command, &socket, &dir, "backend")?;
    let device = VsockDevice::new("vsock0", &socket);
    ensure!(device.plug(guest)? == CID, "the guest's CID");
    let uri = format!("unix:{}", dir.join("nobody").display());
    match guest.qmp.execute("migrate", json!({"uri": uri})) {
        Ok(_) => bail!(
            "QEMU migrates a vhost-user vsock device: this test, and docs/migration.md, say that it does not"
        ),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains("non-migratable") && text.contains("vsock"), "QEMU's refusal: {text}");
        }
    }
    host.check_alive()?;
    device.unplug(guest)?;
    host.stop()?;
    Ok(())
}

/// Starts a back end whose port leads into the bridge.
fn start(dir: &Path, namespace: &Netns, port: MigrationPort, name: &str) -> Result<BackendProcess> {
    let dir = folder(dir, &format!("host-{name}"))?;
    let (socket, interface) = (dir.join("net"), format!("port{name}"));
    let mut command = namespace.command(backend::program()?);
    command.args(["net", "--json", "--postcopy", "--name", "vm"]).arg("--socket").arg(&socket);
    let in_bridge = match port {
        MigrationPort::Tap => {
            command.args(["--port", &format!("tap:{interface}")]);
            interface
        }
        MigrationPort::Xdp => {
            let peer = format!("peer{name}");
            namespace.ip(&["link", "add", &interface, "type", "veth", "peer", "name", &peer])?;
            namespace.ip(&["link", "set", "dev", &interface, "up"])?;
            // A frame of AF_XDP has no place for an unfinished checksum.
            namespace.finish_checksums(&peer)?;
            command.args(["--port", &format!("xdp:{interface}")]);
            peer
        }
    };
    let backend = BackendProcess::start(&mut command, &socket, &dir, "backend")?;
    wait_for("the back end's port", LINK, || {
        Ok(namespace.ip(&["link", "show", "dev", &in_bridge]).is_ok().then_some(()))
    })?;
    namespace.ip(&["link", "set", "dev", &in_bridge, "master", "br0", "up"])?;
    Ok(backend)
}

fn folder(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}

/// A socket that gets all RARP frames of the namespace.
fn announcements() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::RARP)).context("a packet socket")
}

/// The address that the last announcement was about.
fn announced(socket: &OwnedFd) -> Result<String> {
    let mut last = None;
    wait_for("the announcement of the guest's new place", COMMAND, || {
        let mut frame = [0; 64];
        while let Ok((n, _)) = recv(socket, &mut frame[..], RecvFlags::empty()) {
            ensure!(n >= 42 && frame[..6] == [0xff; 6], "a RARP frame: {:x?}", &frame[..n]);
            let mac: Vec<_> = frame[22..28].iter().map(|byte| format!("{byte:02x}")).collect();
            last = Some(mac.join(":"));
        }
        Ok(last.clone())
    })
}

/// What goes through the connection: a pattern that the guest sends back.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Load {
    const SEED: u64 = 41;

    /// Sends until told to stop, and ends the data then.
    fn send(&self, mut stream: &TcpStream) -> Result<()> {
        stream.set_write_timeout(Some(STALL))?;
        let pattern = Pattern::new(Self::SEED);
        let mut chunk = vec![0; CHUNK_BYTES];
        while !self.stop.load(Ordering::Acquire) {
            let sent = self.sent.load(Ordering::Relaxed);
            pattern.fill(sent, &mut chunk);
            stream.write_all(&chunk).with_context(|| format!("behind {sent} bytes sent"))?;
            self.sent.store(sent + CHUNK_BYTES as u64, Ordering::Release);
            std::thread::sleep(PACE);
        }
        stream.shutdown(Shutdown::Write).context("end the data")
    }

    /// Checks what comes back, to its end.
    fn receive(&self, mut stream: &TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(STALL))?;
        let pattern = Pattern::new(Self::SEED);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let at = self.received.load(Ordering::Relaxed);
            let n = stream.read(&mut buffer).with_context(|| format!("behind {at} bytes received"))?;
            if n == 0 {
                return Ok(());
            }
            if let Some(place) = pattern.first_difference(at, &buffer[..n]) {
                bail!("byte {place} is wrong (a read of {n} bytes at {at})");
            }
            self.received.store(at + n as u64, Ordering::Release);
        }
    }

    /// Waits until some more has come back.
    fn wait_for_more(&self) -> Result<()> {
        let wanted = self.received.load(Ordering::Acquire) + STEP_BYTES;
        wait_for("more bytes to come back", STALL, || {
            Ok((self.received.load(Ordering::Acquire) >= wanted).then_some(()))
        })
    }
}
