//! Locked memory: enough for the ring, and not for the area.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use zerowire::recv::{Receiver, RecvBackend, RecvError};

use super::cases::options;

/// The area has 16 MiB; the queues and the refill ring together less than this (Linux 7.3 doesn't
/// charge queues at all).
const LIMIT: u64 = 1 << 20;

/// With CAP_NET_ADMIN and without CAP_IPC_LOCK the registration is refused, and the message says
/// what to do; either remedy helps.
pub fn refused(backend: RecvBackend) -> Result<String> {
    ensure!(backend == RecvBackend::NoDevice, "only without a device");
    let mut sets = capabilities(None).context("capget")?;
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).context("capset")?;
    let old = getrlimit(Resource::Memlock);
    let limit = |bytes| setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: Some(bytes) });
    let large = options(backend.clone(), 256).buffer_bytes(65536);
    limit(LIMIT).context("setrlimit")?;
    let said = match Receiver::new(large.clone()) {
        Err(error @ RecvError::ZeroCopy { .. }) => {
            ensure!(error.errno() == Some(libc::ENOMEM), "another error: {error}");
            error.to_string()
        }
        other => anyhow::bail!("an area of 16 MiB with {LIMIT} bytes of locked memory: {other:?}"),
    };
    for word in ["without a device", "16 MiB", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
        ensure!(said.contains(word), "no '{word}' in: {said}");
    }
    // A smaller area, as the message says.
    Receiver::new(options(backend.clone(), 16)).context("a small area under the same limit")?;
    // A larger limit, as it says, too.
    limit(64 << 20).context("setrlimit")?;
    Receiver::new(large).context("the same area under a larger limit")?;
    sets.effective.insert(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).context("capset")?;
    setrlimit(Resource::Memlock, old).context("setrlimit")?;
    Ok(said)
}
