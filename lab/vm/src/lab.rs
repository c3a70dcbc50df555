//! What all tests of a run share: files, folders, initial RAM disks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::assets::{Assets, Kernel};
use crate::backend;
use crate::command;
use crate::initrd;
use crate::machine::Machine;
use crate::snapshot;

/// What tests start on the host, each with an argument that makes it end at once.
const HOST_PROGRAMS: [(&str, &str); 5] =
    [("ip", "-V"), ("ping", "-V"), ("iperf3", "--version"), ("curl", "--version"), ("busybox", "--list")];

/// Shared state of a test run.
#[derive(Debug)]
pub struct Lab {
    /// Kernels and QEMUs.
    pub assets: Assets,
    work_dir: PathBuf,
    initrds: Mutex<HashMap<Kernel, PathBuf>>,
    states: Mutex<HashMap<Machine, PathBuf>>,
}

impl Lab {
    /// Checks that this machine can run the tests.
    ///
    /// # Errors
    /// Not root, a program is missing, or the cache is not filled; the message says
    /// what to do.
    pub fn open() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("these tests make network namespaces and taps: run them as root");
        }
        if !Path::new("/dev/net/tun").exists() {
            bail!("no /dev/net/tun: load the tun module (modprobe tun)");
        }
        for (program, argument) in HOST_PROGRAMS {
            let path = initrd::find_program(program)?;
            command::output(Command::new(path).arg(argument), command::SHORT)?;
        }
        let assets = Assets::find()?;
        let work_dir = assets.work_dir()?;
        Ok(Self { assets, work_dir, initrds: Mutex::default(), states: Mutex::default() })
    }

    /// The folder for snapshots and initial RAM disks.
    pub fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    /// The initial RAM disk for a kernel, built once a run.
    ///
    /// # Errors
    /// A part of it is missing.
    pub fn initrd(&self, kernel: Kernel) -> Result<PathBuf> {
        // The map is only ever added to, so a panic elsewhere leaves it valid.
        let mut initrds = self.initrds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = initrds.get(&kernel) {
            return Ok(path.clone());
        }
        let files = self.assets.kernel(kernel)?;
        let path = initrd::store(&self.work_dir, &kernel.to_string(), &files, &guest_programs()?)
            .with_context(|| format!("initial RAM disk for {kernel}"))?;
        initrds.insert(kernel, path.clone());
        Ok(path)
    }

    /// The saved state of a booted machine; found, or made by a boot, once a run.
    ///
    /// # Errors
    /// The guest does not boot.
    pub fn state(&self, machine: Machine) -> Result<PathBuf> {
        let lock = || self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = lock().get(&machine) {
            return Ok(path.clone());
        }
        // Not under the lock: a boot takes seconds, and other machines' tests go on.
        let path = snapshot::ensure(self, machine)?;
        lock().insert(machine, path.clone());
        Ok(path)
    }
}

/// The project's programs in the guest. The static ones are there if they were built. The tests
/// that need them ask for them themselves, and the demo has no use for them.
fn guest_programs() -> Result<Vec<PathBuf>> {
    let mut programs = vec![agent("zw-vsock")?, agent("zw-recv")?, agent("zw-xdp")?];
    programs.extend(backend::static_program().ok());
    programs.extend(backend::static_bench().ok());
    Ok(programs)
}

/// A program that works in the guest: it is in the folder `ZEROWIRE_AGENTS`, or built with this one
/// and beside it.
///
/// # Errors
/// It was not built.
pub fn agent(name: &str) -> Result<PathBuf> {
    let path = match std::env::var_os("ZEROWIRE_AGENTS") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => std::env::current_exe().context("find the test program's own path")?.with_file_name(name),
    };
    if !path.is_file() {
        bail!(
            "no program {}: build it (cargo build --release -p zerowire-vmtest), or unset ZEROWIRE_AGENTS",
            path.display()
        );
    }
    Ok(path)
}

/// Removes files that were made from other inputs than today's: nobody will ask for
/// them. A QEMU that still reads one keeps it open.
pub(crate) fn remove_older(dir: &Path, prefix: &str, suffix: &str) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(suffix) {
            std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}
