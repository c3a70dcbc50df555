//! What a VM's children have told, summed up.

use zerowire_net::{DirectionStats, LinkStats, PortState, VmConfig, VmStats};

use super::message::{ChildDirection, ChildStats};
use crate::sandbox::message::counted;

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(super) struct Sums {
    before: ChildStats,
    transmit: DirectionStats,
    receive: DirectionStats,
    now: ChildStats,
    /// Whether a front end is connected, as the child that runs says.
    connected: bool,
    /// Connections that the children before it ended since the link was down.
    disconnects: u64,
    /// Why the last child ended.
    death: Option<String>,
}

impl Sums {
    /// The child that runs has told this.
    pub(super) fn told(&mut self, stats: ChildStats) {
        self.now = stats;
    }

    /// A front end has come, or gone: by itself, or with the child.
    pub(super) fn set_connected(&mut self, connected: bool) {
        self.connected = connected;
    }

    /// Whether a front end is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// The child has ended, and why if that is an error.
    pub(super) fn died(&mut self, why: Option<String>) {
        let mut last = std::mem::take(&mut self.now);
        self.before.cpu_seconds += last.cpu_seconds;
        add_counters(&mut self.before, &mut last);
        add(&mut self.transmit, &last.transmit.stats());
        add(&mut self.receive, &last.receive.stats());
        self.disconnects = counted(self.disconnects + last.link.map_or(0, |link| link.disconnects));
        self.death = why.map(|why| format!("its process ended: {why}")).or(self.death.take());
    }

    /// As the statistics have it, and the CPU time, seconds.
    pub(super) fn stats(&self, config: &VmConfig, port: PortState) -> (VmStats, f64) {
        let link = self.now.link.clone();
        let mut sum = self.before.clone();
        add_counters(&mut sum, &mut self.now.clone());
        let (mut transmit, mut receive) = (self.transmit.clone(), self.receive.clone());
        add(&mut transmit, &self.now.transmit.stats());
        add(&mut receive, &self.now.receive.stats());
        let stats = VmStats {
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
            last_error: self.now.last_error.clone().or_else(|| self.death.clone()),
            path: self.now.path.clone(),
            negotiated: self.now.negotiated(),
            port_state: PortState {
                link: link.map(|link| LinkStats { disconnects: link.disconnects + self.disconnects, ..link }),
                ..port
            },
            transmit,
            receive,
        };
        (stats, self.before.cpu_seconds + self.now.cpu_seconds)
    }
}

fn counters(stats: &mut ChildStats) -> [&mut u64; 5] {
    [
        &mut stats.connections,
        &mut stats.connection_errors,
        &mut stats.ring_errors,
        &mut stats.unsure_frames,
        &mut stats.out_of_order_frames,
    ]
}

fn add_counters(sum: &mut ChildStats, more: &mut ChildStats) {
    for (sum, n) in counters(sum).into_iter().zip(counters(more)) {
        *sum = counted(*sum + *n);
    }
}

fn add(sum: &mut DirectionStats, more: &DirectionStats) {
    sum.totals.add(&more.totals);
    sum.limit_waits += more.limit_waits;
    sum.limit_wait_seconds += more.limit_wait_seconds;
    sum.kick_seconds.add(&more.kick_seconds);
    let len = sum.frames_by_queue.len().max(more.frames_by_queue.len());
    sum.frames_by_queue.resize(len, 0);
    for (sum, n) in sum.frames_by_queue.iter_mut().zip(&more.frames_by_queue) {
        *sum += *n;
    }
    // A sum has the bounds of what one child tells, so the next one does not overflow.
    *sum = ChildDirection::from(&*sum).stats();
}

#[cfg(test)]
mod tests {
    use zerowire::ledger::CopyReason;

    use super::*;

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let mut sums = Sums::default();
        let told = |connections| ChildStats { connections, cpu_seconds: 0.5, ..ChildStats::default() };
        let connections = |sums: &Sums| {
            let mut all = sums.before.clone();
            *counters(&mut all)[0] + sums.now.connections
        };
        sums.told(told(3));
        sums.died(Some("killed by signal 9".to_owned()));
        assert_eq!(connections(&sums), 3);
        sums.told(told(1));
        sums.told(told(2));
        assert_eq!(connections(&sums), 5);
        assert_eq!(sums.death.as_deref(), Some("its process ended: killed by signal 9"));
    }

    /// Each child tells the most that is taken of it.
    #[test]
    fn sums_stay_within_the_bounds_of_what_is_told() {
        let mut most = DirectionStats { limit_waits: u64::MAX, ..DirectionStats::default() };
        (most.totals.frames, most.frames_by_queue) = (u64::MAX, vec![u64::MAX]);
        most.kick_seconds.buckets = [u64::MAX; 12];
        most.totals.copied_bytes.extend(CopyReason::ALL.map(|reason| (reason.name(), u64::MAX)));
        let told = ChildStats { connections: u64::MAX, transmit: (&most).into(), ..ChildStats::default() };
        let mut sums = Sums::default();
        for _ in 0..3 {
            sums.told(told.clone().bounded());
            sums.died(Some("it was told to".to_owned()));
        }
        let Sums { before, transmit, .. } = sums;
        let all =
            [before.connections, transmit.totals.frames, transmit.limit_waits, transmit.frames_by_queue[0]];
        assert_eq!(all, [counted(u64::MAX); 4]);
        assert_eq!(transmit.kick_seconds.buckets, [counted(u64::MAX); 12]);
        assert_eq!(transmit.totals.copied_total(), counted(u64::MAX) * CopyReason::ALL.len() as u64);
    }
}
