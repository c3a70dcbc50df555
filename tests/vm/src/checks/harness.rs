//! The guests themselves: a machine that fails here can't say anything about
//! zerowire.

use anyhow::{Result, ensure};
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;

/// A restored guest runs the right kernel and takes more memory.
pub fn boot(env: &Env<'_>) -> Result<String> {
    let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
    let wanted = env.lab.assets.kernel(env.machine.kernel)?.release;
    let release = guest.sh("uname -r")?;
    ensure!(release == wanted, "the guest runs Linux {release}, not {wanted}");
    let cpus = guest.sh("nproc")?;
    ensure!(cpus == env.machine.cpus.to_string(), "the guest has {cpus} CPUs");
    guest.plug_memory("dimm0", 256)?;
    Ok(format!("Linux {release} restored in {:.2} s", guest.started_in.as_secs_f64()))
}
