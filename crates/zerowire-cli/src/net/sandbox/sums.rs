//! What a VM's children have told, as the statistics have it.

use zerowire_net::{LinkStats, Negotiated, PortState, VmConfig, VmStats};

use super::message::VmFigures;
use crate::sandbox::sums::Sums;

impl Sums<VmFigures> {
    /// As the statistics have it.
    pub(super) fn stats(&self, config: &VmConfig, port: PortState) -> VmStats {
        let (sum, state) = (self.sum(), self.now.state.clone());
        let disconnects = sum.disconnects;
        VmStats {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            port: config.port.to_string(),
            connected: self.connected,
            connections: sum.connections,
            connection_errors: sum.connection_errors,
            ring_errors: sum.ring_errors,
            unsure_frames: sum.unsure_frames,
            out_of_order_frames: sum.out_of_order_frames,
            // What the child says of its front end is newer than the end of the one before it.
            last_error: state.last_error.or_else(|| self.death.clone()),
            path: state.path,
            negotiated: Negotiated {
                features: state.features,
                protocol_features: state.protocol_features,
                device_status: state.device_status,
            },
            port_state: PortState { link: state.link_up.map(|up| LinkStats { up, disconnects }), ..port },
            transmit: sum.transmit,
            receive: sum.receive,
        }
    }
}

#[cfg(test)]
mod tests {
    use zerowire::ledger::{CopyReason, DropReason};
    use zerowire_net::DirectionStats;

    use super::*;
    use crate::net::sandbox::message::ChildStats;
    use crate::sandbox::figures::SentFigures;
    use crate::sandbox::message::counted;

    fn sent(mut figures: VmFigures) -> VmFigures {
        let pairs = figures.receive.frames_by_queue.len();
        ChildStats { pairs, figures: SentFigures::of(&mut figures), ..ChildStats::default() }.told()
    }

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let mut sums = Sums::default();
        let told = |connections| sent(VmFigures { connections, ..VmFigures::default() });
        sums.told(told(3));
        sums.died(Some("killed by signal 9"));
        assert_eq!(sums.sum().connections, 3);
        sums.told(told(1));
        sums.told(told(2));
        assert_eq!(sums.sum().connections, 5);
        assert_eq!(sums.death.as_deref(), Some("its process ended: killed by signal 9"));
    }

    /// Two ask at once, and the first answer comes last.
    #[test]
    fn a_late_answer_lowers_no_counter() {
        let told = |n: u64| {
            let mut all =
                DirectionStats { limit_waits: n, limit_wait_seconds: n as f64, ..Default::default() };
            (all.totals.frames, all.totals.calls, all.frames_by_queue) = (n, n, vec![n; n as usize]);
            all.totals.dropped_frames.insert(DropReason::ALL[0].name(), n);
            all.kick_seconds.buckets = [n; 12];
            let idle = DirectionStats { frames_by_queue: vec![0; n as usize], ..Default::default() };
            VmFigures { connections: n, receive: all, transmit: idle, ..VmFigures::default() }
        };
        let mut sums = Sums::default();
        sums.told(sent(told(7)));
        sums.told(sent(told(3)));
        sums.told(ChildStats::default().told());
        assert_eq!(sums.now.connections, 7);
        let (shown, most) = (sums.sum().receive, told(7).receive);
        assert_eq!((shown.totals, shown.kick_seconds), (most.totals, most.kick_seconds));
        assert_eq!((shown.frames_by_queue, shown.limit_waits), (most.frames_by_queue, 7));
        assert_eq!(shown.limit_wait_seconds, 7.0);
        sums.died(None);
        sums.told(sent(told(1)));
        let counted = (sums.sum().connections, sums.now.connections);
        assert_eq!(counted, (8, 1), "the next child begins at 0");
    }

    /// Each child tells the most that is taken of it.
    #[test]
    fn sums_stay_within_the_bounds_of_what_is_told() {
        let figures = SentFigures { numbers: vec![u64::MAX; 1000], ..SentFigures::default() };
        let mut figures = ChildStats { pairs: 1, figures, ..ChildStats::default() };
        figures.figures.kicks.iter_mut().for_each(|kicks| kicks.buckets = [u64::MAX; 12]);
        let mut sums = Sums::default();
        for _ in 0..3 {
            sums.told(figures.clone().told());
            sums.died(Some("it was told to"));
        }
        let VmFigures { connections, transmit, .. } = sums.sum();
        let all = [connections, transmit.totals.frames, transmit.limit_waits, transmit.frames_by_queue[0]];
        assert_eq!(all, [counted(u64::MAX); 4]);
        assert_eq!(transmit.kick_seconds.buckets, [counted(u64::MAX); 12]);
        assert_eq!(transmit.totals.copied_total(), counted(u64::MAX) * CopyReason::ALL.len() as u64);
    }
}
