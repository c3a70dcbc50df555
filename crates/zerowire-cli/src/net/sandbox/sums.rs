//! What a VM's children have told, summed up.

use zerowire_net::{DirectionStats, LinkStats, PortState, VmConfig, VmStats};

use super::message::{ChildDirection, ChildStats};
use crate::sandbox::cpu::CpuShare;
use crate::sandbox::message::{counted, raise, raise_kicks};

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(super) struct Sums {
    before: ChildStats,
    transmit: DirectionStats,
    receive: DirectionStats,
    now: ChildStats,
    cpu: CpuShare,
    /// Whether a front end is connected, as the child that runs says.
    connected: bool,
    /// Connections that the children before it ended since the link was down.
    disconnects: u64,
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
    pub(super) fn told(&mut self, mut stats: ChildStats) {
        self.cpu.tell(stats.cpu_seconds);
        keep_counters(&mut stats, &mut self.now);
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
        self.cpu.restart();
        add_counters(&mut self.before, &mut last);
        add(&mut self.transmit, &last.transmit.stats());
        add(&mut self.receive, &last.receive.stats());
        self.disconnects = counted(self.disconnects + last.link.map_or(0, |link| link.disconnects));
        self.death = why.map(|why| format!("its process ended: {why}")).or(self.death.take());
    }

    /// As the statistics have it.
    pub(super) fn stats(&self, config: &VmConfig, port: PortState) -> VmStats {
        let link = self.now.link.clone();
        let mut sum = self.before.clone();
        add_counters(&mut sum, &mut self.now.clone());
        let (mut transmit, mut receive) = (self.transmit.clone(), self.receive.clone());
        add(&mut transmit, &self.now.transmit.stats());
        add(&mut receive, &self.now.receive.stats());
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
            last_error: self.now.last_error.clone().or_else(|| self.death.clone()),
            path: self.now.path.clone(),
            negotiated: self.now.negotiated(),
            port_state: PortState {
                link: link.map(|link| LinkStats { disconnects: link.disconnects + self.disconnects, ..link }),
                ..port
            },
            transmit,
            receive,
        }
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

/// Counters that are lower than before stay as they were.
fn keep_counters(now: &mut ChildStats, before: &mut ChildStats) {
    counters(now).into_iter().zip(counters(before)).for_each(|(now, before)| raise(now, *before));
    if let Some((now, before)) = now.link.as_mut().zip(before.link.as_ref()) {
        raise(&mut now.disconnects, before.disconnects);
    }
    keep_direction(&mut now.transmit, &before.transmit);
    keep_direction(&mut now.receive, &before.receive);
}

fn keep_direction(told: &mut ChildDirection, before: &ChildDirection) {
    let (mut now, before) = (told.stats(), before.stats());
    let (totals, last) = (&mut now.totals, &before.totals);
    for (now, before) in [
        (&mut totals.frames, last.frames),
        (&mut totals.bytes, last.bytes),
        (&mut totals.zero_copied_frames, last.zero_copied_frames),
        (&mut totals.zero_copied_bytes, last.zero_copied_bytes),
        (&mut totals.system_calls, last.system_calls),
        (&mut totals.kicks, last.kicks),
        (&mut totals.calls, last.calls),
        (&mut now.limit_waits, before.limit_waits),
    ] {
        raise(now, before);
    }
    last.copied_bytes.iter().for_each(|(r, n)| raise(totals.copied_bytes.entry(r).or_default(), *n));
    last.dropped_frames.iter().for_each(|(r, n)| raise(totals.dropped_frames.entry(r).or_default(), *n));
    let queues = now.frames_by_queue.len().max(before.frames_by_queue.len());
    now.frames_by_queue.resize(queues, 0);
    now.frames_by_queue.iter_mut().zip(&before.frames_by_queue).for_each(|(now, n)| raise(now, *n));
    now.limit_wait_seconds = now.limit_wait_seconds.max(before.limit_wait_seconds);
    raise_kicks(&mut now.kick_seconds, &before.kick_seconds);
    *told = (&now).into();
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
    use zerowire::ledger::{CopyReason, DropReason};

    use super::*;

    #[test]
    fn counters_of_a_vm_outlive_its_children() {
        let mut sums = Sums::default();
        let told = |connections| ChildStats { connections, ..ChildStats::default() };
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

    /// Two ask at once, and the first answer comes last.
    #[test]
    fn a_late_answer_lowers_no_counter() {
        let told = |n: u64| {
            let mut all =
                DirectionStats { limit_waits: n, limit_wait_seconds: n as f64, ..Default::default() };
            (all.totals.frames, all.totals.calls, all.frames_by_queue) = (n, n, vec![n; n as usize]);
            all.totals.dropped_frames.insert(DropReason::ALL[0].name(), n);
            all.kick_seconds.buckets = [n; 12];
            ChildStats { connections: n, receive: (&all).into(), ..ChildStats::default() }
        };
        let mut sums = Sums::default();
        sums.told(told(7));
        sums.told(told(3));
        sums.told(ChildStats::default());
        assert_eq!(sums.now.connections, 7);
        let (shown, most) = (sums.now.receive.stats(), told(7).receive.stats());
        assert_eq!((shown.totals, shown.kick_seconds), (most.totals, most.kick_seconds));
        assert_eq!((shown.frames_by_queue, shown.limit_waits), (most.frames_by_queue, 7));
        assert_eq!(shown.limit_wait_seconds, 7.0);
        sums.died(None);
        sums.told(told(1));
        let Sums { before, now, .. } = sums;
        assert_eq!((before.connections, now.connections), (7, 1), "the next child begins at 0");
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
