//! What a VM's children have told, as the statistics have it.

use zerowire_capture::CaptureStats;
use zerowire_vsock::{VsockConfig, VsockTotals, VsockVmStats};

use super::message::VmTold;
use crate::sandbox::sums::Sums;

impl Sums<VmTold> {
    /// As the statistics have it.
    pub(super) fn stats(&self, config: &VsockConfig, capture: Option<CaptureStats>) -> VsockVmStats {
        let sum = self.sum();
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire::ledger::DropReason;
    use zerowire_vhost::host::KickHistogram;
    use zerowire_vhost::serve::Endpoint;

    fn config() -> VsockConfig {
        VsockConfig::new("a", Endpoint::Path("/run/a".into()), 3, "/run/a.host")
    }

    fn told(n: u64) -> VmTold {
        let mut stats = VmTold { connections: n, ..VmTold::default() };
        (stats.totals.transmit.bytes, stats.totals.resets) = (10 * n, n);
        (stats.totals.connections_open, stats.totals.mapped.mapped_windows) = (n, n);
        stats.totals.limits.receive_limit_wait_seconds = n as f64;
        stats.totals.transmit.dropped_frames.insert(DropReason::ALL[0].name(), n);
        stats.totals.kicks.transmit_kick_seconds = KickHistogram { sum: 1.0, buckets: [n; 12] };
        stats
    }

    /// Two ask at once, and the first answer comes last.
    #[test]
    fn a_late_answer_lowers_no_counter() {
        let mut sums = Sums::default();
        sums.told(told(7));
        sums.told(told(3));
        let stats = sums.stats(&config(), None);
        assert_eq!((stats.connections, stats.totals.transmit.bytes, stats.totals.resets), (7, 70, 7));
        assert_eq!(stats.totals.limits.receive_limit_wait_seconds, 7.0);
        assert_eq!(stats.totals.transmit.dropped_frames, told(7).totals.transmit.dropped_frames);
        assert_eq!(stats.totals.kicks.transmit_kick_seconds.buckets, [7; 12]);
        assert_eq!(stats.totals.connections_open, 3, "that is no counter");
        sums.died(Some("killed by signal 9"));
        sums.told(told(1));
        assert_eq!(sums.stats(&config(), None).connections, 8, "the next child begins at 0");
    }

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let config = config();
        let mut sums = Sums::default();
        sums.told(told(3));
        sums.told(told(4));
        sums.connected = true;
        sums.died(Some("killed by signal 9"));
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
