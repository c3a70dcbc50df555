//! A guest with a stock Debian 12, for tests of packages and services.
//!
//! Its root is the archive that `scripts/install.sh vm` puts into the cache. The initial RAM disk
//! is the tests' one with a second archive behind it, whose `/init` takes the place of the first
//! one's. It unpacks the root into memory and starts systemd. A unit is the shell on the serial
//! line. The root is decompressed on the host, where that takes a twentieth of the time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cpio::Archive;
use crate::guest::Guest;
use crate::lab::Lab;
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
const MODULES: &[&str] = &["tun", "bridge"];

/// The root is in memory, once more while it is unpacked.
const MEMORY_MIB: u32 = 1536;

/// Without KVM: unpacking takes as long as all of another guest's boot.
const BOOT: Duration = Duration::from_secs(300);

/// Boots it. `files` go to `/usr/local/bin` of the guest under their own names.
///
/// # Errors
/// The root is not in the cache, a file can't be read, or the guest does not reach its shell.
pub fn boot(lab: &Lab, machine: Machine, dir: &Path, files: &[PathBuf]) -> Result<Guest> {
    let machine = Machine { memory_mib: MEMORY_MIB, ..machine };
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut archive = Archive::new();
    archive.file("/init", INIT.into(), true);
    archive.file("/root.tar", decompressed(&lab.assets.debian()?)?, false);
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
    Guest::boot_from(lab, machine, dir, &initrd, BOOT)
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let output = Command::new("gzip").arg("-dc").arg(path).output().context("can't start gzip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "gzip can't read {}: {said}", path.display());
    Ok(output.stdout)
}
