//! The guests themselves: a machine that fails here can't say anything about
//! zerowire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::{EmulatorBroke, Env};
use zerowire_vmtest::vsock::remote::{self, Background};

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

/// The harness distinguishes a program that stands still in a guest from a machine that does. Only
/// the latter counts as QEMU's fault.
pub fn silence(env: &Env<'_>) -> Result<String> {
    const SHORT: Duration = Duration::from_millis(500);
    let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
    let mut silent = |prepare: fn(&mut Guest) -> Result<()>| {
        prepare(&mut guest)?;
        guest.run("sleep 1000", SHORT).err().context("an answer of a command that sleeps")
    };
    let program = silent(|_| Ok(()))?;
    let text = format!("{program:#}");
    ensure!(text.contains("its kernel answers"), "a program that sleeps: {text}");
    ensure!(program.downcast_ref::<EmulatorBroke>().is_none(), "QEMU is blamed: {text}");
    let machine = silent(|guest| guest.qmp.execute("stop", json!({})).map(drop))?;
    let text = format!("{machine:#}");
    ensure!(machine.downcast_ref::<EmulatorBroke>().is_some(), "QEMU is not blamed: {text}");
    ensure!(text.contains("CPU#1") && text.contains("HLT="), "no word of where its CPUs are: {text}");
    Ok(String::new())
}

/// The guest's vsock program and its kernel's sockets, over the kernel's own loopback
/// (CID 1): no device is involved.
pub fn vsock_loopback(env: &Env<'_>) -> Result<String> {
    /// Jobs of the listening and the connecting end.
    const PAIRS: &[(&str, &str, &str)] = &[
        ("stream", "echo 3", "exchange 1 65536 1 4096 1000000"),
        ("seqpacket", "echo 1", "exchange 1 30000 300000"),
        ("seqpacket", "echo 1", "exchange-messages 2 1 7 4096 65536 200000"),
        ("seqpacket", "receive-records 3 10 20 30 40 70000", "send-records 3 10 20 30 40 70000"),
        ("stream", "reply 4 4096 100000 5000", "request 4 4096 100000 5000"),
        ("stream", "answer-tokens 100", "ask-tokens 5 100"),
        ("stream", "receive 6 65536 500000", "send 6 65536 500000"),
    ];
    /// Linux has it since 6.7.
    const ZEROCOPY: (&str, &str, &str) = ("stream", "receive 7 65536 500000", "zerocopy 7 65536 500000");
    let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
    let zerocopy = (env.machine.kernel != Kernel::Stable).then_some(&ZEROCOPY);
    for (port, (kind, listening, connecting)) in (7000..).zip(PAIRS.iter().chain(zerocopy)) {
        let job = Background::listen(&mut guest, &format!("{kind} listen {port} {listening}"))?;
        remote::run(&mut guest, &format!("{kind} connect 1 {port} {connecting}"))?;
        job.finish(&mut guest).with_context(|| format!("the listening end of {connecting}"))?;
    }
    for kind in ["stream", "seqpacket"] {
        remote::run(&mut guest, &format!("{kind} connect 1 6999 refused"))?;
    }
    Ok(String::new())
}
