//! Rights that a command which serves VMs gives up at its start.
//!
//! It has one thread then, so all threads and processes that it starts are without them, too.

use rustix::thread::{CapabilitySet, capabilities};

/// What serving VMs takes, whatever they have: sockets of other owners (CHOWN, FOWNER,
/// DAC_OVERRIDE, NET_ADMIN), an address for metrics (NET_BIND_SERVICE), confined processes of
/// another user with namespaces of their own (SETUID, SETGID, SETPCAP, SETFCAP, SYS_ADMIN, KILL),
/// and as many descriptors under way in sockets as there are VMs (SYS_RESOURCE).
pub const OF_ANY_VM: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_RESOURCE);

/// What packet and XDP ports take besides: their sockets (NET_RAW), a program of the interface's
/// (BPF, PERFMON), pinned memory (IPC_LOCK).
pub const OF_INTERFACES: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK);

/// What `--postcopy` takes besides: a userfaultfd.
pub const OF_POSTCOPY: CapabilitySet = CapabilitySet::SYS_PTRACE;

/// What was given up, for the log.
pub struct GivenUp(Result<(), String>);

impl GivenUp {
    /// Keeps these capabilities alone, and gains no other.
    pub fn all_but(kept: CapabilitySet) -> Self {
        Self(zerowire_confine::keep_capabilities(kept))
    }

    /// Tells the log.
    pub fn log(&self) {
        let had = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
        let names: Vec<_> = had.iter_names().map(|(name, _)| name).collect();
        match &self.0 {
            Ok(()) => tracing::debug!("capabilities of this process: {}", names.join(" ")),
            Err(e) => tracing::warn!("this process keeps rights that it does not need: {e}"),
        }
    }
}
