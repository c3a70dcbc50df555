//! The Debian package in a stock Debian 12: installed by apt, started by systemd, used by an
//! ordinary user's front end, confined, and purged without a trace.
//!
//! QEMU attaches once: it boots iPXE of its network card, whose frames arrive on the tap. That
//! takes long in an emulated guest. All other front ends are a program of this project, which
//! speaks to the service as QEMU does.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire_vmtest::assets::Qemu;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::{backend, command, debian, initrd, lab};

/// For apt, systemd and the like in an emulated guest.
const SLOW: Duration = Duration::from_secs(240);

/// For the package to be made on the host.
const PACKED: Duration = Duration::from_secs(120);

/// Where the front end of zerowire@vm0 connects.
const SOCKET: &str = "/run/zerowire-vm/vm0.sock";

/// What QEMU loads to start iPXE.
const LOADED: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/lib/ipxe/qemu/efi-virtio.rom",
];

/// Frames of a front end.
const FRAMES: u64 = 100;

/// The package of the program under test, in the test's folder.
fn packed(env: &Env<'_>) -> Result<PathBuf> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let folder = env.dir.join("built");
    std::fs::create_dir(&folder)?;
    symlink(std::fs::canonicalize(backend::program()?)?, folder.join("zerowire"))?;
    let mut script = Command::new(root.join("scripts/deb.sh"));
    script.arg(env.dir).arg("zerowire").env("BUILD", folder);
    let said = command::output(&mut script, PACKED)?;
    Ok(said.trim().into())
}

/// QEMU of the host in an archive for the guest, with its libraries and what starts iPXE.
fn qemu(env: &Env<'_>) -> Result<PathBuf> {
    let program = env.lab.assets.qemu(Qemu::V7_2)?.program;
    let archive = env.dir.join("qemu.tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--dereference", "--absolute-names", "--file"]).arg(&archive).arg(&program);
    command::output(tar.args(initrd::libraries(&program)?).args(LOADED), PACKED)?;
    Ok(archive)
}

/// A shell command in the guest that must succeed, with time for it.
fn sh(guest: &mut Guest, command: &str) -> Result<String> {
    let output = guest.run(command, SLOW)?;
    if output.status != 0 {
        let journal = guest.run("journalctl --no-pager -n 30", SLOW)?.text;
        bail!("in the guest: `{command}` gave status {}: {}\n{journal}", output.status, output.text);
    }
    Ok(output.text)
}

/// The front end, as the user `tester`.
fn attach(guest: &mut Guest, socket: &str) -> Result<()> {
    let said = sh(guest, &format!("runuser -u tester -- zw-front {socket} {FRAMES}"))?;
    ensure!(said == format!("{FRAMES} frames"), "the front end says: {said}");
    Ok(())
}

/// QEMU, as the user `tester`: iPXE asks for an address by the tap vm0.
fn attach_qemu(guest: &mut Guest) -> Result<()> {
    // Libraries that the guest has are its own.
    sh(
        guest,
        "tar -xf /usr/local/bin/qemu.tar --absolute-names --skip-old-files && rm /usr/local/bin/qemu.tar",
    )?;
    let arrived = "cat /sys/class/net/vm0/statistics/rx_bytes";
    let before: u64 = sh(guest, arrived)?.parse()?;
    let devices = format!(
        "-chardev socket,id=c,path={SOCKET} -netdev vhost-user,id=n,chardev=c -device virtio-net-pci,netdev=n,vectors=0"
    );
    sh(
        guest,
        &format!(
            "runuser -u tester -- qemu-system-x86_64 -accel tcg,tb-size=32 -machine pc,memory-backend=m \
             -object memory-backend-memfd,id=m,size=32M,share=on -m 32M -nodefaults -display none -boot n {devices} \
             -daemonize -pidfile /tmp/qemu.pid"
        ),
    )?;
    // DHCPDISCOVER takes more.
    guest.until(&format!("[ $({arrived}) -gt {} ]", before + 300), SLOW)?;
    let status = show(guest, "zerowire@vm0", "StatusText")?;
    ensure!(status == "1 of 1 VMs connected", "status: {status}");
    sh(guest, "p=$(cat /tmp/qemu.pid); kill $p && tail --pid=$p -f /dev/null").map(drop)
}

/// What systemd shows of a unit.
fn show(guest: &mut Guest, unit: &str, property: &str) -> Result<String> {
    sh(guest, &format!("systemctl show --value -p {property} {unit}"))
}

/// The whole life of the package.
pub fn installed(env: &Env<'_>) -> Result<String> {
    let files = [packed(env)?, qemu(env)?, lab::agent("zw-front")?];
    let mut guest = debian::boot(env.lab, env.machine, env.dir, &files)?;
    let guest = &mut guest;
    let boot = guest.started_in.as_secs();
    sh(guest, "apt-get install -y /usr/local/bin/zerowire_*.deb")?;
    sh(guest, "useradd tester && usermod -aG zerowire-vm tester && useradd stranger")?;
    started(guest).context("zerowire@vm0")?;
    lives_on(guest).context("a reload and a crash")?;
    confined(guest).context("confinement")?;
    others(guest).context("the other units")?;
    purged(guest).context("a purge")?;
    Ok(format!("Debian booted in {boot} s"))
}

/// `systemctl start`, and who may attach.
fn started(guest: &mut Guest) -> Result<()> {
    sh(guest, "systemctl start zerowire@vm0")?;
    let status = show(guest, "zerowire@vm0", "StatusText")?;
    ensure!(status == "0 of 1 VMs connected", "status: {status}");
    attach(guest, SOCKET)?;
    let arrived: u64 = sh(guest, "cat /sys/class/net/vm0/statistics/rx_packets")?.parse()?;
    ensure!(arrived >= FRAMES, "{arrived} frames arrived on the tap");
    let refused = guest.run(&format!("runuser -u stranger -- zw-front {SOCKET} 1"), SLOW)?;
    ensure!(refused.status != 0 && refused.text.contains("Permission denied"), "{}", refused.text);
    attach_qemu(guest).context("QEMU")?;
    let pid = show(guest, "zerowire@vm0", "MainPID")?;
    let rights =
        sh(guest, &format!("grep -E '^(Uid|CapBnd|CapEff|NoNewPrivs|Seccomp):' /proc/{pid}/status"))?;
    // CAP_NET_ADMIN.
    for set in ["CapBnd", "CapEff"] {
        ensure!(rights.contains(&format!("{set}:\t0000000000001000")), "{rights}");
    }
    ensure!(rights.contains("NoNewPrivs:\t1") && rights.contains("Seccomp:\t2"), "{rights}");
    ensure!(!rights.contains("Uid:\t0"), "{rights}");
    child_has_no_rights(guest, "zerowire@vm0", false)
}

/// Looks at the process that serves the VM of a unit. It has an empty root and namespaces of its
/// own. Where the unit has `all` that the sandbox takes, these are a PID namespace and a user, too.
fn child_has_no_rights(guest: &mut Guest, unit: &str, all: bool) -> Result<()> {
    let pid = show(guest, unit, "MainPID")?;
    let found = sh(guest, &format!("grep -ls '^PPid:[[:space:]]{pid}$' /proc/[0-9]*/status | cut -d/ -f3"))?;
    let child: u32 = found.parse().with_context(|| format!("the children of {unit}: {found:?}"))?;
    let status = sh(guest, &format!("cat /proc/{child}/status"))?;
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next());
    for (key, wanted) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
        ensure!(of(key) == Some(wanted), "{unit}: {status}");
    }
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "CapBnd:"] {
        ensure!(of(set) == Some("0000000000000000"), "{unit}: {set} {status}");
    }
    ensure!((of("Uid:") == Some("65534")) == all && of("Uid:") != Some("0"), "{unit}: {status}");
    let (mount, files) =
        (format!("wc -l </proc/{child}/mountinfo"), format!("ls -A /proc/{child}/root/ | wc -l"));
    let root = sh(guest, &format!("{mount}; {files}"))?;
    ensure!(root == "1\n0", "{unit}: mounts of its child, and files: {root:?}");
    let of = |pid: &str| format!("readlink /proc/{pid}/ns/$n");
    let (own, others) = (of(&child.to_string()), of(&pid));
    let names = if all { "ipc mnt net pid" } else { "ipc mnt net user" };
    let same = format!("for n in {names}; do [ $({own}) = $({others}) ] && echo $n; done; true");
    let same = sh(guest, &same)?;
    ensure!(same.is_empty(), "{unit}: its child has these namespaces of others: {same}");
    Ok(())
}

/// A reload keeps the process. After a crash systemd starts another one on the same socket.
fn lives_on(guest: &mut Guest) -> Result<()> {
    let first = show(guest, "zerowire@vm0", "MainPID")?;
    sh(guest, "systemctl reload zerowire@vm0")?;
    let still = show(guest, "zerowire@vm0", "MainPID")?;
    ensure!(still == first, "a reload started another process");
    sh(guest, &format!("kill -KILL {first}"))?;
    guest.until(
        &format!("p=$(systemctl show --value -p MainPID zerowire@vm0); [ $p != 0 ] && [ $p != {first} ]"),
        SLOW,
    )?;
    guest.until("[ $(systemctl show --value -p ActiveState zerowire@vm0) = active ]", SLOW)?;
    attach(guest, SOCKET)
}

/// What `systemd-analyze security` says, and the AppArmor profile.
fn confined(guest: &mut Guest) -> Result<()> {
    sh(guest, "systemd-analyze security --no-pager --threshold=20 zerowire@vm0.service")?;
    sh(guest, "cp /usr/share/zerowire/apparmor/zerowire-service /etc/apparmor.d/")?;
    sh(guest, "apparmor_parser -r /etc/apparmor.d/zerowire-service")?;
    // Before there was a profile, systemd's attempts to enter it were denied.
    sh(guest, "dmesg --clear")?;
    sh(guest, "systemctl restart zerowire@vm0")?;
    let pid = show(guest, "zerowire@vm0", "MainPID")?;
    let profile = sh(guest, &format!("cat /proc/{pid}/attr/current"))?;
    ensure!(profile.contains("zerowire-service (enforce)"), "the profile is {profile}");
    attach(guest, SOCKET)?;
    child_has_no_rights(guest, "zerowire@vm0", false)?;
    // The drop-in gives what the unit lacks for all of the sandbox.
    let folder = "/etc/systemd/system/zerowire@vm0.service.d";
    sh(guest, &format!("install -D -m 644 /usr/share/zerowire/systemd/sandbox.conf {folder}/sandbox.conf"))?;
    sh(guest, "systemctl daemon-reload && systemctl restart zerowire@vm0")?;
    child_has_no_rights(guest, "zerowire@vm0", true)?;
    attach(guest, SOCKET)?;
    sh(guest, &format!("rm -r {folder} && systemctl daemon-reload && systemctl restart zerowire@vm0"))?;
    sh(guest, "echo CID=3 >/etc/zerowire/vm0.env && systemctl start zerowire-vsock@vm0")?;
    child_has_no_rights(guest, "zerowire-vsock@vm0", true)?;
    let denied = guest.run("dmesg | grep 'apparmor=\"DENIED\"'", SLOW)?;
    ensure!(denied.status != 0, "denied: {}", denied.text);
    Ok(())
}

/// The service with its control socket, and the vsock device.
fn others(guest: &mut Guest) -> Result<()> {
    sh(guest, "systemctl start zerowire")?;
    sh(guest, "zerowire ctl add web --socket /run/zerowire/web.sock --port tap:web0")?;
    attach(guest, "/run/zerowire/web.sock")?;
    child_has_no_rights(guest, "zerowire", false)?;
    metrics(guest).context("--metrics")?;
    without_rights(guest).context("a unit without capabilities")?;
    sh(guest, "test -S /run/zerowire-vsock/vm0/host && test -S /run/zerowire-vm/vm0.vsock.sock")?;
    sh(guest, "systemctl enable zerowire@vm0.socket zerowire.service").map(drop)
}

/// The drop-in for `--metrics`, and what the log says without it.
fn metrics(guest: &mut Guest) -> Result<()> {
    let folder = "/etc/systemd/system/zerowire.service.d";
    sh(guest, "echo NET_OPTIONS=--metrics >/etc/zerowire/zerowire.env")?;
    let refused = guest.run("systemctl restart zerowire", SLOW)?;
    ensure!(refused.status != 0, "it listens without the drop-in");
    sh(guest, "journalctl --no-pager -u zerowire -n 10 | grep 'takes the drop-in metrics.conf'")?;
    sh(guest, &format!("install -D -m 644 /usr/share/zerowire/systemd/metrics.conf {folder}/metrics.conf"))?;
    sh(guest, "systemctl daemon-reload && systemctl restart zerowire")?;
    sh(
        guest,
        "bash -c 'exec 3<>/dev/tcp/127.0.0.1/9465; printf \"GET /metrics HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\n\\r\\n\" >&3; \
         grep ^zerowire_ <&3 >/dev/null'",
    )?;
    sh(
        guest,
        &format!(
            "rm -r {folder} /etc/zerowire/zerowire.env && systemctl daemon-reload && systemctl restart zerowire"
        ),
    )?;
    sh(guest, "zerowire ctl add web --socket /run/zerowire/web.sock --port tap:web0").map(drop)
}

/// A tap that was made for the service's user takes no capability.
fn without_rights(guest: &mut Guest) -> Result<()> {
    let folder = "/etc/systemd/system/zerowire@vm1.service.d";
    sh(guest, "ip tuntap add vm1 mode tap vnet_hdr user zerowire && ip link set vm1 up")?;
    let lines = "[Service]\\nAmbientCapabilities=~CAP_NET_ADMIN\\nCapabilityBoundingSet=~CAP_NET_ADMIN\\n";
    sh(guest, &format!("mkdir {folder} && printf '{lines}' >{folder}/none.conf"))?;
    sh(guest, "systemctl daemon-reload && systemctl start zerowire@vm1")?;
    let pid = show(guest, "zerowire@vm1", "MainPID")?;
    let rights = sh(guest, &format!("grep -c '^Cap.*:[[:space:]]0*$' /proc/{pid}/status"))?;
    ensure!(rights == "5", "{rights} of 5 sets are empty");
    child_has_no_rights(guest, "zerowire@vm1", false)?;
    attach(guest, "/run/zerowire-vm/vm1.sock")?;
    let arrived: u64 = sh(guest, "cat /sys/class/net/vm1/statistics/rx_packets")?.parse()?;
    ensure!(arrived >= FRAMES, "{arrived} frames arrived on the tap");
    sh(guest, &format!("systemctl stop zerowire@vm1 && rm -r {folder} && ip link delete vm1")).map(drop)
}

/// Nothing is left of it: no process, user, interface, folder or file.
fn purged(guest: &mut Guest) -> Result<()> {
    sh(guest, "rm /etc/apparmor.d/zerowire-service; rm -rf /var/cache/apparmor; apt-get purge -y zerowire")?;
    let found = guest.run("for p in /proc/[0-9]*/exe; do readlink $p; done | grep zerowire", SLOW)?;
    ensure!(found.status != 0, "a process is left: {}", found.text);
    sh(guest, "! getent passwd zerowire && ! getent group zerowire && ! getent group zerowire-vm")?;
    sh(guest, "test ! -e /sys/class/net/vm0 && test ! -e /sys/class/net/web0")?;
    // Apt's and dpkg's logs and backups are theirs.
    let left = sh(
        guest,
        "find / -xdev -name '*zerowire*' ! -path '/proc/*' ! -path '/sys/*' ! -path '/usr/local/bin/*' ! -path '/var/log/*' \
         ; find /run -name '*zerowire*'",
    )?;
    ensure!(left.is_empty(), "left: {left}");
    let units = sh(guest, "systemctl list-units --all --no-legend 'zerowire*' | grep -v not-found; true")?;
    ensure!(units.is_empty(), "units are left: {units}");
    Ok(())
}
