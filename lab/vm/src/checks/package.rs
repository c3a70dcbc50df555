//! The Debian package in a stock Debian 12: installed by apt, started by systemd, used by an
//! ordinary user's front end, confined, and purged without a trace.
//!
//! QEMU attaches once: it boots iPXE of its network card, whose frames arrive on the tap. That
//! takes long in an emulated guest. All other front ends are a program of this project, which
//! speaks to the service as QEMU does.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire_vmtest::assets::Qemu;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::libvirt::Libvirt;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::{backend, command, debian, initrd, lab};

use super::quickstart::libvirt_parts;

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

/// libvirt's programs, and its driver of QEMU.
const LIBVIRT: [&str; 3] = [
    "/usr/sbin/libvirtd",
    "/usr/bin/virsh",
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
];

/// What it knows of CPUs.
const CPUS: &str = "/usr/share/libvirt/cpu_map";

/// Bytes that have arrived on the tap of zerowire@vm0.
const ARRIVED: &str = "cat /sys/class/net/vm0/statistics/rx_bytes";

/// Frames of a front end.
const FRAMES: u64 = 100;

/// Frames that it waits for.
const FRAMES_BACK: u64 = 3;

/// The package of the program under test, in the test's folder.
fn packed(env: &Env<'_>) -> Result<PathBuf> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let folder = env.dir.join("built");
    std::fs::create_dir(&folder)?;
    symlink(std::fs::canonicalize(backend::program()?)?, folder.join("zerowire"))?;
    let mut script = Command::new(root.join("scripts/deb.sh"));
    script.arg(env.dir).arg("zerowire").env("BUILD", folder);
    // The emulated guest would decompress it.
    script.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let said = command::output(&mut script, PACKED)?;
    Ok(said.trim().into())
}

/// QEMU of the host and `more` programs in an archive for the guest, with their libraries and what
/// they load.
fn front_ends(env: &Env<'_>, more: &[&str]) -> Result<PathBuf> {
    let archive = env.dir.join("front-ends.tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--dereference", "--absolute-names", "--file"]).arg(&archive).args(LOADED);
    if !more.is_empty() {
        tar.arg(CPUS);
    }
    let mut programs = vec![env.lab.assets.qemu(Qemu::V7_2)?.program];
    programs.extend(more.iter().map(PathBuf::from));
    for program in programs {
        tar.arg(&program).args(initrd::libraries(&program)?);
    }
    command::output(&mut tar, PACKED)?;
    Ok(archive)
}

/// Unpacks that archive. Libraries that the guest has are its own.
fn unpack_front_ends(guest: &mut Guest) -> Result<()> {
    let archive = "/usr/local/bin/front-ends.tar";
    sh(guest, &format!("tar -xf {archive} --absolute-names --skip-old-files && rm {archive}")).map(drop)
}

/// A domain of libvirt that starts iPXE, with the README's lines.
fn domain(env: &Env<'_>) -> Result<PathBuf> {
    let (memory_backing, interface) = libvirt_parts(Path::new(SOCKET))?;
    let file = env.dir.join("domain.xml");
    std::fs::write(
        &file,
        format!(
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>vm</name>
  <memory unit='MiB'>32</memory>
  {memory_backing}
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='network'/></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    {interface}
  </devices>
  <qemu:override>
    <qemu:device alias='net0'>
      <qemu:frontend><qemu:property name='vectors' type='unsigned' value='0'/></qemu:frontend>
    </qemu:device>
  </qemu:override>
</domain>
"
        ),
    )?;
    Ok(file)
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

/// Waits until QEMU is connected, and iPXE asks for an address by the tap vm0, where `before` as
/// many bytes had arrived.
fn boots_ipxe(guest: &mut Guest, before: u64) -> Result<()> {
    // DHCPDISCOVER takes more.
    guest.until(&format!("[ $({ARRIVED}) -gt {} ]", before + 300), SLOW)?;
    let status = show(guest, "zerowire@vm0", "StatusText")?;
    ensure!(status == "1 of 1 VMs connected", "status: {status}");
    Ok(())
}

/// QEMU, as the user `tester`.
fn attach_qemu(guest: &mut Guest) -> Result<()> {
    unpack_front_ends(guest)?;
    let before = sh(guest, ARRIVED)?.parse()?;
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
    boots_ipxe(guest, before)?;
    sh(guest, "p=$(cat /tmp/qemu.pid); kill $p && tail --pid=$p -f /dev/null").map(drop)
}

/// A domain of libvirt, whose QEMU runs as Debian's user. No package of libvirt is installed, so
/// neither AppArmor nor virtlogd is in its way.
fn attach_libvirt(guest: &mut Guest) -> Result<()> {
    unpack_front_ends(guest)?;
    sh(guest, "useradd --system libvirt-qemu && usermod -aG zerowire-vm libvirt-qemu")?;
    sh(
        guest,
        "mkdir /etc/libvirt && echo 'auth_unix_rw = \"none\"' >/etc/libvirt/libvirtd.conf && \
         printf '%s = \"%s\"\\n' user libvirt-qemu group libvirt-qemu stdio_handler file security_driver none \
         >/etc/libvirt/qemu.conf && libvirtd --daemon",
    )?;
    let before = sh(guest, ARRIVED)?.parse()?;
    sh(guest, "virsh create /usr/local/bin/domain.xml")?;
    boots_ipxe(guest, before)?;
    let user = sh(guest, "stat -c %U /proc/$(cat /run/libvirt/qemu/vm.pid)")?;
    ensure!(user == "libvirt-qemu", "QEMU's user: {user}");
    sh(guest, "virsh destroy vm && kill $(cat /run/libvirtd.pid) && userdel libvirt-qemu").map(drop)
}

/// What systemd shows of a unit.
fn show(guest: &mut Guest, unit: &str, property: &str) -> Result<String> {
    sh(guest, &format!("systemctl show --value -p {property} {unit}"))
}

/// Debian with the package, users and further files.
fn debian_with(env: &Env<'_>, more: &[PathBuf]) -> Result<Guest> {
    let files = [more, &[packed(env)?, lab::agent("zw-front")?]].concat();
    let mut guest = debian::boot(env.lab, env.machine, env.dir, &files)?;
    sh(&mut guest, "apt-get install -y /usr/local/bin/zerowire_*.deb")?;
    sh(&mut guest, "useradd tester && usermod -aG zerowire-vm tester && useradd stranger")?;
    Ok(guest)
}

/// The whole life of the package.
pub fn installed(env: &Env<'_>) -> Result<String> {
    let guest = &mut debian_with(env, &[front_ends(env, &[])?])?;
    let boot = guest.started_in.as_secs();
    started(guest).context("zerowire@vm0")?;
    lives_on(guest).context("a reload and a crash")?;
    confined(guest).context("confinement")?;
    others(guest).context("the other units")?;
    purged(guest).context("a purge")?;
    Ok(format!("Debian booted in {boot} s"))
}

/// Ports on an interface, with their drop-ins: frames pass both ways. A domain of libvirt, on a
/// tap.
pub fn ports_and_libvirt(env: &Env<'_>) -> Result<String> {
    let has_libvirt = Libvirt::is_installed();
    let files = if has_libvirt { vec![front_ends(env, &LIBVIRT)?, domain(env)?] } else { Vec::new() };
    let guest = &mut debian_with(env, &files)?;
    sh(
        guest,
        "ip link add p0 type veth peer name p1 && udevadm settle && ip addr add 192.0.2.1/24 dev p1 && \
         ip link set p0 up && ip link set p1 up && ip neigh add 192.0.2.2 lladdr 52:54:00:00:00:01 dev p1",
    )?;
    load_profile(guest)?;
    for kind in ["packet", "xdp"] {
        port(guest, kind).context(kind)?;
    }
    let mut left_out = "without libvirt, which is not installed";
    if has_libvirt {
        sh(guest, "rm /etc/zerowire/vm0.env && systemctl start zerowire@vm0")?;
        attach_libvirt(guest).context("libvirt")?;
        left_out = "";
    }
    nothing_denied(guest)?;
    Ok(left_out.to_owned())
}

/// The service of a VM with a port of this kind on p0. Without the drop-in the log names it.
fn port(guest: &mut Guest, kind: &str) -> Result<()> {
    let folder = "/etc/systemd/system/zerowire@vm0.service.d";
    sh(guest, &format!("echo PORT={kind}:p0 >/etc/zerowire/vm0.env"))?;
    let refused = guest.run("systemctl start zerowire@vm0", SLOW)?;
    ensure!(refused.status != 0, "it starts without the drop-in");
    sh(guest, &format!("journalctl --no-pager -u zerowire@vm0 -n 10 | grep 'the drop-in {kind}.conf'"))?;
    sh(guest, &format!("install -D -m 644 /usr/share/zerowire/systemd/{kind}.conf {folder}/{kind}.conf"))?;
    sh(guest, "systemctl daemon-reload && systemctl reset-failed && systemctl restart zerowire@vm0")?;
    let arrived = "cat /sys/class/net/p1/statistics/rx_packets";
    let before: u64 = sh(guest, arrived)?.parse()?;
    let said = sh(
        guest,
        &format!(
            "bash -c 'while sleep 0.1; do echo >/dev/udp/192.0.2.2/9; done' & s=$!; \
             runuser -u tester -- zw-front {SOCKET} {FRAMES} {FRAMES_BACK}; r=$?; kill $s; exit $r"
        ),
    )?;
    ensure!(said == format!("{FRAMES} frames"), "the front end says: {said}");
    let after: u64 = sh(guest, arrived)?.parse()?;
    ensure!(after >= before + FRAMES, "{before} frames had arrived at the other end, and {after} after that");
    child_has_no_rights(guest, "zerowire@vm0", "zerowire")?;
    sh(guest, &format!("systemctl stop zerowire@vm0 && rm -r {folder} && systemctl daemon-reload")).map(drop)
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
    child_has_no_rights(guest, "zerowire@vm0", "zerowire")
}

/// Looks at the process that serves the VM of a unit. It has an empty root, no rights, namespaces
/// of its own, and this user. That of vsock devices has no user namespace, since it tells users
/// apart.
fn child_has_no_rights(guest: &mut Guest, unit: &str, user: &str) -> Result<()> {
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
    let uid = sh(guest, &format!("id -u {user}"))?;
    ensure!(of("Uid:") == Some(&*uid), "{unit}: {uid} {status}");
    let (mount, files) =
        (format!("wc -l </proc/{child}/mountinfo"), format!("ls -A /proc/{child}/root/ | wc -l"));
    let root = sh(guest, &format!("{mount}; {files}"))?;
    ensure!(root == "1\n0", "{unit}: mounts of its child, and files: {root:?}");
    let kinds: &[_] = if unit.starts_with("zerowire-vsock") {
        &["ipc", "mnt", "net", "pid"]
    } else {
        &["ipc", "mnt", "net", "pid", "user"]
    };
    let of = |pid: &str| kinds.iter().map(|kind| format!(" /proc/{pid}/ns/{kind}")).collect::<String>();
    let links = sh(guest, &format!("readlink{}{}", of(&child.to_string()), of(&pid)))?;
    let links: Vec<&str> = links.lines().collect();
    ensure!(links.len() == 2 * kinds.len(), "{unit}: namespaces of its child and its own: {links:?}");
    let (own, others) = links.split_at(kinds.len());
    let same = own.iter().find(|link| others.contains(link));
    ensure!(same.is_none(), "{unit}: its child has a namespace of others: {same:?}");
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

/// Loads the AppArmor profile for services that start from now on.
fn load_profile(guest: &mut Guest) -> Result<()> {
    sh(guest, "cp /usr/share/zerowire/apparmor/zerowire-service /etc/apparmor.d/")?;
    sh(guest, "apparmor_parser -r /etc/apparmor.d/zerowire-service")?;
    // Before there was a profile, systemd's attempts to enter it were denied.
    sh(guest, "dmesg --clear").map(drop)
}

/// AppArmor has denied nothing since then.
fn nothing_denied(guest: &mut Guest) -> Result<()> {
    let denied = guest.run("dmesg | grep 'apparmor=\"DENIED\"'", SLOW)?;
    ensure!(denied.status != 0, "denied: {}", denied.text);
    Ok(())
}

/// What `systemd-analyze security` says, and the AppArmor profile.
fn confined(guest: &mut Guest) -> Result<()> {
    sh(guest, "systemd-analyze security --no-pager --threshold=20 zerowire@vm0.service")?;
    load_profile(guest)?;
    sh(guest, "systemctl restart zerowire@vm0")?;
    let pid = show(guest, "zerowire@vm0", "MainPID")?;
    let profile = sh(guest, &format!("cat /proc/{pid}/attr/current"))?;
    ensure!(profile.contains("zerowire-service (enforce)"), "the profile is {profile}");
    attach(guest, SOCKET)?;
    child_has_no_rights(guest, "zerowire@vm0", "zerowire")?;
    // The drop-in gives what another user takes.
    let folder = "/etc/systemd/system/zerowire@vm0.service.d";
    sh(guest, &format!("install -D -m 644 /usr/share/zerowire/systemd/sandbox.conf {folder}/sandbox.conf"))?;
    sh(guest, "systemctl daemon-reload && systemctl restart zerowire@vm0")?;
    child_has_no_rights(guest, "zerowire@vm0", "nobody")?;
    attach(guest, SOCKET)?;
    sh(guest, &format!("rm -r {folder} && systemctl daemon-reload && systemctl restart zerowire@vm0"))?;
    sh(guest, "echo CID=3 >/etc/zerowire/vm0.env && systemctl start zerowire-vsock@vm0")?;
    child_has_no_rights(guest, "zerowire-vsock@vm0", "nobody")?;
    nothing_denied(guest)
}

/// The service with its control socket, and the vsock device.
fn others(guest: &mut Guest) -> Result<()> {
    sh(guest, "systemctl start zerowire")?;
    sh(guest, "zerowire ctl add web --socket /run/zerowire/web.sock --port tap:web0")?;
    attach(guest, "/run/zerowire/web.sock")?;
    child_has_no_rights(guest, "zerowire", "zerowire")?;
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
    child_has_no_rights(guest, "zerowire@vm1", "zerowire")?;
    attach(guest, "/run/zerowire-vm/vm1.sock")?;
    let arrived: u64 = sh(guest, "cat /sys/class/net/vm1/statistics/rx_packets")?.parse()?;
    ensure!(arrived >= FRAMES, "{arrived} frames arrived on the tap");
    sh(guest, &format!("systemctl stop zerowire@vm1 && rm -r {folder} && ip link delete vm1")).map(drop)
}

/// Nothing is left of it: no process, user, interface, folder or file.
fn purged(guest: &mut Guest) -> Result<()> {
    sh(guest, "rm /etc/apparmor.d/zerowire-service; rm -rf /var/cache/apparmor; apt-get purge -y zerowire")?;
    let found = guest.run("readlink /proc/[0-9]*/exe | grep zerowire", SLOW)?;
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
