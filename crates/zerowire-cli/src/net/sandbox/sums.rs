//! What a VM's children have told, summed up.

use zerowire_net::{DirectionStats, LinkState, PortState, VmConfig, VmStats};

use super::message::ChildStats;

/// Copies on the way of a tap's frames that no process makes.
const KERNEL_COPIES: &str = "one each way, between the frame and the tap's socket buffer (drivers/net/tun.c)";

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(super) struct Sums {
    before: ChildStats,
    transmit: DirectionStats,
    receive: DirectionStats,
    now: ChildStats,
    /// Why the last child ended.
    death: Option<String>,
}

impl Sums {
    /// The child that runs has told this.
    pub(super) fn told(&mut self, stats: ChildStats) {
        self.now = stats;
    }

    /// No child runs.
    pub(super) fn disconnected(&mut self) {
        self.now.connected = false;
    }

    /// The child has ended.
    pub(super) fn died(&mut self, why: String) {
        let last = std::mem::take(&mut self.now);
        self.before.cpu_seconds += last.cpu_seconds;
        for (sum, n) in counters(&mut self.before).into_iter().zip(counters(&mut last.clone())) {
            *sum += *n;
        }
        add(&mut self.transmit, &last.transmit.stats());
        add(&mut self.receive, &last.receive.stats());
        self.death = Some(format!("its process ended: {why}"));
    }

    /// As the statistics have it, and the CPU time, seconds.
    pub(super) fn stats(&self, config: &VmConfig, interface: &str) -> (VmStats, f64) {
        let mut sum = self.before.clone();
        for (sum, n) in counters(&mut sum).into_iter().zip(counters(&mut self.now.clone())) {
            *sum += *n;
        }
        let (mut transmit, mut receive) = (self.transmit.clone(), self.receive.clone());
        add(&mut transmit, &self.now.transmit.stats());
        add(&mut receive, &self.now.receive.stats());
        let stats = VmStats {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            port: config.port.to_string(),
            connected: self.now.connected,
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
                interface: interface.to_owned(),
                interface_state: LinkState::by_name(interface),
                link: None,
                kernel_copies: KERNEL_COPIES,
                capture: None,
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

fn add(sum: &mut DirectionStats, more: &DirectionStats) {
    sum.totals.add(&more.totals);
    sum.limit_waits += more.limit_waits;
    sum.limit_wait_seconds += more.limit_wait_seconds;
    let len = sum.frames_by_queue.len().max(more.frames_by_queue.len());
    sum.frames_by_queue.resize(len, 0);
    for (sum, n) in sum.frames_by_queue.iter_mut().zip(&more.frames_by_queue) {
        *sum += *n;
    }
}

#[cfg(test)]
mod tests {
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
        sums.died("killed by signal 9".to_owned());
        assert_eq!(connections(&sums), 3);
        sums.told(told(1));
        sums.told(told(2));
        assert_eq!(connections(&sums), 5);
        assert_eq!(sums.death.as_deref(), Some("its process ended: killed by signal 9"));
    }
}
