//! QEMU as people start it: by its command line as an ordinary user, and by libvirt. What they get
//! wrong is answered with the remedy.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::assets::{KernelFiles, Qemu};
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::{Running, wait_for};
use zerowire_vmtest::guest::{BOOT, COMMAND};
use zerowire_vmtest::libvirt::{self, Libvirt};
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::{Env, NeverBooted, skip};
use zerowire_vmtest::serial::Serial;

use super::quickstart::libvirt_parts;
use super::setup::{GUEST, HOST, LINK, TAP, set_host_up};

/// For QEMU's own socket.
const QEMU: Duration = Duration::from_secs(60);

/// The back end and what a front end needs, for a user of its own: [`libvirt::USER`].
struct Stage {
    namespace: Netns,
    backend: BackendProcess,
    /// Where the front end makes its sockets.
    vmm: PathBuf,
    kernel: KernelFiles,
    initrd: PathBuf,
}

impl Stage {
    fn new(env: &Env<'_>) -> Result<Self> {
        let mut kernel = env.lab.assets.kernel(env.machine.kernel)?;
        let (image, initrd, vmm) = (env.dir.join("vmlinuz"), env.dir.join("initrd"), env.dir.join("vmm"));
        std::fs::copy(&kernel.image, &image).context("copy the kernel")?;
        std::fs::copy(env.lab.initrd(env.machine.kernel)?, &initrd).context("copy the initial RAM disk")?;
        std::fs::create_dir(&vmm)?;
        chown(&vmm, Some(libvirt::USER), Some(libvirt::USER))?;
        for (path, mode) in [(&image, 0o644), (&initrd, 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        for folder in [Some(env.dir), env.dir.parent()].into_iter().flatten() {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))?;
        }
        kernel.image = image;
        let namespace = Netns::new()?;
        let socket = env.dir.join("net");
        let mut command = namespace.command(backend::program()?);
        command.args(["net", "--json", "--port"]).arg(format!("tap:{TAP}")).arg("--socket").arg(&socket);
        command.arg("--socket-owner").arg(libvirt::USER.to_string());
        let backend = BackendProcess::start(&mut command, &socket, env.dir, "backend")?;
        set_host_up(&namespace, 1500)?;
        Ok(Self { namespace, backend, vmm, kernel, initrd })
    }

    /// QEMU's command line as the README has it.
    fn qemu(&self, env: &Env<'_>, queues: u16) -> Result<Command> {
        let qemu = env.lab.assets.qemu(env.machine.qemu)?;
        let mut command = env.machine.command(&qemu, &self.kernel, &self.initrd, &self.vmm);
        command
            .arg("-chardev")
            .arg(format!("socket,id=c0,path={},reconnect=1", self.backend.socket().display()));
        command.arg("-netdev").arg(format!("vhost-user,id=n0,chardev=c0,queues={queues}"));
        // QEMU 7.2 without KVM crashes with MSI-X.
        let vectors = if env.machine.qemu == Qemu::V7_2 { ",vectors=0" } else { "" };
        command.arg("-device").arg(format!("virtio-net-pci,netdev=n0,romfile={vectors}"));
        Ok(command)
    }

    /// The same with the guest's memory in a file of the folder.
    fn with_memory(&self, env: &Env<'_>, folder: &Path) -> Result<Command> {
        let line = self.qemu(env, 1)?;
        let mut with = Command::new(line.get_program());
        let memory = format!(
            "memory-backend-file,id=ram,size={}M,share=on,mem-path={}",
            env.machine.memory_mib,
            folder.display()
        );
        with.args(line.get_args().map(|word| match word.to_string_lossy() {
            word if word.starts_with("memory-backend-memfd") => memory.clone().into(),
            _ => word.to_owned(),
        }));
        Ok(with)
    }

    /// Starts QEMU by this line, whose guest must reach the host.
    fn carries_guest_of(&mut self, env: &Env<'_>, line: &mut Command) -> Result<()> {
        let _qemu = Running::start_logged(line, &env.dir.join("qemu.log"))?;
        let mut serial = self.booted(env)?;
        self.carries(&mut serial)
    }

    /// Waits for the guest's shell.
    fn booted(&self, env: &Env<'_>) -> Result<Serial> {
        let path = self.vmm.join("serial");
        let stream = wait_for("QEMU's serial line", QEMU, || Ok(UnixStream::connect(&path).ok()))?;
        let mut serial = Serial::new(stream, &env.dir.join("serial.log"))?;
        serial.wait_ready(BOOT).context(NeverBooted)?;
        Ok(serial)
    }

    /// The guest reaches the host, and the ledger has its frames.
    fn carries(&mut self, serial: &mut Serial) -> Result<()> {
        let set_up = format!("ip addr add {GUEST}/24 dev eth0 && ip link set eth0 up");
        let said = serial.run(&set_up, COMMAND)?;
        ensure!(said.status == 0, "in the guest: {}", said.text);
        wait_for("the guest to reach the host", LINK, || {
            let said = serial.run(&format!("ping -c 1 -W 1 {HOST}"), COMMAND)?;
            Ok((said.status == 0).then_some(()))
        })?;
        self.backend.check_alive()
    }
}

/// The command's program started as [`libvirt::USER`], with no other group and no right.
fn as_user(command: &Command) -> Command {
    let user = libvirt::USER.to_string();
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--pdeathsig", "KILL"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// The README's line, with QEMU as an ordinary user and the back end as root.
pub fn ordinary_user(env: &Env<'_>) -> Result<String> {
    let mut stage = Stage::new(env)?;
    let mut line = as_user(&stage.qemu(env, 1)?);
    stage.carries_guest_of(env, &mut line)?;
    Ok(String::new())
}

/// QEMU whose memory is private: the log names the remedy, and the connection's end doesn't flood
/// it.
pub fn private_memory(env: &Env<'_>) -> Result<String> {
    let stage = Stage::new(env)?;
    let mut line = stage.qemu(env, 1)?;
    // Without these two options the machine makes its memory by itself.
    let shared = |words: &[String]| words[0] == "-object" || words[0] == "-numa";
    let words: Vec<_> = line.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let first = words.iter().position(|w| w == "-machine").context("no -machine")?;
    let (before, pairs) = words.split_at(first);
    let kept = pairs.chunks(2).filter(|pair| !shared(pair)).flatten();
    line = Command::new(line.get_program());
    line.args(before.iter().chain(kept));
    misled(env, stage, &mut line, &["the front end shared 0 regions", "share=on", "<access mode='shared'/>"])
}

/// QEMU whose memory is a file: on a disk it is refused with the remedy, on /dev/shm and on
/// hugetlbfs it is taken.
pub fn memory_file(env: &Env<'_>) -> Result<String> {
    let mut stage = Stage::new(env)?;
    let own = std::env::current_exe().context("the test program's own path")?;
    let disk = own.parent().context("its folder")?;
    let mut qemu = Running::start_logged(&mut stage.with_memory(env, disk)?, &env.dir.join("qemu.log"))?;
    wait_for("the remedy in the log", BOOT, || {
        let log = stage.backend.log_text();
        Ok(log.contains("neither shared memory nor on hugetlbfs").then_some(()))
    })?;
    qemu.kill();
    let mut line = stage.with_memory(env, Path::new("/dev/shm"))?;
    stage.carries_guest_of(env, &mut line)?;
    let Some(_pages) = HugePages::reserve(env.machine.memory_mib)? else {
        return Ok("/dev/shm; no huge pages are free".to_owned());
    };
    let huge = env.dir.join("huge");
    std::fs::create_dir(&huge)?;
    let inner = stage.with_memory(env, &huge)?;
    let mut line = Command::new("unshare");
    line.args(["--mount", "sh", "-c", "mount -t hugetlbfs none \"$0\" && exec \"$@\""]).arg(&huge);
    line.arg(inner.get_program()).args(inner.get_args());
    stage.carries_guest_of(env, &mut line)?;
    Ok("/dev/shm, hugetlbfs".to_owned())
}

/// Huge pages for a guest's memory, given back on drop.
struct HugePages {
    before: u64,
}

impl HugePages {
    const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

    /// `None`: the kernel finds too few.
    fn reserve(mib: u32) -> Result<Option<Self>> {
        let before = std::fs::read_to_string(Self::NUMBER)?.trim().parse().context(Self::NUMBER)?;
        let needed = (u64::from(mib) << 10).div_ceil(Self::told("Hugepagesize:")?);
        let pages = Self { before };
        std::fs::write(Self::NUMBER, (before + needed).to_string()).context(Self::NUMBER)?;
        Ok((Self::told("HugePages_Free:")? >= needed).then_some(pages))
    }

    fn told(name: &str) -> Result<u64> {
        let told = std::fs::read_to_string("/proc/meminfo")?;
        let value =
            told.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
        value.with_context(|| format!("/proc/meminfo has no {name}"))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::NUMBER, self.before.to_string());
    }
}

/// QEMU with more queues than the port has: the log names the remedy, and QEMU, which connects
/// again without a pause, is held back.
pub fn too_many_queues(env: &Env<'_>) -> Result<String> {
    let stage = Stage::new(env)?;
    let mut line = stage.qemu(env, 4)?;
    misled(env, stage, &mut line, &["there are 2 queues", "queues=N"])
}

/// Starts a QEMU that can't work, and waits for the words that say why. Then it goes on as it likes
/// for a while, which must not be many connections or lines.
fn misled(env: &Env<'_>, mut stage: Stage, line: &mut Command, words: &[&str]) -> Result<String> {
    /// How long QEMU is watched; more time makes more connections.
    const WATCHED: Duration = Duration::from_secs(10);
    /// Of each second, at most: 128 come without a wait wherever a busy machine makes QEMU pause
    /// that long.
    const MOST: u64 = 130;
    let mut qemu = Running::start_logged(line, &env.dir.join("qemu.log"))?;
    let said = wait_for("the remedy in the log", BOOT, || {
        let log = stage.backend.log_text();
        Ok(log.lines().find(|l| words.iter().all(|w| l.contains(w))).map(ToOwned::to_owned))
    })?;
    let connections = |stage: &mut Stage| -> Result<u64> {
        stage.backend.statistics()?["vms"][0]["connections"].as_u64().context("connections")
    };
    let (before, begin) = (connections(&mut stage)?, Instant::now());
    std::thread::sleep(WATCHED);
    let (made, took) = (connections(&mut stage)? - before, begin.elapsed());
    let most = MOST * (1 + took.as_secs());
    ensure!(made <= most, "{made} connections within {took:?}");
    let lines = stage.backend.log_text().lines().count() as u64;
    ensure!(lines <= 4 * most, "{lines} lines in the log");
    qemu.kill();
    println!("  {said}");
    Ok(format!("{made} connections in {} s, {lines} lines", took.as_secs()))
}

/// A domain with the README's lines, started by libvirt with its own user.
pub fn by_libvirt(env: &Env<'_>) -> Result<String> {
    if !Libvirt::is_installed() {
        return Err(skip("no libvirtd or virsh: run `scripts/install.sh vm`"));
    }
    let mut stage = Stage::new(env)?;
    let libvirt = Libvirt::start(&stage.namespace, env.dir)?;
    let domain = env.dir.join("domain.xml");
    std::fs::write(&domain, description(env, &stage)?)?;
    libvirt.create(&domain)?;
    let mut serial = stage.booted(env)?;
    stage.carries(&mut serial)?;
    Ok(String::new())
}

fn description(env: &Env<'_>, stage: &Stage) -> Result<String> {
    let (memory, cpus) = (env.machine.memory_mib, env.machine.cpus);
    let show = |path: &Path| path.display().to_string();
    let (image, initrd) = (show(&stage.kernel.image), show(&stage.initrd));
    let serial = show(&stage.vmm.join("serial"));
    let (memory_backing, interface) = libvirt_parts(stage.backend.socket())?;
    // QEMU's packages don't bring a ROM for the network.
    let interface = interface.replace("</interface>", "  <rom enabled='no'/>\n</interface>");
    Ok(format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>vm</name>
  <memory unit='MiB'>{memory}</memory>
  {memory_backing}
  <vcpu>{cpus}</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{image}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 mitigations=off</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <serial type='unix'><source mode='bind' path='{serial}'/></serial>
    {interface}
  </devices>
  <qemu:override>
    <qemu:device alias='net0'>
      <qemu:frontend><qemu:property name='vectors' type='unsigned' value='0'/></qemu:frontend>
    </qemu:device>
  </qemu:override>
</domain>
"
    ))
}
