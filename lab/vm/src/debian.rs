//! A guest with a stock Debian 12, for tests of packages and services.
//!
//! Its root is the archive that `scripts/install.sh vm` puts into the cache. The host makes a disk
//! of it, once, which the guest gets as `/dev/vda`: to unpack the archive takes an emulated guest
//! 4 s of CPU time. What it writes to the disk is gone with it. The initial RAM disk is the tests'
//! one with a second archive behind it, whose `/init` takes the place of the first one's. It adds
//! files to the root and starts systemd. A unit is the shell on the serial line.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::command;
use crate::cpio::Archive;
use crate::guest::Guest;
use crate::initrd::{digest, find_program};
use crate::lab::{Lab, remove_older};
use crate::machine::Machine;
use crate::modules::ModuleTree;

/// The first process, see the file itself.
const INIT: &str = include_str!("debian.sh");

/// The shell on the serial line.
const SHELL: &str = include_str!("debian_serial.sh");

/// The shell's unit.
const UNIT: &str = "\
[Unit]
Description=Commands over the serial line

[Service]
ExecStart=/usr/local/bin/serial-shell
KillMode=process
";

/// What the Debian guest's kernel loads beside the modules of other guests.
const MODULES: &[&str] = &["tun", "bridge", "virtio_blk"];

/// Services are processes, and QEMU is one of them.
const MEMORY_MIB: u32 = 768;

/// Without KVM systemd takes as long as all of another guest's boot.
const BOOT: Duration = Duration::from_secs(300);

/// Size of the disk. It is a sparse file.
const DISK: &str = "1G";

/// For programs that make the disk.
const MADE: Duration = Duration::from_secs(120);

/// Boots it, with one CPU, which takes a fifth less CPU time. `files` go to `/usr/local/bin` of the
/// guest under their own names.
///
/// # Errors
/// The root is not in the cache, a file can't be read, or the guest does not reach its shell.
pub fn boot(lab: &Lab, machine: Machine, dir: &Path, files: &[PathBuf]) -> Result<Guest> {
    let machine = Machine { memory_mib: MEMORY_MIB, cpus: 1, ..machine };
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut archive = Archive::new();
    archive.file("/init", INIT.into(), true);
    archive.file("/serial.service", UNIT.into(), false);
    archive.file("/files/serial-shell", SHELL.into(), true);
    for file in files {
        let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
        archive.file(&format!("/files/{}", name.to_string_lossy()), read(file)?, true);
    }
    let kernel = lab.assets.kernel(machine.kernel)?;
    let mut order = String::new();
    for module in ModuleTree::scan(&kernel.modules)?.resolve(MODULES)? {
        order.push_str(&module.name);
        order.push('\n');
        archive.file(&format!("/more/{}.ko", module.name), module.object, false);
    }
    archive.file("/more/order", order.into(), false);
    let mut bytes = read(&lab.initrd(machine.kernel)?)?;
    bytes.extend_from_slice(&archive.to_bytes());
    let initrd = dir.join("debian.img");
    std::fs::write(&initrd, bytes).with_context(|| format!("write {}", initrd.display()))?;
    let mut drive = OsString::from("if=none,id=root,format=raw,snapshot=on,cache=unsafe,file=");
    drive.push(disk(lab, dir)?);
    let more = ["-drive".into(), drive, "-device".into(), "virtio-blk-pci,drive=root".into()];
    Guest::boot_from(lab, machine, dir, &initrd, &more, BOOT)
}

/// The disk with the root. Made if there is none yet of this archive; of several callers one makes
/// it and the others wait.
fn disk(lab: &Lab, dir: &Path) -> Result<PathBuf> {
    let root = lab.assets.debian()?;
    let bytes = std::fs::read(&root).with_context(|| format!("read {}", root.display()))?;
    let name = digest(&[&bytes, DISK.as_bytes()]);
    let path = lab.work_dir().join(format!("debian-{name:016x}.disk"));
    let lock = lab.work_dir().join("debian.lock");
    let lock = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("lock the disk")?;
    if path.exists() {
        return Ok(path);
    }
    let folder = tempfile::tempdir_in(dir).context("create a folder")?;
    let mut tar = Command::new("tar");
    // The guest's kernel fills /dev.
    tar.args(["--numeric-owner", "--exclude=./dev/*", "-xzpf"]).arg(&root).arg("-C").arg(folder.path());
    command::output(&mut tar, MADE)?;
    remove_older(lab.work_dir(), "debian-", ".disk")?;
    let part = path.with_extension("part");
    let mut make = Command::new(find_program("mke2fs")?);
    make.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d"]);
    command::output(make.arg(folder.path()).arg(&part).arg(DISK), MADE)?;
    std::fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))?;
    Ok(path)
}
