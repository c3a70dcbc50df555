//! What the children of a VM have told, summed up.

use zerowire_capture::CaptureStats;
use zerowire_vhost::host::KickHistogram;
use zerowire_vsock::{VsockConfig, VsockTotals, VsockVmStats};

use super::message::VmTold;
use crate::sandbox::message::{counted, kicks};

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(super) struct VmSums {
    before: VmTold,
    now: VmTold,
    /// Whether a front end is connected, as the child that runs says.
    pub(super) connected: bool,
    /// Why the last child ended.
    death: Option<String>,
}

impl VmSums {
    /// The child that runs has told this.
    pub(super) fn told(&mut self, stats: VmTold) {
        self.now = stats;
    }

    /// The child has ended.
    pub(super) fn died(&mut self, why: &str) {
        let last = std::mem::take(&mut self.now);
        add(&mut self.before, last);
        self.connected = false;
        self.death = Some(format!("its process ended: {why}"));
    }

    /// As the statistics have it.
    pub(super) fn stats(&self, config: &VsockConfig, capture: Option<CaptureStats>) -> VsockVmStats {
        let mut sum = self.before.clone();
        add(&mut sum, self.now.clone());
        sum.forget_unused();
        let (now, last_error) = (&self.now, self.now.totals.last_error.as_ref());
        VsockVmStats {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            cid: config.cid,
            uds: config.uds.display().to_string(),
            groups: config.groups.clone(),
            connected: self.connected,
            connections: sum.connections,
            connection_errors: sum.connection_errors,
            features: now.features.clone(),
            protocol_features: now.protocol_features.clone(),
            device_status: now.device_status,
            path: VsockVmStats::PATH,
            kernel_copies: VsockVmStats::KERNEL_COPIES,
            totals: VsockTotals {
                // What the child says of its front end is newer than the end of the one before it.
                last_error: last_error.or(self.death.as_ref()).cloned(),
                ..sum.totals
            },
            capture,
        }
    }
}

/// Adds counters up; the present state is that of `more`.
fn add(sum: &mut VmTold, mut more: VmTold) {
    for (i, (sum, n)) in sum.numbers().into_iter().zip(more.numbers()).enumerate() {
        *sum = if i < VmTold::LEVELS { *n } else { counted(*sum + *n) };
    }
    let (limits, kicked, more) = (&mut sum.totals.limits, &more.totals.kicks, &more.totals.limits);
    limits.transmit_limit_wait_seconds += more.transmit_limit_wait_seconds;
    limits.receive_limit_wait_seconds += more.receive_limit_wait_seconds;
    add_kicks(&mut sum.totals.kicks.transmit_kick_seconds, &kicked.transmit_kick_seconds);
    add_kicks(&mut sum.totals.kicks.receive_kick_seconds, &kicked.receive_kick_seconds);
}

fn add_kicks(sum: &mut KickHistogram, more: &KickHistogram) {
    sum.add(more);
    // A sum has the bounds of what one child tells, so the next one does not overflow.
    *sum = kicks(sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire_vhost::serve::Endpoint;

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let config = VsockConfig {
            name: "a".to_owned(),
            endpoint: Endpoint::Path("/run/a".into()),
            access: Default::default(),
            cid: 3,
            uds: "/run/a.host".into(),
            uds_access: Default::default(),
            groups: Vec::new(),
            limits: Default::default(),
            rates: Default::default(),
            map: Default::default(),
        };
        let told = |n: u64| {
            let mut stats = VmTold { connections: n, ..VmTold::default() };
            (stats.totals.transmit.bytes, stats.totals.resets) = (10 * n, n);
            (stats.totals.connections_open, stats.totals.mapped.mapped_windows) = (n, n);
            stats.totals.kicks.transmit_kick_seconds = KickHistogram { sum: 1.0, buckets: [n; 12] };
            stats
        };
        let mut sums = VmSums::default();
        sums.told(told(3));
        sums.told(told(4));
        sums.connected = true;
        sums.died("killed by signal 9");
        let stats = sums.stats(&config, None);
        assert_eq!((stats.connections, stats.totals.transmit.bytes, stats.totals.resets), (4, 40, 4));
        assert_eq!((stats.connected, stats.totals.connections_open), (false, 0), "these are of now");
        assert_eq!(stats.totals.mapped.mapped_windows, 0);
        assert_eq!(stats.totals.last_error.as_deref(), Some("its process ended: killed by signal 9"));
        sums.told(told(1));
        let stats = sums.stats(&config, None);
        assert_eq!((stats.connections, stats.totals.transmit.bytes, stats.totals.resets), (5, 50, 5));
        assert_eq!((stats.totals.connections_open, stats.totals.mapped.mapped_windows), (1, 1));
        let kicks = stats.totals.kicks.transmit_kick_seconds;
        assert_eq!((kicks.sum, kicks.buckets), (2.0, [5; 12]));
    }
}
