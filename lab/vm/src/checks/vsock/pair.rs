//! A guest with two vsock devices: the kernel has the first one, a program may drive the
//! second one by itself.
//!
//! ```text
//!  guest: AF_VSOCK ── kernel ── device 1, CID 87 ─┐
//!         a program ─ uio ───── device 2, CID 88 ─┴ zerowire vsock
//! ```

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::backend::BackendProcess;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::{Env, skip};
use zerowire_vmtest::vsock_device::VsockDevice;

use super::setup::{at_rest, plug, start_vms, uds_of};

/// The VM as the kernel's device shows it, and as the program's does.
pub const KERNEL: (&str, u32) = ("kernel", 87);
pub const PROGRAM: (&str, u32) = ("program", 88);

/// The running whole. Fields are dropped in this order.
#[derive(Debug)]
pub struct Pair {
    pub guest: Guest,
    pub backend: BackendProcess,
    pub dir: PathBuf,
}

impl Pair {
    /// Starts everything, the back end with these arguments beside its own. The guest has
    /// `huge_pages` huge pages then.
    pub fn start(env: &Env<'_>, arguments: &[&str], huge_pages: usize) -> Result<Self> {
        let vms = [KERNEL, PROGRAM].map(|(name, cid)| (name, format!("cid={cid}")));
        let backend = start_vms(env.dir, &vms, arguments, "backend")?;
        let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
        let driver = guest.run("test -d /sys/bus/pci/drivers/uio_pci_generic", COMMAND)?;
        if driver.status != 0 {
            return Err(skip("the guest's kernel has no module uio_pci_generic"));
        }
        // The kernel complains of each vsock device beyond the first one, in the middle of
        // what commands say.
        guest.sh("dmesg -n 1")?;
        let pages = guest
            .sh(&format!("echo {huge_pages} >/proc/sys/vm/nr_hugepages && cat /proc/sys/vm/nr_hugepages"))?;
        ensure!(pages == huge_pages.to_string(), "the guest has {pages} huge pages of {huge_pages}");
        plug(&VsockDevice::new("vsock0", &env.dir.join(KERNEL.0)), &mut guest, KERNEL.1)?;
        VsockDevice::new("vsock1", &env.dir.join(PROGRAM.0)).plug_second(&mut guest)?;
        guest.until("grep -lx 0x1053 /sys/bus/pci/devices/*/device | wc -l | grep -qx 2", COMMAND)?;
        Ok(Self { guest, backend, dir: env.dir.into() })
    }

    /// The path that the host's sockets of a VM are named after.
    pub fn uds(&self, name: &str) -> PathBuf {
        uds_of(&self.dir, name)
    }

    /// The last check: the back end's account of both is in order, and it ends cleanly.
    pub fn finish(mut self) -> Result<()> {
        for (name, _) in [KERNEL, PROGRAM] {
            let ledger = at_rest(&mut self.backend, name)?;
            ledger.check_clean().with_context(|| name.to_owned())?;
            ledger.check_dropped().with_context(|| name.to_owned())?;
        }
        self.backend.stop()?;
        Ok(())
    }
}
