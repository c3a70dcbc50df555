//! A guest and `zerowire vsock`.
//!
//! ```text
//!  guest, CID 77: zw-vsock ── vhost-user ── zerowire vsock ── unix sockets ── this program
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire::recv::vsock::{Error, MappedListener, MappedOptions};
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::remote::{self, Background};
use zerowire_vmtest::vsock_device::VsockDevice;

use crate::checks::ledger::Ledger;
use crate::checks::traffic::Way;

/// The guest's address.
pub const CID: u32 = 77;

/// The host's address (virtio 1.3, section 5.10.4).
pub const HOST: u32 = 2;

/// How long a child may take from fork(2) to execve(2), on a busy machine.
const EXECVE: Duration = Duration::from_secs(2);

/// The VM's name in the statistics.
pub const NAME: &str = "vm";

/// The running whole. Fields are dropped in this order.
#[derive(Debug)]
pub struct Vsock {
    pub guest: Guest,
    pub backend: BackendProcess,
    pub device: VsockDevice,
    uds: PathBuf,
    dir: PathBuf,
    /// The back end's arguments beside those that every one has.
    arguments: Vec<String>,
    starts: u32,
}

impl Vsock {
    /// Starts everything; the guest has its CID then.
    pub fn start(env: &Env<'_>) -> Result<Self> {
        Self::start_with(env, &[])
    }

    /// As [`Self::start`], the back end with these arguments beside its own.
    pub fn start_with(env: &Env<'_>, arguments: &[&str]) -> Result<Self> {
        Self::start_device(env, arguments, |device| device)
    }

    /// As [`Self::start_with`], with another device than the ordinary one.
    pub fn start_device(
        env: &Env<'_>,
        arguments: &[&str],
        make: impl FnOnce(VsockDevice) -> VsockDevice,
    ) -> Result<Self> {
        let uds = env.dir.join("uds");
        let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let backend = start_backend(env.dir, &uds, 0, &arguments)?;
        let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
        let device = make(VsockDevice::new("vsock0", backend.socket()));
        plug(&device, &mut guest, CID)?;
        Ok(Self { guest, backend, device, uds, dir: env.dir.into(), arguments, starts: 1 })
    }

    /// The path that the host's sockets are named after.
    pub fn uds(&self) -> PathBuf {
        self.uds.clone()
    }

    /// Listens for mapped connections of the guest. The listener before may still stand in a child
    /// that another check has forked and that has not called execve(2) yet.
    pub fn listen_mapped(&self, port: u32, options: &MappedOptions) -> Result<MappedListener> {
        let path = PathBuf::from(format!("{}.map", self.uds.display()));
        wait_for("the port is free", EXECVE, || match MappedListener::bind(&path, port, options) {
            Err(Error::PortTaken { .. }) => Ok(None),
            bound => Ok(Some(bound?)),
        })
    }

    /// Kills the back end without warning and starts another one with the same arguments.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.backend.kill();
        self.start_next()
    }

    fn start_next(&mut self) -> Result<()> {
        self.backend = start_backend(&self.dir, &self.uds, self.starts, &self.arguments)?;
        self.starts += 1;
        Ok(())
    }

    /// Goes on with a device of another back end, which has these arguments beside its own. The old
    /// one's account must be in order.
    pub fn replace(&mut self, arguments: &[&str]) -> Result<()> {
        check_sound(&self.ledger()?)?;
        self.device.unplug(&mut self.guest)?;
        self.backend.stop()?;
        self.arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        self.start_next()?;
        self.plug()
    }

    /// Plugs the device again.
    pub fn plug(&mut self) -> Result<()> {
        plug(&self.device, &mut self.guest, CID)
    }

    /// Runs a job in the guest while `host` does its part here.
    pub fn with_host<T: Send>(
        &mut self,
        line: &str,
        host: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(String, T)> {
        let guest = &mut self.guest;
        let result = together(host, || remote::run(guest, line));
        if result.is_err() {
            self.note_statistics();
        }
        result.with_context(|| line.to_owned())
    }

    /// Runs a job that listens in the guest while `host` does its part here.
    pub fn with_listener<T>(&mut self, line: &str, host: impl FnOnce() -> Result<T>) -> Result<T> {
        let job = Background::listen(&mut self.guest, line)?;
        let result = host();
        if result.is_err() {
            self.note_statistics();
            return result.with_context(|| format!("the host's end of `{line}`"));
        }
        job.finish(&mut self.guest)?;
        result
    }

    /// Lets the back end say where it is: a failed test shows its output.
    fn note_statistics(&mut self) {
        if let Err(error) = self.backend.statistics() {
            eprintln!("no statistics after a failure: {error:#}");
        }
    }

    /// The back end's statistics, when every byte is accounted for and no connection is
    /// open.
    pub fn ledger(&mut self) -> Result<Ledger> {
        at_rest(&mut self.backend, NAME)
    }

    /// The statistics now.
    pub fn ledger_now(&mut self) -> Result<Ledger> {
        Ledger::read(&mut self.backend, NAME)
    }

    /// The last check of every test: the back end's own account is in order, and it
    /// ends cleanly.
    pub fn finish(mut self) -> Result<()> {
        check_sound(&self.ledger()?)?;
        self.backend.stop()?;
        Ok(())
    }
}

/// Plugs a device that must show this CID.
pub fn plug(device: &VsockDevice, guest: &mut Guest, cid: u32) -> Result<()> {
    let seen = device.plug(guest)?;
    ensure!(seen == cid, "the guest says that its CID is {seen}, not {cid}");
    Ok(())
}

/// Runs both at once: the host's part in a thread of its own.
pub fn together<G, H: Send>(
    host: impl FnOnce() -> Result<H> + Send,
    guest: impl FnOnce() -> Result<G>,
) -> Result<(G, H)> {
    std::thread::scope(|scope| {
        let host = scope.spawn(host);
        let guest = guest();
        let host = host.join().unwrap_or_else(|_| bail!("it panicked")).context("the host's end");
        match (guest, host) {
            (Ok(guest), Ok(host)) => Ok((guest, host)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(guest), Err(host)) => Err(guest.context(format!("{host:#}"))),
        }
    })
}

/// A VM's statistics when nothing is on its way.
pub fn at_rest(backend: &mut BackendProcess, name: &str) -> Result<Ledger> {
    let mut open = 0;
    let found = wait_for("the end of all connections in the statistics", COMMAND, || {
        let ledger = Ledger::at_rest(backend, name)?;
        open = ledger.number("connections_open")?;
        Ok((open == 0).then_some(ledger))
    });
    found.with_context(|| format!("{open} connections are open"))
}

/// Waits until no more bytes of a VM move this way, once some have; the statistics then.
pub fn wait_until_still(
    backend: &mut BackendProcess,
    name: &str,
    way: Way,
    before: &Ledger,
) -> Result<Ledger> {
    /// Looks in a row that see the same; each takes 10 ms and an answer of the back end.
    const LOOKS: u32 = 20;
    let (mut moved, mut looks) = (0, 0);
    wait_for("the transfer to wait for its reader", COMMAND, || {
        let ledger = Ledger::read(backend, name)?;
        let now = ledger.grown(before, way, "bytes")?;
        looks = if now == moved && now > 0 { looks + 1 } else { 0 };
        moved = now;
        Ok((looks == LOOKS).then_some(ledger))
    })
}

/// Fails unless a guest's driver runs the device and nobody broke a rule.
pub fn check_sound(ledger: &Ledger) -> Result<()> {
    // Not the device status: QEMU 10 sets no more than FEATURES_OK of a device whose
    // last queue the back end does not serve (`vhost_user_dev_start` in
    // hw/virtio/vhost-user.c).
    ledger.check_clean()?;
    ledger.check_dropped()?;
    ensure!(ledger.number("bad_handshakes")? == 0, "bad_handshakes in {ledger:?}");
    ledger.expect(&["VERSION_1", "RING_EVENT_IDX", "RING_INDIRECT_DESC", "VSOCK_SEQPACKET"], true)
}

/// Starts a back end of several VMs, each with its name and other keys. In the folder a VM's socket
/// has its name, and the host's sockets are named after `NAME.uds`.
pub fn start_vms(
    dir: &Path,
    vms: &[(&str, String)],
    arguments: &[&str],
    log: &str,
) -> Result<BackendProcess> {
    let mut command = Command::new(backend::program()?);
    command.args(["vsock", "--json"]).args(arguments);
    for (name, keys) in vms {
        let (socket, uds) = (dir.join(name), uds_of(dir, name));
        let vm = format!("name={name},{keys},socket={},uds={}", socket.display(), uds.display());
        command.arg("--vm").arg(vm);
    }
    let mut backend = BackendProcess::start(&mut command, &dir.join(vms[0].0), dir, log)?;
    wait_for("the other sockets", COMMAND, || {
        backend.check_alive()?;
        Ok(vms.iter().all(|(name, _)| dir.join(name).exists()).then_some(()))
    })?;
    Ok(backend)
}

/// The path that the host's sockets of one of several VMs are named after.
pub fn uds_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.uds"))
}

fn start_backend(dir: &Path, uds: &Path, number: u32, arguments: &[String]) -> Result<BackendProcess> {
    let socket = dir.join("vsock");
    let mut command = Command::new(backend::program()?);
    command.args(["vsock", "--json", "--name", NAME, "--cid", &CID.to_string()]);
    command.arg("--socket").arg(&socket).arg("--uds").arg(uds).args(arguments);
    BackendProcess::start(&mut command, &socket, dir, &format!("backend{number}"))
}
