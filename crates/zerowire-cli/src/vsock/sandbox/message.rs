//! What the supervisor and a child of a vsock group say to each other.

use serde::{Deserialize, Serialize};
use zerowire::ledger::Totals;
use zerowire_confine::{ConfineReport, Owner};
use zerowire_vhost::host::KickHistogram;
use zerowire_vhost::serve::{Endpoint, ServedStats, process_cpu_seconds};
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{Limits, VsockConfig, VsockLimits, VsockTotals, VsockVmStats};

use crate::sandbox::figures::{Figures, SentFigures, numbers_of};
use crate::sandbox::link::ChildAnswer;
use crate::sandbox::message::{seconds, short, texts};
use crate::sandbox::sessions::{ImageText, SessionWord};

/// VMs in an answer at most: their statistics fit a message.
pub(super) const VMS: usize = 8;

/// What the first message says. Two for each VM follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupSetup {
    /// Whom the child belongs to.
    pub owner: Owner,
    /// What it logs.
    pub log: String,
    /// True: the supervisor maps the users of programs into a user namespace of the child's own.
    pub maps_users: bool,
    /// The supervisor's user namespace. The child may have been started in one of its own.
    pub user_namespace: Option<String>,
}

/// A VM as a child must know it. Descriptors come with it: the socket on which its front end
/// connects, those of its end on the host, and memory for the names of its connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VmSetup {
    /// Names it in messages.
    pub number: usize,
    /// Some: up to this number of bytes of each packet go to one more descriptor.
    pub snaplen: Option<u32>,
    /// True: its present front end is the last one.
    pub drains: bool,
    name: String,
    /// The path of its socket, for the log.
    socket: String,
    cid: u64,
    /// The path of its end on the host, for the log.
    uds: String,
    groups: Vec<String>,
    limits: VsockLimits,
    rates: Limits,
    map: MapPolicy,
}

impl VmSetup {
    pub(super) fn of(number: usize, config: &VsockConfig, snaplen: Option<u32>, drains: bool) -> Self {
        Self {
            number,
            snaplen,
            drains,
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            cid: config.cid,
            uds: config.uds.display().to_string(),
            groups: config.groups.clone(),
            limits: config.limits,
            rates: config.rates,
            map: config.map.clone(),
        }
    }

    /// The VM that a child serves.
    pub(super) fn config(self) -> VsockConfig {
        VsockConfig::new(self.name, Endpoint::Path(self.socket.into()), self.cid, self.uds)
            .groups(self.groups)
            .limits(self.limits)
            .rates(self.rates)
            .map(self.map)
    }
}

/// What the supervisor says. A VM is its number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GroupOrder {
    /// The first message.
    Start(GroupSetup),
    /// The next VM.
    Vm(Box<VmSetup>),
    /// Comes behind each VM: the session of its front end that a child before has left, with its
    /// descriptors.
    Session(Option<ImageText>),
    /// Comes behind the last VM: the child serves them. Changes follow.
    Serve,
    /// Asks for statistics of up to [`VMS`] VMs. The answer has this number.
    Statistics { number: u64, vms: Vec<usize> },
    /// The answer to [`GroupWord::Connect`]: a descriptor that comes with it, or why there is none.
    Connected { vm: usize, number: u64, errno: Option<i32> },
    /// Another VM than before, or other settings of one.
    Change(VmChange),
}

/// What changes for a VM of a running child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum VmChange {
    /// One more VM, with its descriptors. No child before has left a session of it. The answer has
    /// this number.
    Add(u64, Box<VmSetup>),
    /// A VM less. The answer has this number.
    Remove(u64, usize),
    /// The present front end of this VM is the last one.
    Drain(usize),
    /// Other limits of the rate of a VM. The answer has the first number.
    Rates(u64, usize, Limits),
    /// Has up to this number of bytes (the last one) of each packet of the VM go to the descriptor
    /// that comes with it. The answer has the first number.
    Capture(u64, usize, u32),
    /// Ends that.
    EndCapture(usize),
}

/// What a child says. The supervisor trusts none of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GroupWord {
    /// It has a user namespace of its own, without users. A byte by the socket that comes with it
    /// says that they are mapped.
    MapUsers,
    /// Front ends can connect.
    Ready(ConfineReport),
    /// It can't serve the group, and ends.
    Failed(String),
    /// The answer with this number: statistics.
    Statistics(u64, Box<ChildStats>),
    /// Where the session of a VM's front end is.
    Session { vm: usize, word: SessionWord },
    /// A VM's guest connects to a port of the host, by a socket of this type. The answer has this
    /// number.
    Connect { vm: usize, number: u64, port: u32, kind: u16 },
    /// The answer with this number: a VM was added, removed or captured, or why not.
    Changed(u64, Option<String>),
    /// A front end of this VM has come, or gone.
    FrontEnd(usize, bool),
    /// A VM that was drained has left.
    Gone(usize),
}

impl ChildAnswer for GroupWord {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Statistics(number, _) | Self::Changed(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// Statistics of a child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildStats {
    /// CPU time, seconds.
    pub cpu_seconds: f64,
    /// VMs by their numbers.
    pub vms: Vec<(usize, ChildVmStats)>,
}

/// What a child tells of a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildVmStats {
    /// True: its control thread hangs.
    hangs: bool,
    features: Vec<String>,
    protocol_features: String,
    device_status: u64,
    last_error: Option<String>,
    figures: SentFigures,
}

impl ChildStats {
    pub(super) fn of(vms: &[(usize, ServedStats<VsockVmStats>)]) -> Self {
        let vms = vms.iter().take(VMS).map(|(number, vm)| (*number, ChildVmStats::of(vm)));
        Self { cpu_seconds: process_cpu_seconds(), vms: vms.collect() }
    }

    /// The CPU time, seconds, and the VMs, with bounds as one may show them.
    pub(super) fn told(self) -> (f64, Vec<(usize, VmTold)>) {
        let told = self.vms.into_iter().take(VMS).map(|(number, vm)| (number, vm.told()));
        (seconds(self.cpu_seconds), told.collect())
    }
}

impl ChildVmStats {
    fn of(vm: &ServedStats<VsockVmStats>) -> Self {
        let mut told = VmTold {
            connections: vm.connections,
            connection_errors: vm.connection_errors,
            totals: vm.totals.clone(),
            ..VmTold::default()
        };
        Self {
            hangs: !vm.process.child_answers,
            features: vm.features.clone(),
            protocol_features: vm.protocol_features.clone(),
            device_status: vm.device_status,
            // A message has room for a short text.
            last_error: vm.totals.last_error.as_deref().map(short),
            figures: SentFigures::of(&mut told),
        }
    }

    fn told(self) -> VmTold {
        let mut told = VmTold {
            hangs: self.hangs,
            features: texts(&self.features),
            protocol_features: short(&self.protocol_features),
            device_status: self.device_status,
            ..VmTold::default()
        };
        self.figures.enter(&mut told);
        told.totals.last_error = self.last_error.as_deref().map(short);
        told
    }
}

/// What a child alone knows of a VM.
#[derive(Clone, Debug, Default)]
pub(super) struct VmTold {
    /// True: its control thread hangs.
    pub hangs: bool,
    pub connections: u64,
    pub connection_errors: u64,
    pub features: Vec<String>,
    pub protocol_features: String,
    pub device_status: u64,
    pub totals: VsockTotals,
}

impl Figures for VmTold {
    const LEVELS: usize = 4;

    fn numbers(&mut self) -> Vec<&mut u64> {
        let Self { connections, connection_errors, totals, .. } = self;
        let VsockTotals { mapped, limits, transmit, receive, .. } = totals;
        let mut all = vec![
            &mut totals.connections_open,
            &mut mapped.mapped_connections,
            &mut mapped.mapped_windows,
            &mut mapped.mapped_bytes,
            connections,
            connection_errors,
            &mut totals.ring_errors,
            &mut totals.connections_opened,
            &mut totals.connections_refused,
            &mut totals.requests_over_rate,
            &mut mapped.mapped_refused,
            &mut totals.resets,
            &mut totals.bad_handshakes,
            &mut totals.control_packets,
            &mut totals.stale_credit,
            &mut limits.transmit_limit_waits,
            &mut limits.receive_limit_waits,
        ];
        all.extend([transmit, receive].into_iter().flat_map(numbers_of));
        all
    }

    fn waited(&mut self) -> [&mut f64; 2] {
        let limits = &mut self.totals.limits;
        [&mut limits.transmit_limit_wait_seconds, &mut limits.receive_limit_wait_seconds]
    }

    fn kicks(&mut self) -> [&mut KickHistogram; 2] {
        let kicks = &mut self.totals.kicks;
        [&mut kicks.transmit_kick_seconds, &mut kicks.receive_kick_seconds]
    }

    fn moved(&mut self) -> [&mut Totals; 2] {
        [&mut self.totals.transmit, &mut self.totals.receive]
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};
    use zerowire_vhost::serve::SocketAccess;

    use super::*;
    use crate::file::Vsock;
    use crate::sandbox::message::counted;
    use crate::vsock::VsockArgs;
    use crate::vsock::config::Defaults;

    /// Each key has a value here.
    #[test]
    fn what_a_vm_is_configured_with_reaches_its_child() {
        let command = VsockArgs::augment_args(clap::Command::new("vsock"));
        let given = ["vsock", "--control", "/c", "--buffer", "8192", "--map-allow", "3"];
        let args = VsockArgs::from_arg_matches(&command.get_matches_from(given)).expect("arguments");
        let some = |text: &str| Some(text.to_owned());
        let table = Vsock {
            socket: "/s".into(),
            cid: 7,
            uds: "/u".into(),
            groups: Some(vec!["x".to_owned(), "y".to_owned()]),
            tx_limit: some("1Gbit/s"),
            rx_limit: some("ops=10k/s"),
            socket_owner: some("1"),
            socket_group: some("2"),
            socket_mode: some("0640"),
            uds_owner: some("3"),
            uds_group: some("4"),
            uds_mode: some("0604"),
        };
        let config = Defaults::new(&args).and_then(|d| Ok(d.vm("a", table)?)).expect("a VM");
        let child = VmSetup::of(0, &config, None, false).config();
        // The supervisor opens the sockets, and keeps guests from its control socket.
        let handed = SocketAccess::default();
        assert_eq!(child, config.access(handed).uds_access(handed).control(None));
    }

    #[test]
    fn what_a_child_makes_up_is_bounded() {
        let vm = ChildVmStats {
            features: vec!["x".to_owned(); 5000],
            last_error: Some("\u{1b}[2J\nERROR of another VM".repeat(1000)),
            figures: SentFigures {
                numbers: vec![u64::MAX; 10_000],
                waited: [f64::NAN, -1.0],
                kicks: [(); 2].map(|()| KickHistogram { sum: -1.0, buckets: [u64::MAX; 12] }),
            },
            ..ChildVmStats::default()
        };
        let (cpu_seconds, vms) = ChildStats { cpu_seconds: f64::INFINITY, vms: vec![(0, vm); 1000] }.told();
        assert_eq!((cpu_seconds, vms.len()), (0.0, VMS));
        for (_, mut vm) in vms {
            assert!(vm.numbers().iter().all(|n| **n == counted(u64::MAX)));
            let error = vm.totals.last_error.expect("a text");
            assert!(error.len() <= 500 && !error.contains(char::is_control), "{error}");
            assert_eq!(vm.totals.limits.transmit_limit_wait_seconds, 0.0);
            let kicks = &vm.totals.kicks.receive_kick_seconds;
            assert_eq!((kicks.sum, kicks.buckets), (0.0, [counted(u64::MAX); 12]));
            assert!(vm.features.len() < 5000);
        }
    }

    /// The socket takes longer messages than these.
    #[test]
    fn statistics_of_many_vms_fit_a_message() {
        let vm = ChildVmStats {
            features: vec!["VIRTIO_VSOCK_F_SEQPACKET".to_owned(); 20],
            last_error: Some("x".repeat(500)),
            figures: SentFigures {
                numbers: vec![u64::MAX; VmTold::default().numbers().len()],
                waited: [1e12; 2],
                kicks: [(); 2].map(|()| KickHistogram { sum: 1e12, buckets: [u64::MAX; 12] }),
            },
            ..ChildVmStats::default()
        };
        let stats = ChildStats { cpu_seconds: 1e12, vms: vec![(usize::MAX, vm); VMS] };
        let bytes = serde_json::to_vec(&GroupWord::Statistics(u64::MAX, Box::new(stats))).expect("JSON");
        assert!(bytes.len() < 64 * 1024, "{}", bytes.len());
    }

    #[test]
    fn each_number_arrives_in_its_place() {
        let mut sent = VmTold::default();
        for (i, n) in sent.numbers().into_iter().enumerate() {
            *n = 100 + i as u64;
        }
        let figures = SentFigures::of(&mut sent);
        let mut told = ChildVmStats { figures, ..ChildVmStats::default() }.told();
        told.forget_unused();
        assert_eq!(told.totals.transmit, sent.totals.transmit);
        assert_eq!(told.totals.receive, sent.totals.receive);
        let pair = |told: &VmTold| (told.connections, told.totals.resets, told.totals.mapped.mapped_bytes);
        assert_eq!(pair(&told), pair(&sent));
        let figures = SentFigures { numbers: vec![7], ..SentFigures::default() };
        let fewer = ChildVmStats { figures, ..ChildVmStats::default() }.told();
        assert_eq!((fewer.totals.connections_open, fewer.connections), (7, 0));
    }
}
