//! What a VM's mapped connections may take of the process: each has two mappings, three
//! descriptors, and the memory of its windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use zerowire_wire::mapped::MapOptions;

use super::MapPolicy;
use crate::VsockCounters;

/// Mapped connections of a VM that its share always has.
const LEAST_SHARE: u64 = 8;

/// What Linux allows a process where nobody says otherwise (`DEFAULT_MAX_MAP_COUNT`).
const MAX_MAP_COUNT: u64 = 65_530;

/// What the mapped connections of a VM take now. Those that wait for their guest's answer count.
#[derive(Debug, Default)]
pub struct MapUse {
    connections: AtomicU64,
    windows: AtomicU64,
    bytes: AtomicU64,
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
    /// process may have, of `vms` VMs, and no more than all of its connections.
    pub fn complete(&mut self, vms: usize, all_connections: usize) {
        self.max_connections.get_or_insert_with(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            let mappings = text.trim().parse().unwrap_or(MAX_MAP_COUNT);
            let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            share(mappings, descriptors, vms).min(all_connections)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_vms_leave_half_of_what_the_process_may_have() {
        assert_eq!(share(65_530, u64::MAX, 1), 16_382);
        assert_eq!(share(65_530, 524_288, 256), 63);
        assert_eq!(share(65_530, 4096, 4), 170);
        assert_eq!(share(65_530, 1024, 256), LEAST_SHARE as usize);
        for vms in [1, 2, 7, 256] {
            let all = vms as u64 * share(65_530, 20_000, vms) as u64;
            assert!(2 * all <= 65_530 / 2 && 3 * all <= 20_000 / 2, "{all} of {vms} VMs");
        }
    }

    #[test]
    fn each_bound_is_named_and_what_is_given_back_can_be_had_again() {
        let counters = Arc::<VsockCounters>::default();
        let options = MapOptions { windows: 2, data_pages: 1, ..MapOptions::default() };
        let each = options.total_len();
        let claim = |most, bytes| MapClaim::new(&counters, &options, most, bytes);
        let first = claim(2, 3 * each).expect("the first one");
        let second = claim(2, 3 * each).expect("another one");
        let used = &counters.mapped;
        assert_eq!((used.connections(), used.windows(), used.bytes()), (2, 4, 2 * each));
        let text = claim(2, 3 * each).expect_err("too many");
        assert!(text.contains("2 of 2 mapped connections (--map-connections)"), "{text}");
        let text = claim(3, 3 * each - 1).expect_err("too large");
        let (named, most) = (format!("has {} of", 2 * each), format!("{} (--map-total)", 3 * each - 1));
        assert!(text.contains(&named) && text.contains(&most), "{text}");
        drop(first);
        let third = claim(2, 2 * each).expect("there is room again");
        drop((second, third));
        assert_eq!((used.connections(), used.windows(), used.bytes()), (0, 0, 0));
        let text = claim(0, each).expect_err("none at all");
        assert!(text.contains("0 of 0"), "{text}");
        // The handshake's text has 192 bytes.
        let text = MapClaim::new(&counters, &MapOptions { data_pages: 4096, ..options }, 1, 1 << 20);
        assert!(text.is_err_and(|t| t.len() < 180));
    }
}
