//! What a VM's children have told, summed up.

use zerowire_net::{LinkStats, Negotiated, PortState, VmConfig, VmStats};

use super::message::{ChildState, ChildStats, VmFigures};
use crate::sandbox::cpu::CpuShare;
use crate::sandbox::figures::{add, keep_counters};

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(super) struct Sums {
    before: VmFigures,
    now: VmFigures,
    state: ChildState,
    cpu: CpuShare,
    /// Whether a front end is connected, as the child that runs says.
    pub(super) connected: bool,
    /// Children that died and were replaced.
    pub(super) restarts: u64,
    /// Why the last child ended.
    death: Option<String>,
}

impl Sums {
    /// Before the first child.
    pub(super) fn new(cpu: CpuShare) -> Self {
        Self { cpu, ..Self::default() }
    }

    /// The child that runs has told this.
    pub(super) fn told(&mut self, stats: ChildStats) {
        let (state, mut figures) = stats.told();
        self.cpu.tell(state.cpu_seconds);
        keep_counters(&mut figures, &mut self.now);
        (self.now, self.state) = (figures, state);
    }

    /// The child has ended, and why if that is an error.
    pub(super) fn died(&mut self, why: Option<String>) {
        self.cpu.restart();
        add(&mut self.before, std::mem::take(&mut self.now));
        self.state = ChildState::default();
        self.death = why.map(|why| format!("its process ended: {why}")).or(self.death.take());
    }

    /// As the statistics have it.
    pub(super) fn stats(&self, config: &VmConfig, port: PortState) -> VmStats {
        let (mut sum, state) = (self.before.clone(), self.state.clone());
        add(&mut sum, self.now.clone());
        sum.forget_unused();
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
    use crate::sandbox::figures::SentFigures;
    use crate::sandbox::message::counted;

    fn sent(mut figures: VmFigures) -> ChildStats {
        let pairs = figures.receive.frames_by_queue.len();
        ChildStats { pairs, figures: SentFigures::of(&mut figures), ..ChildStats::default() }
    }

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let mut sums = Sums::default();
        let told = |connections| sent(VmFigures { connections, ..VmFigures::default() });
        let connections = |sums: &Sums| sums.before.connections + sums.now.connections;
        sums.told(told(3));
        sums.died(Some("killed by signal 9".to_owned()));
        assert_eq!(connections(&sums), 3);
        sums.told(told(1));
        sums.told(told(2));
        assert_eq!(connections(&sums), 5);
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
        sums.told(ChildStats::default());
        assert_eq!(sums.now.connections, 7);
        let (mut shown, most) = (sums.now.clone(), told(7).receive);
        shown.forget_unused();
        let shown = shown.receive;
        assert_eq!((shown.totals, shown.kick_seconds), (most.totals, most.kick_seconds));
        assert_eq!((shown.frames_by_queue, shown.limit_waits), (most.frames_by_queue, 7));
        assert_eq!(shown.limit_wait_seconds, 7.0);
        sums.died(None);
        sums.told(sent(told(1)));
        let Sums { before, now, .. } = sums;
        assert_eq!((before.connections, now.connections), (7, 1), "the next child begins at 0");
    }

    /// Each child tells the most that is taken of it.
    #[test]
    fn sums_stay_within_the_bounds_of_what_is_told() {
        let figures = SentFigures { numbers: vec![u64::MAX; 1000], ..SentFigures::default() };
        let mut figures = ChildStats { pairs: 1, figures, ..ChildStats::default() };
        figures.figures.kicks.iter_mut().for_each(|kicks| kicks.buckets = [u64::MAX; 12]);
        let mut sums = Sums::default();
        for _ in 0..3 {
            sums.told(figures.clone());
            sums.died(Some("it was told to".to_owned()));
        }
        let Sums { before, .. } = sums;
        let VmFigures { connections, transmit, .. } = before;
        let all = [connections, transmit.totals.frames, transmit.limit_waits, transmit.frames_by_queue[0]];
        assert_eq!(all, [counted(u64::MAX); 4]);
        assert_eq!(transmit.kick_seconds.buckets, [counted(u64::MAX); 12]);
        assert_eq!(transmit.totals.copied_total(), counted(u64::MAX) * CopyReason::ALL.len() as u64);
    }
}
