//! What the supervisor and a child say to each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zerowire::ledger::{CopyReason, DropReason, Totals};
use zerowire_confine::ConfineReport;
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::{PortSpec, PortSpecError};
use zerowire_net::{
    DirectionStats, FrameGuard, LinkState, LinkStats, MetadataSource, Negotiated, PathMode, Policy,
    ServerStats, VmConfig, VmStats,
};
use zerowire_vhost::host::KickHistogram;
use zerowire_vhost::serve::Endpoint;

use super::vm::Common;
use crate::sandbox::link::ChildAnswer;
use crate::sandbox::message::{ENTRIES, Rates, counted, kicks, seconds, short, texts};
use crate::sandbox::sessions::{ImageText, SessionWord};

/// A VM as a child must know it. Descriptors come with it: the front end's socket, those of the
/// port, and a file of metadata where it has some.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ChildSetup {
    /// The VM's name.
    pub name: String,
    /// The path of its socket, for the log.
    pub socket: String,
    /// The port.
    pub port: PortSetup,
    /// Whether metadata requests need a token; None without metadata.
    pub tokens_required: Option<bool>,
    /// Whether all frames are copied.
    pub copies: bool,
    /// `--gather-max`, bytes.
    pub gather_max_bytes: usize,
    /// `--rx-copybreak`, bytes.
    pub rx_copybreak_bytes: usize,
    /// The device's address.
    pub mac: Option<String>,
    /// What the guest may send.
    pub guard: Option<String>,
    /// What the VM may send and receive in a second.
    pub limits: Rates,
    /// Whom the child belongs to.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// What it logs.
    pub log: String,
    /// True: its present front end is the last one.
    pub drains: bool,
}

/// A port as a child must know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PortSetup {
    /// As the user gives it.
    pub spec: String,
    /// What the port alone reads.
    pub facts: String,
    /// The state of the interface, if the guest is to see it.
    pub link: Option<LinkState>,
}

impl PortSetup {
    /// The port that a child serves.
    pub(super) fn spec(&self) -> Result<PortSpec, String> {
        self.spec.parse().map_err(|e: PortSpecError| e.to_string())
    }
}

impl ChildSetup {
    /// Of a VM with this port, for a child that belongs to `common`'s owner.
    pub(super) fn of(config: &VmConfig, port: PortSetup, common: &Common) -> Self {
        Self {
            name: config.name.clone(),
            socket: config.endpoint.to_string(),
            port,
            tokens_required: config.metadata.as_ref().map(|m| m.tokens == TokenPolicy::Required),
            copies: config.policy.mode == PathMode::Copy,
            gather_max_bytes: config.policy.gather_max_bytes,
            rx_copybreak_bytes: config.policy.rx_copybreak_bytes,
            mac: config.mac.map(|mac| mac.to_string()),
            guard: config.guard.as_ref().map(|guard| guard.to_string()),
            limits: Rates::of(config.limits),
            user: common.owner.user,
            group: common.owner.group,
            log: common.log.clone(),
            drains: false,
        }
    }

    /// The VM that a child serves.
    pub(super) fn config(&self) -> Result<VmConfig, String> {
        let mac = self.mac.as_ref().map(|mac| mac.parse::<MacAddress>().map_err(|e| e.to_string()));
        let mac = mac.transpose()?;
        let tokens = |required| if required { TokenPolicy::Required } else { TokenPolicy::Optional };
        Ok(VmConfig::new(self.name.clone(), Endpoint::Path(self.socket.clone().into()), self.port.spec()?)
            .metadata(
                self.tokens_required.map(|required| MetadataSource {
                    file: "its supervisor".into(),
                    tokens: tokens(required),
                }),
            )
            .policy(
                Policy::default()
                    .mode(if self.copies { PathMode::Copy } else { PathMode::Auto })
                    .gather_max_bytes(self.gather_max_bytes)
                    .rx_copybreak_bytes(self.rx_copybreak_bytes),
            )
            .guard(guard(self.guard.as_deref(), mac)?)
            .limits(self.limits.limits()?)
            .mac(mac))
    }
}

/// What a guest with this address may send, as a user would say it.
pub(super) fn guard(text: Option<&str>, mac: Option<MacAddress>) -> Result<Option<FrameGuard>, String> {
    text.map(|text| FrameGuard::parse(text, mac).map_err(|e| e.to_string())).transpose()
}

/// What the supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChildOrder {
    /// The first message. With a number frames are captured from the start, up to that number of
    /// bytes of each, to the last descriptor.
    Start(Box<ChildSetup>, Option<u32>),
    /// Comes next: the session of a front end that a child before has left, with its descriptors.
    Session(Option<ImageText>),
    /// Asks for statistics. The answer has this number.
    Statistics(u64),
    /// Gives other metadata, in the descriptor that comes with it. The answer has this number.
    Metadata(u64),
    /// Gives other limits of the rate.
    Limits(Rates),
    /// Lets the guest send other frames.
    Guard(Option<String>),
    /// Has up to this number of bytes of each frame go to the descriptor that comes with it.
    Capture(u32),
    /// Ends that.
    EndCapture,
    /// The present front end is the last one. The child ends behind it.
    Drain,
    /// The answer to [`ChildWord::Port`], or what is wrong. Descriptors come with it.
    PortDone(Result<String, String>),
    /// The interface that the guest is to see has this state.
    Link(LinkState),
}

/// What a child says. The supervisor trusts none of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChildWord {
    /// Front ends can connect.
    Ready(ConfineReport),
    /// It can't serve the VM, and ends.
    Failed(String),
    /// The answer with this number: statistics.
    Statistics(u64, Box<ChildStats>),
    /// The answer with this number: metadata were taken, or what is wrong with them.
    Metadata(u64, Option<String>),
    /// Asks for something about its port, with descriptors.
    Port(String),
    /// A front end has come, or gone.
    Connected(bool),
    /// Where its front end's session is.
    Session(SessionWord),
    /// Its last statistics: it ends, with its last front end.
    Last(Box<ChildStats>),
}

impl ChildAnswer for ChildWord {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Statistics(number, _) | Self::Metadata(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// Statistics of a child, with what it alone knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildStats {
    /// CPU time, seconds.
    pub cpu_seconds: f64,
    /// True: the VM's control thread hangs.
    pub hangs: bool,
    pub connections: u64,
    pub connection_errors: u64,
    pub ring_errors: u64,
    pub unsure_frames: u64,
    pub out_of_order_frames: u64,
    pub last_error: Option<String>,
    /// Whether the guest sees its link up, if it follows the interface's.
    pub link: Option<LinkStats>,
    pub path: String,
    pub features: Vec<String>,
    pub protocol_features: String,
    pub device_status: u64,
    pub transmit: ChildDirection,
    pub receive: ChildDirection,
}

/// One direction of a child's traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildDirection {
    frames: u64,
    bytes: u64,
    zero_copied_frames: u64,
    zero_copied_bytes: u64,
    copied_bytes: BTreeMap<String, u64>,
    dropped_frames: BTreeMap<String, u64>,
    system_calls: u64,
    kicks: u64,
    calls: u64,
    frames_by_queue: Vec<u64>,
    limit_waits: u64,
    limit_wait_seconds: f64,
    kick_seconds: KickHistogram,
}

impl From<&DirectionStats> for ChildDirection {
    fn from(d: &DirectionStats) -> Self {
        let by_reason = |all: &BTreeMap<&'static str, u64>| {
            all.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect()
        };
        let t = &d.totals;
        Self {
            frames: t.frames,
            bytes: t.bytes,
            zero_copied_frames: t.zero_copied_frames,
            zero_copied_bytes: t.zero_copied_bytes,
            copied_bytes: by_reason(&t.copied_bytes),
            dropped_frames: by_reason(&t.dropped_frames),
            system_calls: t.system_calls,
            kicks: t.kicks,
            calls: t.calls,
            frames_by_queue: d.frames_by_queue.clone(),
            limit_waits: d.limit_waits,
            limit_wait_seconds: d.limit_wait_seconds,
            kick_seconds: d.kick_seconds.clone(),
        }
    }
}

impl ChildDirection {
    /// As the statistics have it. Reasons that are none are left out.
    pub(super) fn stats(&self) -> DirectionStats {
        let totals = Totals {
            frames: counted(self.frames),
            bytes: counted(self.bytes),
            zero_copied_frames: counted(self.zero_copied_frames),
            zero_copied_bytes: counted(self.zero_copied_bytes),
            copied_bytes: known(&CopyReason::ALL.map(CopyReason::name), &self.copied_bytes),
            dropped_frames: known(&DropReason::ALL.map(DropReason::name), &self.dropped_frames),
            system_calls: counted(self.system_calls),
            kicks: counted(self.kicks),
            calls: counted(self.calls),
        };
        let queues = self.frames_by_queue.iter().take(ENTRIES).copied().map(counted);
        DirectionStats {
            totals,
            frames_by_queue: queues.collect(),
            limit_waits: counted(self.limit_waits),
            limit_wait_seconds: seconds(self.limit_wait_seconds),
            kick_seconds: kicks(&self.kick_seconds),
        }
    }
}

fn known(names: &[&'static str], told: &BTreeMap<String, u64>) -> BTreeMap<&'static str, u64> {
    names.iter().filter_map(|name| Some((*name, counted(*told.get(*name)?)))).collect()
}

impl ChildStats {
    /// Those of the one VM that a child serves.
    pub(super) fn of(server: &ServerStats) -> Self {
        let Some(vm) = server.vms.first() else {
            return Self { cpu_seconds: server.cpu_seconds, ..Self::default() };
        };
        let VmStats { negotiated, transmit, receive, .. } = &vm.vm;
        Self {
            cpu_seconds: server.cpu_seconds,
            hangs: false,
            connections: vm.connections,
            connection_errors: vm.connection_errors,
            ring_errors: vm.ring_errors,
            unsure_frames: vm.unsure_frames,
            out_of_order_frames: vm.out_of_order_frames,
            last_error: vm.last_error.clone(),
            link: vm.port_state.link.clone(),
            path: vm.path.clone(),
            features: negotiated.features.clone(),
            protocol_features: negotiated.protocol_features.clone(),
            device_status: negotiated.device_status,
            transmit: transmit.into(),
            receive: receive.into(),
        }
    }

    /// The same with bounds, as one may show it.
    pub(super) fn bounded(mut self) -> Self {
        for counter in [
            &mut self.connections,
            &mut self.connection_errors,
            &mut self.ring_errors,
            &mut self.unsure_frames,
            &mut self.out_of_order_frames,
        ] {
            *counter = counted(*counter);
        }
        self.cpu_seconds = seconds(self.cpu_seconds);
        self.last_error = self.last_error.as_deref().map(short);
        if let Some(link) = &mut self.link {
            link.disconnects = counted(link.disconnects);
        }
        self.path = short(&self.path);
        self.protocol_features = short(&self.protocol_features);
        self.features = texts(&self.features);
        self
    }

    /// What guest and front end have agreed on.
    pub(super) fn negotiated(&self) -> Negotiated {
        Negotiated {
            features: self.features.clone(),
            protocol_features: self.protocol_features.clone(),
            device_status: self.device_status,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};
    use zerowire_confine::Owner;
    use zerowire_vhost::serve::SocketAccess;

    use super::*;
    use crate::file::Net;
    use crate::net::NetArgs;
    use crate::net::config::Defaults;
    use crate::sandbox::cpu::CpuSum;

    /// Each key has a value here, and each option that counts for all VMs is not the default.
    #[test]
    fn what_a_vm_is_configured_with_reaches_its_child() {
        let command = NetArgs::augment_args(clap::Command::new("net"));
        let given =
            ["net", "--control", "/c", "--path", "copy", "--gather-max", "17", "--rx-copybreak", "18"];
        let args = NetArgs::from_arg_matches(&command.get_matches_from(given)).expect("arguments");
        let table = Net {
            socket: "/s".into(),
            port: "tap:t,queues=2".to_owned(),
            metadata: Some("/m.json".into()),
            metadata_token: Some("optional".to_owned()),
            mac: Some("52:54:00:00:00:02".to_owned()),
            guard: Some("mac+vlan=off".to_owned()),
            tx_limit: Some("1Gbit/s".to_owned()),
            rx_limit: Some("ops=10k/s".to_owned()),
            socket_owner: Some("1".to_owned()),
            socket_group: Some("2".to_owned()),
            socket_mode: Some("0640".to_owned()),
        };
        let config = Defaults::new(&args).and_then(|d| Ok(d.vm("a", table)?)).expect("a VM");
        let common =
            Common { owner: Owner { user: 65534, group: 65534 }, log: String::new(), cpu: CpuSum::default() };
        let port = PortSetup { spec: config.port.to_string(), facts: "true".to_owned(), link: None };
        let child = ChildSetup::of(&config, port, &common).config().expect("a VM");
        // The supervisor opens the file and the socket.
        let file = MetadataSource { file: "its supervisor".into(), tokens: TokenPolicy::Optional };
        assert_eq!(child, config.access(SocketAccess::default()).metadata(Some(file)));
    }

    #[test]
    fn what_a_child_makes_up_is_bounded() {
        let reasons = BTreeMap::from([("small".to_owned(), u64::MAX), ("made up".to_owned(), 1)]);
        let direction = ChildDirection {
            frames: u64::MAX,
            copied_bytes: reasons,
            frames_by_queue: vec![1; 5000],
            ..ChildDirection::default()
        };
        let stats = direction.stats();
        assert_eq!(stats.totals.copied_bytes, BTreeMap::from([("small", counted(u64::MAX))]));
        assert_eq!((stats.totals.frames, stats.frames_by_queue.len()), (counted(u64::MAX), ENTRIES));
        let told = ChildStats {
            cpu_seconds: f64::NAN,
            connections: u64::MAX,
            last_error: Some("\u{1b}[2J\nERROR of another VM".repeat(1000)),
            ..ChildStats::default()
        };
        let told = told.bounded();
        let error = told.last_error.expect("a text");
        assert_eq!((told.cpu_seconds, told.connections), (0.0, counted(u64::MAX)));
        assert!(error.len() <= 500 && !error.contains(char::is_control), "{error}");
    }
}
