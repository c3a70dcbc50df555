//! What a VM's mapped connections may take of the process: each has two mappings, three
//! descriptors, and the memory of its windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use zerowire::ledger::Counter;
use zerowire_wire::mapped::MapOptions;

use super::MapPolicy;
use crate::VsockCounters;

/// Mapped connections of a VM that its share always has.
const LEAST_SHARE: u64 = 8;

/// What Linux allows a process where nobody says otherwise (`DEFAULT_MAX_MAP_COUNT`).
const MAX_MAP_COUNT: u64 = 65_530;

/// What the mapped connections of a VM take now, and how often they got nothing. Those that wait
/// for their guest's answer count.
#[derive(Debug, Default)]
pub struct MapUse {
    connections: AtomicU64,
    windows: AtomicU64,
    bytes: AtomicU64,
    /// Connections for which a bound left nothing, or the process had nothing.
    pub refused: Counter,
}

impl MapUse {
    /// Connections.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Their windows.
    pub fn windows(&self) -> u64 {
        self.windows.load(Ordering::Relaxed)
    }

    /// Bytes of these, headers included.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What one connection takes of its VM's quota, until this is dropped.
#[derive(Debug)]
pub struct MapClaim {
    counters: Arc<VsockCounters>,
    windows: u64,
    bytes: u64,
}

impl MapClaim {
    /// Takes what a connection needs. The error says which bound it would pass, and what to do.
    pub fn new(
        counters: &Arc<VsockCounters>,
        options: &MapOptions,
        most_connections: usize,
        most_bytes: u64,
    ) -> Result<Self, String> {
        let used = &counters.mapped;
        if used.connections() >= most_connections as u64 {
            return Err(format!(
                "the VM has {} of {most_connections} mapped connections (--map-connections): close some, or give it more",
                used.connections()
            ));
        }
        let (windows, bytes) = (u64::from(options.windows), options.total_len());
        if used.bytes() + bytes > most_bytes {
            return Err(format!(
                "{bytes} bytes of windows don't fit: the VM has {} of {most_bytes} (--map-total): close connections, take \
                 smaller windows, or give it more",
                used.bytes()
            ));
        }
        used.connections.fetch_add(1, Ordering::Relaxed);
        used.windows.fetch_add(windows, Ordering::Relaxed);
        used.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self { counters: Arc::clone(counters), windows, bytes })
    }
}

impl Drop for MapClaim {
    fn drop(&mut self) {
        let used = &self.counters.mapped;
        used.connections.fetch_sub(1, Ordering::Relaxed);
        used.windows.fetch_sub(self.windows, Ordering::Relaxed);
        used.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A VM's share of mapped connections, of `vms` VMs. Together they take half of the mappings and
/// half of the descriptors that the process may have.
fn share(mappings: u64, descriptors: u64, vms: usize) -> usize {
    let all = (mappings / 4).min(descriptors / 6);
    (all / vms.max(1) as u64).max(LEAST_SHARE) as usize
}

impl MapPolicy {
    /// Sets the bound of mapped connections where none was given. It is the VM's share of what this
    /// process may have, of `vms` VMs, and no more than all of its connections. Sets the own user
    /// as well.
    pub fn complete(&mut self, vms: usize, all_connections: usize) {
        self.own_user.get_or_insert_with(|| rustix::process::geteuid().as_raw());
        self.max_connections.get_or_insert_with(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            let mappings = text.trim().parse().unwrap_or(MAX_MAP_COUNT);
            let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            share(mappings, descriptors, vms).min(all_connections)
        });
    }
}

#[cfg(test)]
mod tests;
