//! What the supervisor and a child of a vsock group say to each other.

use serde::{Deserialize, Serialize};
use zerowire::ledger::Totals;
use zerowire_confine::ConfineReport;
use zerowire_vhost::serve::{Endpoint, SocketAccess};
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{VsockConfig, VsockLimits, VsockServerStats, VsockTotals};

use crate::sandbox::link::ChildAnswer;
use crate::sandbox::message::{Rates, counted, seconds, short, texts};

/// VMs in an answer at most: their statistics fit a message.
pub(super) const VMS: usize = 8;

/// What the first message says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupSetup {
    /// VMs of the group. A message for each follows.
    pub vms: usize,
    /// Whom the child belongs to.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// What it logs.
    pub log: String,
}

/// A VM as a child must know it. Descriptors come with it: the socket on which its front end
/// connects, and those of its end on the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VmSetup {
    name: String,
    /// The path of its socket, for the log.
    socket: String,
    cid: u64,
    /// The path of its end on the host, for the log.
    uds: String,
    groups: Vec<String>,
    limits: VsockLimits,
    rates: Rates,
    map: MapPolicy,
}

impl VmSetup {
    pub(super) fn of(config: &VsockConfig) -> Self {
        Self {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            cid: config.cid,
            uds: config.uds.display().to_string(),
            groups: config.groups.clone(),
            limits: config.limits,
            rates: Rates::of(config.rates),
            map: config.map.clone(),
        }
    }

    /// The VM that a child serves.
    pub(super) fn config(self) -> Result<VsockConfig, String> {
        Ok(VsockConfig {
            name: self.name,
            endpoint: Endpoint::Path(self.socket.into()),
            access: SocketAccess::default(),
            cid: self.cid,
            uds: self.uds.into(),
            uds_access: SocketAccess::default(),
            groups: self.groups,
            limits: self.limits,
            rates: self.rates.limits()?,
            map: self.map,
        })
    }
}

/// What the supervisor says. A VM is its place in the group.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GroupOrder {
    /// The first message.
    Start(GroupSetup),
    /// The next VM.
    Vm(Box<VmSetup>),
    /// Asks for statistics of up to [`VMS`] VMs from one on. The answer has this number.
    Statistics { number: u64, first: usize },
    /// The answer to [`GroupWord::Connect`]: a descriptor that comes with it, or why there is none.
    Connected { vm: usize, number: u64, errno: Option<i32> },
}

/// What a child says. The supervisor trusts none of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GroupWord {
    /// Front ends can connect.
    Ready(ConfineReport),
    /// It can't serve the group, and ends.
    Failed(String),
    /// The answer with this number: statistics.
    Statistics(u64, Box<ChildStats>),
    /// A VM's guest connects to a port of the host, by a socket of this type. The answer has this
    /// number.
    Connect { vm: usize, number: u64, port: u32, kind: u16 },
}

impl ChildAnswer for GroupWord {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Statistics(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// Statistics of a child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildStats {
    /// CPU time, seconds.
    pub cpu_seconds: f64,
    pub vms: Vec<ChildVmStats>,
}

/// What a child alone knows of a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildVmStats {
    pub connected: bool,
    pub connections: u64,
    pub connection_errors: u64,
    pub features: Vec<String>,
    pub protocol_features: String,
    pub device_status: u64,
    pub totals: VsockTotals,
}

impl ChildStats {
    pub(super) fn of(server: &VsockServerStats, first: usize) -> Self {
        let vms = server.vms.iter().skip(first).take(VMS).map(|vm| ChildVmStats {
            connected: vm.connected,
            connections: vm.connections,
            connection_errors: vm.connection_errors,
            features: vm.features.clone(),
            protocol_features: vm.protocol_features.clone(),
            device_status: vm.device_status,
            totals: VsockTotals {
                // A message has room for a short text.
                last_error: vm.totals.last_error.as_deref().map(short),
                ..vm.totals.clone()
            },
        });
        Self { cpu_seconds: server.cpu_seconds, vms: vms.collect() }
    }

    /// The same with bounds, as one may show it.
    pub(super) fn bounded(mut self) -> Self {
        self.cpu_seconds = seconds(self.cpu_seconds);
        self.vms.truncate(VMS);
        self.vms.iter_mut().for_each(ChildVmStats::bound);
        self
    }
}

impl ChildVmStats {
    /// What grows as long as the VM is served.
    pub(super) fn sums(&mut self) -> [&mut u64; 13] {
        let totals = &mut self.totals;
        [
            &mut self.connections,
            &mut self.connection_errors,
            &mut totals.ring_errors,
            &mut totals.connections_opened,
            &mut totals.connections_refused,
            &mut totals.requests_over_rate,
            &mut totals.mapped.mapped_refused,
            &mut totals.resets,
            &mut totals.bad_handshakes,
            &mut totals.control_packets,
            &mut totals.stale_credit,
            &mut totals.limits.transmit_limit_waits,
            &mut totals.limits.receive_limit_waits,
        ]
    }

    /// What there is now.
    fn levels(&mut self) -> [&mut u64; 4] {
        let VsockTotals { connections_open, mapped, .. } = &mut self.totals;
        [
            connections_open,
            &mut mapped.mapped_connections,
            &mut mapped.mapped_windows,
            &mut mapped.mapped_bytes,
        ]
    }

    fn bound(&mut self) {
        for n in self.sums() {
            *n = counted(*n);
        }
        for n in self.levels() {
            *n = counted(*n);
        }
        self.features = texts(&self.features);
        self.protocol_features = short(&self.protocol_features);
        let totals = &mut self.totals;
        totals.last_error = totals.last_error.as_deref().map(short);
        let limits = &mut totals.limits;
        for waited in [&mut limits.transmit_limit_wait_seconds, &mut limits.receive_limit_wait_seconds] {
            *waited = seconds(*waited);
        }
        [&mut totals.transmit, &mut totals.receive].into_iter().for_each(bound_totals);
    }
}

fn bound_totals(totals: &mut Totals) {
    let reasons = totals.copied_bytes.values_mut().chain(totals.dropped_frames.values_mut());
    for n in reasons.chain([
        &mut totals.frames,
        &mut totals.bytes,
        &mut totals.zero_copied_frames,
        &mut totals.zero_copied_bytes,
        &mut totals.system_calls,
        &mut totals.kicks,
        &mut totals.calls,
    ]) {
        *n = counted(*n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_makes_up_is_bounded() {
        let mut vm = ChildVmStats { connections: u64::MAX, ..ChildVmStats::default() };
        vm.totals.transmit.bytes = u64::MAX;
        vm.totals.last_error = Some("\u{1b}[2J\nERROR of another VM".repeat(1000));
        vm.totals.limits.transmit_limit_wait_seconds = f64::NAN;
        vm.features = vec!["x".to_owned(); 5000];
        let told = ChildStats { cpu_seconds: f64::INFINITY, vms: vec![vm; 1000] }.bounded();
        assert_eq!((told.cpu_seconds, told.vms.len()), (0.0, VMS));
        for vm in told.vms {
            let error = vm.totals.last_error.expect("a text");
            assert!(error.len() <= 500 && !error.contains(char::is_control), "{error}");
            assert_eq!(vm.connections, counted(u64::MAX));
            assert_eq!(vm.totals.transmit.bytes, vm.connections);
            assert_eq!(vm.totals.limits.transmit_limit_wait_seconds, 0.0);
            assert!(vm.features.len() < 5000);
        }
    }

    /// The socket takes longer messages than these.
    #[test]
    fn statistics_of_many_vms_fit_a_message() {
        let mut vm =
            ChildVmStats { features: vec!["VIRTIO_VSOCK_F_SEQPACKET".to_owned(); 20], ..Default::default() };
        for n in vm.sums() {
            *n = u64::MAX;
        }
        for totals in [&mut vm.totals.transmit, &mut vm.totals.receive] {
            totals.copied_bytes = zerowire::ledger::CopyReason::ALL.map(|r| (r.name(), u64::MAX)).into();
            totals.dropped_frames = zerowire::ledger::DropReason::ALL.map(|r| (r.name(), u64::MAX)).into();
        }
        vm.totals.last_error = Some("x".repeat(500));
        let stats = ChildStats { cpu_seconds: 1e12, vms: vec![vm; VMS] };
        let bytes = serde_json::to_vec(&GroupWord::Statistics(u64::MAX, Box::new(stats))).expect("JSON");
        assert!(bytes.len() < 64 * 1024, "{}", bytes.len());
    }

    #[test]
    fn statistics_are_read_as_they_are_written_without_words_that_are_no_reason() {
        let mut vm = ChildVmStats::default();
        vm.totals.transmit.copied_bytes.insert("held", 5);
        vm.totals.mapped.mapped_windows = 3;
        let mut written = serde_json::to_value(&vm).expect("JSON");
        written["totals"]["transmit"]["copied_bytes"]["made up"] = 7.into();
        let read: ChildVmStats = serde_json::from_value(written).expect("statistics");
        assert_eq!(read.totals.transmit, vm.totals.transmit);
        assert_eq!(read.totals.mapped.mapped_windows, 3);
    }
}
