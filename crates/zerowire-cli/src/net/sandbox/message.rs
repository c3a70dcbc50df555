//! What the supervisor and a child say to each other.

use serde::{Deserialize, Serialize};
use zerowire::ledger::Totals;
use zerowire_confine::{ConfineReport, Owner};
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::{PortSpec, PortSpecError};
use zerowire_net::{
    DirectionStats, FrameGuard, Limits, LinkState, MetadataSource, Policy, ServerStats, VmConfig,
};
use zerowire_vhost::host::KickHistogram;
use zerowire_vhost::serve::Endpoint;

use super::vm::Common;
use crate::sandbox::figures::{Figures, SentFigures, numbers_of};
use crate::sandbox::link::ChildAnswer;
use crate::sandbox::message::{ENTRIES, seconds, short, texts};
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
    pub tokens: Option<TokenPolicy>,
    /// Which frames are copied.
    pub policy: Policy,
    /// The device's address.
    pub mac: Option<String>,
    /// What the guest may send.
    pub guard: Option<String>,
    /// What the VM may send and receive in a second.
    pub limits: Limits,
    /// Whom the child belongs to.
    pub owner: Owner,
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
            tokens: config.metadata.as_ref().map(|metadata| metadata.tokens),
            policy: config.policy,
            mac: config.mac.map(|mac| mac.to_string()),
            guard: config.guard.as_ref().map(|guard| guard.to_string()),
            limits: config.limits,
            owner: common.owner,
            log: common.log.clone(),
            drains: false,
        }
    }

    /// The VM that a child serves.
    pub(super) fn config(&self) -> Result<VmConfig, String> {
        let mac = self.mac.as_ref().map(|mac| mac.parse::<MacAddress>().map_err(|e| e.to_string()));
        let mac = mac.transpose()?;
        let source = |tokens| MetadataSource { file: "its supervisor".into(), tokens };
        Ok(VmConfig::new(self.name.clone(), Endpoint::Path(self.socket.clone().into()), self.port.spec()?)
            .metadata(self.tokens.map(source))
            .policy(self.policy)
            .guard(guard(self.guard.as_deref(), mac)?)
            .limits(self.limits)
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
    /// Gives other metadata, in the descriptor that comes with it. The answer has this number. The
    /// log names the file that they are from.
    Metadata(u64, String),
    /// Gives other limits of the rate.
    Limits(Limits),
    /// Lets the guest send other frames.
    Guard(Option<String>),
    /// Has up to this number of bytes of each frame go to the descriptor that comes with it.
    Capture(u32),
    /// Ends that.
    EndCapture,
    /// The present front end is the last one. The child ends behind it.
    Drain,
    /// The answer to [`ChildWord::Port`] or [`ChildWord::Listen`], or what is wrong. Descriptors
    /// come with it.
    Done(Result<String, String>),
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
    /// Asks that the VM's socket listens, and for the socket; with false that it refuses
    /// connections.
    Listen(bool),
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

/// Statistics of a child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildStats {
    pub state: ChildState,
    /// Queue pairs.
    pub pairs: usize,
    /// [`VmFigures`].
    pub figures: SentFigures,
}

/// What a child says of now.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildState {
    /// CPU time, seconds.
    pub cpu_seconds: f64,
    /// True: the VM's control thread hangs.
    pub hangs: bool,
    /// True: it records for the capture that it was told of last, if any.
    pub captures: bool,
    pub last_error: Option<String>,
    /// Whether the guest sees its link up, if it follows the interface's.
    pub link_up: Option<bool>,
    pub path: String,
    pub features: Vec<String>,
    pub protocol_features: String,
    pub device_status: u64,
}

/// What a child alone knows of a VM.
#[derive(Clone, Debug, Default)]
pub(super) struct VmFigures {
    pub state: ChildState,
    pub connections: u64,
    pub connection_errors: u64,
    pub ring_errors: u64,
    pub unsure_frames: u64,
    pub out_of_order_frames: u64,
    /// Connections that ended since the link was down.
    pub disconnects: u64,
    pub transmit: DirectionStats,
    pub receive: DirectionStats,
}

impl Figures for VmFigures {
    const LEVELS: usize = 0;

    fn fit(&mut self, other: &Self) {
        for (own, other) in [(&mut self.transmit, &other.transmit), (&mut self.receive, &other.receive)] {
            let pairs = own.frames_by_queue.len().max(other.frames_by_queue.len());
            own.frames_by_queue.resize(pairs, 0);
        }
    }

    fn numbers(&mut self) -> Vec<&mut u64> {
        let mut all = vec![
            &mut self.connections,
            &mut self.connection_errors,
            &mut self.ring_errors,
            &mut self.unsure_frames,
            &mut self.out_of_order_frames,
            &mut self.disconnects,
        ];
        for direction in [&mut self.transmit, &mut self.receive] {
            all.push(&mut direction.limit_waits);
            all.extend(numbers_of(&mut direction.totals));
            all.extend(&mut direction.frames_by_queue);
        }
        all
    }

    fn waited(&mut self) -> [&mut f64; 2] {
        [&mut self.transmit.limit_wait_seconds, &mut self.receive.limit_wait_seconds]
    }

    fn kicks(&mut self) -> [&mut KickHistogram; 2] {
        [&mut self.transmit.kick_seconds, &mut self.receive.kick_seconds]
    }

    fn cpu_seconds(&self) -> f64 {
        self.state.cpu_seconds
    }

    fn moved(&mut self) -> [&mut Totals; 2] {
        [&mut self.transmit.totals, &mut self.receive.totals]
    }
}

impl ChildStats {
    /// Those of the one VM that a child serves.
    pub(super) fn of(server: &ServerStats) -> Self {
        let state = ChildState { cpu_seconds: server.cpu_seconds, ..ChildState::default() };
        let Some(vm) = server.vms.first() else { return Self { state, ..Self::default() } };
        let link = vm.port_state.link.as_ref();
        let mut figures = VmFigures {
            connections: vm.connections,
            connection_errors: vm.connection_errors,
            ring_errors: vm.ring_errors,
            unsure_frames: vm.unsure_frames,
            out_of_order_frames: vm.out_of_order_frames,
            disconnects: link.map_or(0, |link| link.disconnects),
            transmit: vm.transmit.clone(),
            receive: vm.receive.clone(),
            ..VmFigures::default()
        };
        let state = ChildState {
            last_error: vm.last_error.clone(),
            link_up: link.map(|link| link.up),
            path: vm.path.clone(),
            features: vm.negotiated.features.clone(),
            protocol_features: vm.negotiated.protocol_features.clone(),
            device_status: vm.negotiated.device_status,
            ..state
        };
        Self { state, pairs: vm.transmit.frames_by_queue.len(), figures: SentFigures::of(&mut figures) }
    }

    /// The same with bounds, as one may show it.
    pub(super) fn told(self) -> VmFigures {
        let Self { mut state, pairs, figures: sent } = self;
        state.cpu_seconds = seconds(state.cpu_seconds);
        state.last_error = state.last_error.as_deref().map(short);
        state.path = short(&state.path);
        state.protocol_features = short(&state.protocol_features);
        state.features = texts(&state.features);
        let frames_by_queue = vec![0; pairs.min(ENTRIES)];
        let direction = DirectionStats { frames_by_queue, ..DirectionStats::default() };
        let mut figures =
            VmFigures { state, transmit: direction.clone(), receive: direction, ..VmFigures::default() };
        sent.enter(&mut figures);
        figures
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};
    use zerowire::ledger::CopyReason;
    use zerowire_vhost::serve::SocketAccess;

    use super::*;
    use crate::file::Net;
    use crate::net::NetArgs;
    use crate::net::config::Defaults;
    use crate::sandbox::cpu::CpuSum;
    use crate::sandbox::message::counted;

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
        let told = ChildStats {
            state: ChildState {
                cpu_seconds: f64::NAN,
                last_error: Some("\u{1b}[2J\nERROR of another VM".repeat(1000)),
                ..ChildState::default()
            },
            pairs: 5000,
            figures: SentFigures { numbers: vec![u64::MAX; 20_000], ..SentFigures::default() },
        };
        let mut figures = told.told();
        assert!(figures.numbers().iter().all(|n| **n == counted(u64::MAX)));
        assert_eq!(figures.transmit.totals.copied_bytes["small"], counted(u64::MAX));
        assert_eq!(figures.transmit.totals.copied_bytes.len(), CopyReason::ALL.len());
        assert_eq!(figures.transmit.frames_by_queue.len(), ENTRIES);
        let error = figures.state.last_error.as_ref().expect("a text");
        assert_eq!((figures.state.cpu_seconds, figures.connections), (0.0, counted(u64::MAX)));
        assert!(error.len() <= 500 && !error.contains(char::is_control), "{error}");
    }

    #[test]
    fn each_number_arrives_in_its_place() {
        let direction = DirectionStats { frames_by_queue: vec![0; 3], ..DirectionStats::default() };
        let mut sent = VmFigures { transmit: direction.clone(), receive: direction, ..VmFigures::default() };
        sent.numbers().into_iter().zip(100..).for_each(|(n, value)| *n = value);
        let figures = SentFigures::of(&mut sent);
        let told = ChildStats { pairs: 3, figures, ..ChildStats::default() }.told();
        assert_eq!((told.connections, told.disconnects), (sent.connections, sent.disconnects));
        for (told, sent) in [(told.transmit, sent.transmit), (told.receive, sent.receive)] {
            assert_eq!((told.totals, told.limit_waits), (sent.totals, sent.limit_waits));
            assert_eq!(told.frames_by_queue, sent.frames_by_queue);
        }
    }
}
