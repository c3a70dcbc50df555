//! Where the kernels and the two QEMUs are.
//!
//! `scripts/install.sh vm` lays them out below the cache folder; see its head for
//! the names. QEMU 7.2 is Debian 12's and is taken from `/usr/bin`.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command;

/// Said with each missing file.
const REMEDY: &str = "run `scripts/install.sh vm`";

/// A guest kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// Debian 12's cloud kernel, Linux 6.1.
    Stable,
    /// The newest Linux 7 cloud kernel of trixie-backports.
    New,
}

/// A QEMU release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Qemu {
    /// Debian 12's QEMU 7.2. Without KVM it crashes on a vhost-user-net device with
    /// MSI-X, so devices get `vectors=0` there.
    V7_2,
    /// bookworm-backports' QEMU 10.
    V10,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "linux6.1",
            Self::New => "linux7",
        })
    }
}

impl fmt::Display for Qemu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V7_2 => "qemu7.2",
            Self::V10 => "qemu10",
        })
    }
}

impl Qemu {
    /// Where a saved state goes, or comes from: a file, or before QEMU 8.2 the shell's `command` of
    /// it.
    ///
    /// # Errors
    /// The file's name can't be given to QEMU.
    pub fn state_uri(self, file: &Path, command: &str) -> Result<String> {
        let name = file.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
        if name.contains(['\'', ',']) {
            bail!("{name} has a quote or comma in its name: set ZEROWIRE_CACHE to another folder");
        }
        Ok(match self {
            Self::V7_2 => format!("exec:{command} '{name}'"),
            Self::V10 => format!("file:{name}"),
        })
    }
}

/// The files of one kernel.
#[derive(Clone, Debug)]
pub struct KernelFiles {
    /// The bootable image.
    pub image: PathBuf,
    /// The folder that holds the module tree (`drivers/`, `net/`, …).
    pub modules: PathBuf,
    /// What `uname -r` prints in the guest.
    pub release: String,
}

/// The files of one QEMU.
#[derive(Clone, Debug)]
pub struct QemuFiles {
    /// `qemu-system-x86_64`.
    pub program: PathBuf,
    /// Folders for `-L` (firmware); none for an installed QEMU.
    pub firmware: Vec<PathBuf>,
    /// Folder of libraries that were unpacked beside it, if any.
    pub libraries: Option<PathBuf>,
    /// The first line of `--version`.
    pub version: String,
}

/// The cache folder with everything below it.
#[derive(Clone, Debug)]
pub struct Assets {
    cache: PathBuf,
}

impl Assets {
    /// Finds the cache folder: `ZEROWIRE_CACHE`, or `zerowire` below
    /// `XDG_CACHE_HOME` or `~/.cache`.
    ///
    /// # Errors
    /// None of the three variables is set, or the folder does not exist.
    pub fn find() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("ZEROWIRE_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("zerowire")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/zerowire")))
            .context("neither ZEROWIRE_CACHE, XDG_CACHE_HOME nor HOME is set: set one")?;
        if !cache.is_dir() {
            bail!("no folder {}: {REMEDY}", cache.display());
        }
        Ok(Self { cache })
    }

    /// The folder for what this program makes: initial RAM disks and snapshots.
    ///
    /// # Errors
    /// It can't be created.
    pub fn work_dir(&self) -> Result<PathBuf> {
        let dir = self.cache.join("vm");
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// The files of a kernel.
    ///
    /// # Errors
    /// They are not in the cache.
    pub fn kernel(&self, kernel: Kernel) -> Result<KernelFiles> {
        let name = match kernel {
            Kernel::Stable => "kernel-6.1",
            Kernel::New => "kernel-7",
        };
        let dir = current(&self.cache, name)?;
        let release = dir.join("release");
        let release = std::fs::read_to_string(&release)
            .with_context(|| format!("read {}: {REMEDY}", release.display()))?;
        Ok(KernelFiles {
            image: dir.join("vmlinuz"),
            modules: dir.join("modules"),
            release: release.trim().to_owned(),
        })
    }

    /// The root of a stock Debian 12 with systemd, as a compressed tar archive.
    ///
    /// # Errors
    /// It is not in the cache.
    pub fn debian(&self) -> Result<PathBuf> {
        Ok(current(&self.cache, "debian-12")?.join("root.tar.gz"))
    }

    /// The files of a QEMU; asks it for its version.
    ///
    /// # Errors
    /// It is not there, does not start or has another version.
    pub fn qemu(&self, qemu: Qemu) -> Result<QemuFiles> {
        let (program, firmware, libraries, wanted) = match qemu {
            Qemu::V7_2 => ("/usr/bin/qemu-system-x86_64".into(), vec![], None, "7.2"),
            Qemu::V10 => {
                let root = current(&self.cache, "qemu-10")?.join("usr");
                let firmware = vec![root.join("share/qemu"), root.join("share/seabios")];
                let libraries = root.join("lib/x86_64-linux-gnu");
                (root.join("bin/qemu-system-x86_64"), firmware, Some(libraries), "10.")
            }
        };
        let mut files = QemuFiles {
            program,
            firmware,
            libraries: libraries.filter(|dir| dir.is_dir()),
            version: String::new(),
        };
        let mut ask = files.command();
        ask.arg("--version");
        let answer = command::output(&mut ask, command::SHORT).with_context(|| REMEDY.to_owned())?;
        files.version = answer.lines().next().unwrap_or_default().to_owned();
        if !files.version.contains(&format!("version {wanted}")) {
            let program = files.program.display();
            bail!("{program} is '{}', version {wanted} is needed: {REMEDY} on Debian 12", files.version);
        }
        Ok(files)
    }
}

impl QemuFiles {
    /// A command that starts this QEMU with its own firmware and libraries.
    pub fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        for dir in &self.firmware {
            command.arg("-L").arg(dir);
        }
        if let Some(dir) = &self.libraries {
            command.env("LD_LIBRARY_PATH", dir);
        }
        command
    }
}

fn current(cache: &Path, name: &str) -> Result<PathBuf> {
    let link = cache.join(name).join("current");
    std::fs::canonicalize(&link).with_context(|| format!("no {}: {REMEDY}", link.display()))
}
