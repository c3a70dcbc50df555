//! The guests themselves: a machine that fails here can't say anything about
//! zerowire.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;
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
