//! Saved states of booted guests, kept in the cache between runs.
//!
//! A state is named by a digest of everything it depends on: QEMU's version, the
//! kernel, the initial RAM disk, the machine's arguments and how the state is stored.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::guest::Guest;
use crate::initrd::digest;
use crate::lab::{Lab, remove_older};
use crate::machine::Machine;

/// The file with a machine's saved state. Boots the guest if there is none yet;
/// of several callers, in this process or others, one boots and the others wait.
///
/// # Errors
/// The guest does not boot or can't be saved.
pub fn ensure(lab: &Lab, machine: Machine) -> Result<PathBuf> {
    let path = lab.work_dir().join(name(lab, machine)?);
    let lock = lab.work_dir().join(format!("{}.lock", machine.label()));
    let lock = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("lock the snapshot")?;
    if path.exists() {
        return Ok(path);
    }
    let begin = Instant::now();
    let dir = tempfile::Builder::new().prefix("zw-").tempdir().context("create a folder")?;
    let guest = Guest::boot(lab, machine, dir.path())
        .with_context(|| format!("boot {} for a snapshot", machine.label()))?;
    let booted_in = guest.started_in;
    let part = path.with_extension("part");
    guest.save(&part)?;
    remove_older(lab.work_dir(), &format!("{}-", machine.label()), ".state")?;
    std::fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))?;
    println!(
        "  snapshot {}: booted in {:.1} s, saved after {:.1} s",
        machine.label(),
        booted_in.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    Ok(path)
}

fn name(lab: &Lab, machine: Machine) -> Result<String> {
    let kernel = lab.assets.kernel(machine.kernel)?;
    let qemu = lab.assets.qemu(machine.qemu)?;
    let initrd = lab.initrd(machine.kernel)?;
    let image = std::fs::read(&kernel.image).with_context(|| format!("read {}", kernel.image.display()))?;
    let mut parts: Vec<Vec<u8>> = vec![qemu.version.into_bytes(), image];
    parts.push(machine.qemu.state_uri(lab.work_dir(), "cat")?.into_bytes());
    // The RAM disk's name is a digest of its contents.
    parts.extend(machine.arguments(&kernel, &initrd).iter().map(|argument| argument.as_bytes().to_vec()));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(format!("{}-{:016x}.state", machine.label(), digest(&parts)))
}
