//! `zerowire send` in a guest, over AF_VSOCK to a unix socket of the host. Every byte arrives. What
//! the guest's kernel says of copies is what was requested, what it can do, and what it does.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::send::{self, PatternFile, Said};
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::{VsockKind, host};

use super::lent;
use super::setup::{HOST, Vsock, together};

/// An odd length, so that the last call is a short one.
const FILE: PatternFile = PatternFile { seed: 90, bytes: (4 << 20) + 4_321 };

/// Bytes of a call, less than the credit that the back end gives. A call that the credit does not
/// cover is copied by the kernel, though it was lent (`virtio_transport_can_zcopy` in Linux
/// `net/vmw_vsock/virtio_transport_common.c`).
const CHUNK_BYTES: usize = 64 << 10;

/// Of lent bytes, percent that the kernel must not have copied.
const ZERO_COPIED: u64 = 50;

/// Where the host listens.
const PORT: u32 = 1010;

/// Copying, lending and choosing, by socket calls and by io_uring.
pub fn vsock(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    FILE.write(&mut vsock.guest)?;
    let listener = host::Listener::new(&vsock.uds(), PORT, VsockKind::Stream)?;
    let to = format!("vsock:{HOST}:{PORT}");
    let mut text = Vec::new();
    for backend in ["socket", "uring"] {
        for mode in ["copy", "zerocopy", "auto"] {
            let options = format!("--mode {mode} --backend {backend} --chunk {CHUNK_BYTES}");
            let load = Load { seed: FILE.seed, bytes: FILE.bytes, write_bytes: 0 };
            let receive = || job::receive_whole(listener.accept()?, load);
            let sent = together(receive, || send::complete(&mut vsock.guest, &to, FILE, &options));
            let checked = sent.and_then(|(said, ())| check(&said, mode, backend, env.machine.kernel));
            let percent = checked.with_context(|| options.clone())?;
            text.push(format!("{mode} {backend}: {percent} %"));
        }
    }
    let truth = lent::truth(&mut vsock, env.machine.kernel).context("payloads that change on their way")?;
    // The old kernel lends nothing.
    let choices = match env.machine.kernel {
        Kernel::Stable => String::new(),
        Kernel::New => format!("; chosen: {}", lent::choices(&mut vsock).context("what is chosen")?),
    };
    vsock.finish()?;
    Ok(format!("zero-copied: {}; new bytes came of {truth}{choices}", text.join(", ")))
}

/// Fails unless the ledger is what this mode means on this kernel; returns the percentage that was
/// zero-copied.
fn check(said: &Said, mode: &str, backend: &str, kernel: Kernel) -> Result<u64> {
    let Said { path, ledger, .. } = said;
    let lent = ledger.zero_copied_bytes + ledger.copied("kernel");
    // AF_VSOCK sockets lend since Linux 6.7, and io_uring doesn't say what is copied of that.
    let refusal = match (backend, kernel) {
        ("uring", _) => Some("io_uring does not say"),
        (_, Kernel::Stable) => Some("vsock refuses"),
        (_, Kernel::New) => None,
    };
    match (mode, refusal) {
        ("copy", _) => ensure!(ledger.copied("asked") == FILE.bytes, "not copied as asked: {said:?}"),
        (_, Some(refusal)) => {
            ensure!(path.contains(refusal), "the path does not say why: {path}");
            ensure!(lent == 0 && ledger.copied("unsupported") > 0, "not copied as unsupported: {said:?}");
            ensure!(
                mode == "auto" || ledger.copied("unsupported") == FILE.bytes,
                "copied for another reason: {said:?}"
            );
        }
        ("zerocopy", _) => {
            ensure!(lent == FILE.bytes, "copied before it was lent: {said:?}");
            ensure!(ledger.zero_copied_bytes * 100 >= lent * ZERO_COPIED, "mostly copied: {said:?}");
        }
        // As it comes out of the trials.
        _ => ensure!(lent > 0, "nothing was tried: {said:?}"),
    }
    Ok(ledger.zero_copied_bytes * 100 / FILE.bytes)
}
