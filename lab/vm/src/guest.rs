//! A running guest.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use serde_json::json;

use crate::assets::Qemu;
use crate::command::{Running, wait_for};
use crate::lab::Lab;
use crate::machine::{Machine, PORTS, SERIAL};
use crate::qmp::Qmp;
use crate::runner::{EmulatorBroke, NeverBooted};
use crate::serial::{Output, Serial, Silent};

/// A cold boot takes 5 to 8 s; two at once on a busy machine several times that.
pub const BOOT: Duration = Duration::from_secs(90);

/// Reading a saved state takes 0.3 s.
const RESTORE: Duration = Duration::from_secs(30);

/// How often a guest is restored until one answers.
const RESTORE_ATTEMPTS: u32 = 3;

/// For the first answer of a restored guest.
const WAKE: Duration = Duration::from_secs(10);

/// From QEMU's closing of its sockets to its end.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// For commands that do no lasting work.
pub const COMMAND: Duration = Duration::from_secs(20);

/// How long a guest may take to give a device back.
const UNPLUG: Duration = Duration::from_secs(20);

/// How many requests for one it gets.
const UNPLUG_REQUESTS: u32 = 3;

/// A guest under QEMU. QEMU is killed on drop.
#[derive(Debug)]
pub struct Guest {
    process: Running,
    serial: Serial,
    /// Control of the machine.
    pub qmp: Qmp,
    machine: Machine,
    ports: [Option<String>; PORTS],
    /// From the start of QEMU to the first command.
    pub started_in: Duration,
}

impl Guest {
    /// Boots the kernel from the beginning. Sockets and logs go to `dir`.
    ///
    /// # Errors
    /// QEMU does not start or the guest does not reach its shell.
    pub fn boot(lab: &Lab, machine: Machine, dir: &Path) -> Result<Self> {
        Self::boot_from(lab, machine, dir, &lab.initrd(machine.kernel)?, &[], BOOT)
    }

    /// As [`Guest::boot`], with another initial RAM disk, further arguments of QEMU, and another
    /// limit.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_from(
        lab: &Lab,
        machine: Machine,
        dir: &Path,
        initrd: &Path,
        more: &[OsString],
        limit: Duration,
    ) -> Result<Self> {
        let begin = Instant::now();
        let mut guest = Self::start(lab, machine, dir, initrd, None, more)?;
        let release = guest.serial.wait_ready(limit).context(NeverBooted)?;
        let wanted = lab.assets.kernel(machine.kernel)?.release;
        if release != wanted {
            bail!("the guest runs Linux {release}, {wanted} was started");
        }
        guest.started_in = begin.elapsed();
        Ok(guest)
    }

    /// Continues a guest from its saved state; makes that first if it is missing. A guest
    /// that does not wake up is replaced by another one: it has no device under test yet.
    ///
    /// # Errors
    /// As [`Guest::boot`], or the state can't be read.
    pub fn restore(lab: &Lab, machine: Machine, dir: &Path) -> Result<Self> {
        Self::restore_with(lab, machine, dir, &[])
    }

    /// As [`Guest::restore`], with further arguments of QEMU that don't change the machine.
    ///
    /// # Errors
    /// As [`Guest::restore`].
    pub fn restore_with(lab: &Lab, machine: Machine, dir: &Path, more: &[OsString]) -> Result<Self> {
        let state = lab.state(machine)?;
        for _ in 1..RESTORE_ATTEMPTS {
            let mut guest = Self::restore_once(lab, machine, dir, &state, more)?;
            match guest.serial.run("true", WAKE) {
                Ok(_) => return Ok(guest),
                Err(error) => println!("  a restored {machine:?} is taken anew: {error:#}"),
            }
        }
        let mut guest = Self::restore_once(lab, machine, dir, &state, more)?;
        guest.serial.run("true", WAKE).context("the restored guest")?;
        Ok(guest)
    }

    fn restore_once(
        lab: &Lab,
        machine: Machine,
        dir: &Path,
        state: &Path,
        more: &[OsString],
    ) -> Result<Self> {
        let begin = Instant::now();
        let uri = machine.qemu.state_uri(state, "cat")?;
        let initrd = lab.initrd(machine.kernel)?;
        let mut guest = Self::start(lab, machine, dir, &initrd, Some("defer"), more)?;
        guest.map_ram(true)?;
        guest.qmp.execute("migrate-incoming", json!({"uri": uri}))?;
        wait_for("the guest's saved state to load", RESTORE, || {
            let status = guest.qmp.execute("query-status", json!({}))?;
            Ok((status["status"] != "inmigrate").then_some(()))
        })?;
        guest.map_ram(false)?;
        guest.qmp.execute("cont", json!({}))?;
        guest.started_in = begin.elapsed();
        Ok(guest)
    }

    /// Has pages of a saved state stand at their places in the file, where QEMU can do that: pages
    /// of zeros cost nothing then. No other migration may find this set.
    fn map_ram(&mut self, on: bool) -> Result<()> {
        if self.machine.qemu == Qemu::V10 {
            let capability = json!({"capability": "mapped-ram", "state": on});
            self.qmp.execute("migrate-set-capabilities", json!({"capabilities": [capability]}))?;
        }
        Ok(())
    }

    fn start(
        lab: &Lab,
        machine: Machine,
        dir: &Path,
        initrd: &Path,
        incoming: Option<&str>,
        more: &[OsString],
    ) -> Result<Self> {
        let kernel = lab.assets.kernel(machine.kernel)?;
        let qemu = lab.assets.qemu(machine.qemu)?;
        let mut command = machine.command(&qemu, &kernel, initrd, dir);
        command.args(more);
        if let Some(uri) = incoming {
            command.arg("-incoming").arg(uri);
        }
        let log = dir.join("qemu.log");
        let mut process = Running::start_logged(&mut command, &log)?;
        let mut connect = |name: &str| {
            let path = dir.join(name);
            wait_for("QEMU's sockets", RESTORE, || {
                if let Some(status) = process.ended()? {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    bail!("QEMU ended with {status}: {said}");
                }
                Ok(UnixStream::connect(&path).ok())
            })
        };
        let serial = Serial::new(connect("serial")?, &dir.join("serial.log"))?;
        let qmp = Qmp::new(connect("qmp")?, &dir.join("qmp.log"))?;
        Ok(Self { process, serial, qmp, machine, ports: Default::default(), started_in: Duration::ZERO })
    }

    /// The machine it runs on.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs a shell command in the guest.
    ///
    /// # Errors
    /// The guest does not finish it within `limit`.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output> {
        let result = self.serial.run(command, limit);
        result.map_err(|error| self.explain(error))
    }

    /// Runs a shell command that must succeed; returns its output.
    ///
    /// # Errors
    /// It fails or does not finish within [`COMMAND`].
    pub fn sh(&mut self, command: &str) -> Result<String> {
        self.sh_within(command, COMMAND)
    }

    /// As [`Guest::sh`], with another limit.
    ///
    /// # Errors
    /// As there.
    pub fn sh_within(&mut self, command: &str, limit: Duration) -> Result<String> {
        let output = self.run(command, limit)?;
        if output.status != 0 {
            bail!("in the guest: `{command}` gave status {}: {}", output.status, output.text);
        }
        Ok(output.text)
    }

    /// Waits until a shell command succeeds in the guest; returns its output. The longer that
    /// takes, the longer are the pauses: starting a program costs an emulated guest 10 ms of CPU
    /// time.
    ///
    /// # Errors
    /// It did not within `limit`; the message holds its last output.
    pub fn until(&mut self, command: &str, limit: Duration) -> Result<String> {
        let begin = Instant::now();
        loop {
            let output = self.run(command, limit + COMMAND)?;
            let waited = begin.elapsed();
            if output.status == 0 {
                return Ok(output.text);
            }
            if waited > limit {
                bail!("in the guest: `{command}` failed for {limit:?}: {}", output.text);
            }
            std::thread::sleep((waited / 8).max(Duration::from_millis(30)));
        }
    }

    /// A machine that waits for a guest to migrate to it, see [`Guest::start_migration`]. `more`
    /// must hold the devices that the guest was given, each at the port that it has there; the
    /// names are their ids.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn await_migration(
        lab: &Lab,
        machine: Machine,
        dir: &Path,
        devices: &[&str],
        more: &[OsString],
    ) -> Result<Self> {
        let initrd = lab.initrd(machine.kernel)?;
        let mut guest = Self::start(lab, machine, dir, &initrd, Some("defer"), more)?;
        for device in devices {
            guest.take_port(device)?;
        }
        Ok(guest)
    }

    /// Begins to send the guest to `target` over the unix socket `path`, at `bytes_per_second` for
    /// now.
    ///
    /// # Errors
    /// QEMU refuses: a device can't migrate, for instance.
    pub fn start_migration(&mut self, target: &mut Self, path: &Path, bytes_per_second: u64) -> Result<()> {
        let uri = format!("unix:{}", path.display());
        target.qmp.execute("migrate-incoming", json!({"uri": uri}))?;
        self.limit_migration(bytes_per_second)?;
        self.qmp.execute("migrate", json!({"uri": uri}))?;
        Ok(())
    }

    /// Lets a migration from here, or to here, end by post-copy. On both sides before it begins.
    ///
    /// # Errors
    /// QEMU refuses: a device's back end can't wait for pages, for instance.
    pub fn allow_postcopy(&mut self) -> Result<()> {
        let capability = json!({"capability": "postcopy-ram", "state": true});
        self.qmp.execute("migrate-set-capabilities", json!({"capabilities": [capability]}))?;
        Ok(())
    }

    /// Has the guest go on at its new place now, where its memory comes as it is needed.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn start_postcopy(&mut self) -> Result<()> {
        self.qmp.execute("migrate-start-postcopy", json!({}))?;
        Ok(())
    }

    /// How many pages the guest's new place has asked for.
    ///
    /// # Errors
    /// QEMU does not say.
    pub fn postcopy_requests(&mut self) -> Result<u64> {
        let answer = self.qmp.execute("query-migrate", json!({}))?;
        answer["ram"]["postcopy-requests"].as_u64().with_context(|| format!("postcopy-requests in {answer}"))
    }

    /// Sends at most `bytes_per_second` bytes a second from now on.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn limit_migration(&mut self, bytes_per_second: u64) -> Result<()> {
        // An emulated guest that is busy changes memory about as fast as it is sent.
        self.qmp.execute(
            "migrate-set-parameters",
            json!({"max-bandwidth": bytes_per_second, "downtime-limit": 3000}),
        )?;
        Ok(())
    }

    /// Whether the migration has ended.
    ///
    /// # Errors
    /// It failed; the message says why.
    pub fn has_migrated(&mut self) -> Result<bool> {
        let answer = self.qmp.execute("query-migrate", json!({}))?;
        match answer["status"].as_str() {
            Some("completed") => Ok(true),
            Some("failed" | "cancelled") => bail!("the migration failed: {answer}"),
            _ => Ok(false),
        }
    }

    /// Waits until a guest that migrated here runs.
    ///
    /// # Errors
    /// It does not within `limit`.
    pub fn wait_migrated(&mut self, limit: Duration) -> Result<()> {
        wait_for("the guest to run where it migrated to", limit, || {
            let status = self.qmp.execute("query-status", json!({}))?;
            Ok((status["status"] == "running").then_some(()))
        })
    }

    /// Saves the state to a file and ends the guest.
    ///
    /// # Errors
    /// QEMU can't write it.
    pub fn save(mut self, file: &Path) -> Result<()> {
        self.qmp.execute("stop", json!({}))?;
        self.map_ram(true)?;
        let uri = self.machine.qemu.state_uri(file, "cat >")?;
        self.qmp.execute("migrate", json!({"uri": uri}))?;
        wait_for("the guest's state to be saved", RESTORE, || {
            let answer = self.qmp.execute("query-migrate", json!({}))?;
            match answer["status"].as_str() {
                Some("completed") => Ok(Some(())),
                Some("failed") => bail!("QEMU could not save the guest's state: {answer}"),
                _ => Ok(None),
            }
        })?;
        // `cat` has the rest of the file while QEMU already reports the end.
        self.qmp.execute("quit", json!({}))?;
        self.process.wait(RESTORE)?;
        Ok(())
    }

    /// Plugs a memory module and waits until the guest uses it.
    ///
    /// # Errors
    /// QEMU refuses, or the guest's memory does not grow.
    pub fn plug_memory(&mut self, id: &str, mib: u32) -> Result<()> {
        const TOTAL: &str = "awk '/^MemTotal/{print $2}' /proc/meminfo";
        let before: u64 = self.sh(TOTAL)?.parse().context("MemTotal")?;
        let size = u64::from(mib) << 20;
        let backend = format!("{id}-ram");
        self.qmp.execute(
            "object-add",
            json!({"qom-type": "memory-backend-memfd", "id": backend, "size": size, "share": true}),
        )?;
        self.qmp.execute("device_add", json!({"driver": "pc-dimm", "id": id, "memdev": backend}))?;
        // The kernel keeps a little of a module for itself.
        let wanted = before + u64::from(mib) * 1024 * 9 / 10;
        self.until(&format!("test $({TOTAL}) -ge {wanted}"), COMMAND)?;
        Ok(())
    }

    /// Unplugs a device, and waits until the guest has let it go. A guest may overlook such a
    /// request (qapi/qdev.json of QEMU). While its shell answers, another one follows.
    ///
    /// # Errors
    /// QEMU refuses, or the guest keeps the device.
    pub fn unplug(&mut self, id: &str) -> Result<()> {
        self.qmp.execute("device_del", json!({"id": id}))?;
        for _ in 0..UNPLUG_REQUESTS {
            let gone = self.qmp.wait_event("DEVICE_DELETED", UNPLUG, |data| data["device"] == id);
            if gone.is_ok() {
                self.free_port(id);
                return Ok(());
            }
            self.sh(":").with_context(|| format!("unplug {id}"))?;
            // While it takes a request for pending, QEMU refuses another one.
            if let Err(refusal) = self.qmp.execute("device_del", json!({"id": id})) {
                println!("unplug {id}, once more: {refusal:#}");
            }
        }
        let log = self.sh("dmesg | tail -n 20")?;
        bail!("asked {UNPLUG_REQUESTS} times for {id}, the guest keeps it; its kernel's log:\n{log}")
    }

    /// Resets the machine, as its reset button does, and waits for the guest's shell.
    ///
    /// # Errors
    /// It does not come back.
    pub fn reset(&mut self) -> Result<()> {
        self.rebooted(|guest| guest.qmp.execute("system_reset", json!({})).map(drop))
    }

    /// Lets the guest's kernel reboot, which takes its drivers down first, and waits for its shell.
    ///
    /// # Errors
    /// It does not come back.
    pub fn reboot(&mut self) -> Result<()> {
        // The shell answers before it is gone.
        self.rebooted(|guest| guest.sh("(sleep 0.2; reboot -f) >/dev/null 2>&1 &").map(drop))
    }

    fn rebooted(&mut self, begin: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.qmp.execute("set-action", json!({"reboot": "reset"}))?;
        begin(self)?;
        let ready = self.serial.wait_ready(BOOT);
        ready.map_err(|error| self.explain(error)).context(NeverBooted)?;
        self.qmp.execute("set-action", json!({"reboot": "shutdown"}))?;
        Ok(())
    }

    /// Adds to an error how QEMU ended, if it has.
    fn explain(&mut self, error: Error) -> Error {
        // QEMU closes its sockets a little before it is gone.
        match self.process.wait(LAST_BREATH) {
            Ok(status) => error.context(format!("QEMU ended with {status}")),
            Err(_) if error.downcast_ref::<Silent>().is_some() => self.ask_kernel(error),
            Err(_) => error,
        }
    }

    /// Adds to the error of a silent shell whether the kernel below it is alive. If it is, a
    /// program waits for something that does not come, and the log has its stack; if not, the
    /// emulated machine stands still.
    fn ask_kernel(&mut self, error: Error) -> Error {
        let begun = self.qmp.execute("chardev-send-break", json!({"id": SERIAL}));
        if begun.is_ok() && self.serial.kernel_answers() {
            return error.context("a program in the guest stands still, its kernel answers");
        }
        let cpus = match begun.and_then(|_| self.cpus()) {
            Ok(cpus) => cpus,
            Err(unknown) => format!("{unknown:#}"),
        };
        error.context(cpus).context(EmulatorBroke::STANDS_STILL)
    }

    /// Where the machine's CPUs are, a few words each.
    fn cpus(&mut self) -> Result<String> {
        let line = json!({"command-line": "info registers -a"});
        let said = self.qmp.execute("human-monitor-command", line)?;
        let words = said.as_str().unwrap_or_default().split_whitespace();
        let told = |word: &&str| ["CPU#", "RIP=", "HLT="].iter().any(|start| word.starts_with(start));
        Ok(words.filter(told).collect::<Vec<_>>().join(" "))
    }

    /// Takes a free PCI Express port for a device.
    pub(crate) fn take_port(&mut self, device: &str) -> Result<String> {
        let (number, port) = self
            .ports
            .iter_mut()
            .enumerate()
            .find(|(_, port)| port.is_none())
            .with_context(|| format!("all {PORTS} ports are in use"))?;
        *port = Some(device.to_owned());
        Ok(format!("port{number}"))
    }

    /// Frees the port of a device.
    fn free_port(&mut self, device: &str) {
        for port in &mut self.ports {
            if port.as_deref() == Some(device) {
                *port = None;
            }
        }
    }
}
