//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::PortSpec;
use zerowire_net::{FrameGuard, Limits, MetadataSource, Policy, VmConfig};
use zerowire_vhost::serve::{Endpoint, SocketAccess};

use super::{NetArgs, TokenArg, policy};
use crate::file::{WrongKey, of_key};
use crate::service::HandedSockets;
use crate::{access, file, spec};

/// The VMs that the arguments ask for, each on the socket of its name if one was handed over.
pub(super) fn vms(args: &NetArgs, handed: &HandedSockets) -> Result<Vec<VmConfig>> {
    args.control.check(args.postcopy)?;
    args.sandbox.check(args)?;
    let mut vms = named(args, handed)?;
    handed.assign(vms.iter_mut().map(|vm| (vm.name.as_str(), &mut vm.endpoint)));
    if args.postcopy && vms.len() > 1 {
        bail!(
            "--postcopy with {} VMs: a front end could stop and change the others; give each such VM a process of its own",
            vms.len()
        );
    }
    Ok(vms)
}

/// The ports that the arguments name. A file's are not among them.
pub(super) fn ports(args: &NetArgs) -> impl Iterator<Item = Result<PortSpec>> {
    args.vm.iter().map(|spec| Ok(parse_vm(spec)?.port)).chain([port(&args.port)])
}

/// What the command line says of VMs that say nothing themselves.
#[derive(Clone, Debug)]
pub(super) struct Defaults {
    access: SocketAccess,
    metadata: Option<PathBuf>,
    tokens: TokenPolicy,
    policy: Policy,
    postcopy: bool,
}

impl Defaults {
    pub(super) fn new(args: &NetArgs) -> Result<Self> {
        Ok(Self {
            access: args.access.into(),
            metadata: args.metadata.metadata.clone(),
            tokens: match args.metadata.metadata_token {
                TokenArg::Required => TokenPolicy::Required,
                TokenArg::Optional => TokenPolicy::Optional,
            },
            policy: policy(args)?,
            postcopy: args.postcopy,
        })
    }

    /// The VM, with an end point that need not be its socket.
    fn at(&self, endpoint: Endpoint, vm: VmSpec) -> VmConfig {
        VmConfig::new(vm.name, endpoint, vm.port)
            .access(access::or(vm.access, self.access))
            .metadata(
                vm.metadata
                    .or_else(|| self.metadata.clone())
                    .map(|file| MetadataSource { file, tokens: vm.tokens.unwrap_or(self.tokens) }),
            )
            .policy(self.policy)
            .mac(vm.mac)
            .guard(vm.guard)
            .limits(vm.limits)
            .postcopy(self.postcopy)
    }

    fn on_socket(&self, vm: VmSpec) -> VmConfig {
        self.at(Endpoint::Path(vm.socket.clone()), vm)
    }

    /// A VM of the file or of the control socket.
    pub(super) fn vm(&self, name: &str, net: file::Net) -> Result<VmConfig, WrongKey> {
        net_vm(name, net).map(|vm| self.on_socket(vm))
    }
}

fn named(args: &NetArgs, handed: &HandedSockets) -> Result<Vec<VmConfig>> {
    let defaults = Defaults::new(args)?;
    if let Some(path) = &args.config {
        let vms = if args.control.has_socket() {
            file::read_any(path, |vm| vm.net)?
        } else {
            file::read(path, "vm.net", |vm| vm.net)?
        };
        return vms
            .into_iter()
            .map(|(name, net)| {
                defaults.vm(&name, net).with_context(|| format!("{}: VM {name}", path.display()))
            })
            .collect();
    }
    if !args.vm.is_empty() {
        return args
            .vm
            .iter()
            .map(|spec| {
                let vm = parse_vm(spec).with_context(|| format!("--vm {spec}"))?;
                Ok(defaults.on_socket(vm))
            })
            .collect();
    }
    let endpoint = match (&args.socket, args.fd, handed.single()) {
        (None, Some(fd), _) => Endpoint::Fd(fd),
        (_, None, Some(endpoint)) => endpoint,
        (Some(path), None, None) => Endpoint::Path(path.clone()),
        (None, None, None) if args.control.has_socket() => return Ok(Vec::new()),
        _ => bail!(
            "give --socket PATH, --fd N, --vm SPEC, --config FILE or --control PATH (see 'zerowire net --help')"
        ),
    };
    let vm = VmSpec {
        name: args.name.clone(),
        socket: PathBuf::new(),
        port: port(&args.port)?,
        metadata: None,
        tokens: None,
        mac: args.device.mac,
        guard: guard(args.device.guard.as_deref(), args.device.mac)?,
        limits: Limits { transmit: args.device.tx_limit, receive: args.device.rx_limit },
        access: SocketAccess::default(),
    };
    Ok(vec![defaults.at(endpoint, vm)])
}

/// A VM of the file.
fn net_vm(name: &str, net: file::Net) -> Result<VmSpec, WrongKey> {
    let text = Option::as_deref;
    let owner = of_key("socket-owner", access::parse(text(&net.socket_owner), None, None))?;
    let group = of_key("socket-group", access::parse(None, text(&net.socket_group), None))?;
    let mode = of_key("socket-mode", access::parse(None, None, text(&net.socket_mode)))?;
    let mac = of_key("mac", text(&net.mac).map(|mac| Ok(mac.parse::<MacAddress>()?)).transpose())?;
    Ok(VmSpec {
        name: name.to_owned(),
        port: of_key("port", port(&net.port))?,
        tokens: of_key("metadata-token", text(&net.metadata_token).map(token_policy).transpose())?,
        mac,
        guard: of_key("guard", guard(text(&net.guard), mac))?,
        limits: Limits {
            transmit: of_key("tx-limit", text(&net.tx_limit).map(|limit| Ok(limit.parse()?)).transpose())?,
            receive: of_key("rx-limit", text(&net.rx_limit).map(|limit| Ok(limit.parse()?)).transpose())?,
        },
        access: access::or(owner, access::or(group, mode)),
        socket: net.socket,
        metadata: net.metadata,
    })
}

/// A VM as the file would have it, all keys included that have a value.
pub(super) fn table_of(vm: &VmConfig) -> file::Net {
    let SocketAccess { owner, group, .. } = vm.access;
    file::Net {
        socket: PathBuf::from(vm.endpoint.to_string()),
        port: vm.port.to_string(),
        metadata: vm.metadata.as_ref().map(|source| source.file.clone()),
        metadata_token: vm.metadata.as_ref().map(|source| token_word(source.tokens).to_owned()),
        mac: vm.mac.map(|mac| mac.to_string()),
        guard: vm.guard.as_ref().map(|guard| guard.to_string()),
        tx_limit: vm.limits.transmit.map(|limit| limit.to_string()),
        rx_limit: vm.limits.receive.map(|limit| limit.to_string()),
        socket_owner: owner.map(|id| id.to_string()),
        socket_group: group.map(|id| id.to_string()),
        socket_mode: Some(format!("{:04o}", vm.access.mode())),
    }
}

fn token_policy(word: &str) -> Result<TokenPolicy> {
    let known = [TokenPolicy::Required, TokenPolicy::Optional];
    let policy = known.into_iter().find(|policy| token_word(*policy) == word);
    policy.ok_or_else(|| anyhow!("metadata-token '{word}': give required or optional"))
}

const fn token_word(policy: TokenPolicy) -> &'static str {
    match policy {
        TokenPolicy::Required => "required",
        TokenPolicy::Optional => "optional",
    }
}

/// Parses what --port takes.
fn port(text: &str) -> Result<PortSpec> {
    Ok(text.parse()?)
}

/// Parses what --guard takes, for a device with that address.
fn guard(text: Option<&str>, mac: Option<MacAddress>) -> Result<Option<FrameGuard>> {
    Ok(text.map(|text| FrameGuard::parse(text, mac)).transpose()?)
}

#[derive(Debug)]
struct VmSpec {
    name: String,
    socket: PathBuf,
    port: PortSpec,
    metadata: Option<PathBuf>,
    tokens: Option<TokenPolicy>,
    mac: Option<MacAddress>,
    guard: Option<FrameGuard>,
    limits: Limits,
    access: SocketAccess,
}

/// Parses name=…,socket=…,port=…[,OPTION OF THE PORT
/// …][,metadata=FILE][,metadata-token=WHEN][,mac=MAC][,guard=CHECKS]
/// [,tx-limit=LIMIT][,rx-limit=LIMIT]
/// [,socket-owner=USER][,socket-group=GROUP][,socket-mode=MODE].
fn parse_vm(text: &str) -> Result<VmSpec> {
    let (mut name, mut socket, mut metadata, mut tokens) = (None, None, None, None);
    let (mut of, mut of_port, mut mac, mut checks) = (None, String::new(), None, None);
    let (mut access, mut limits) = (SocketAccess::default(), Limits::default());
    for (key, value) in spec::pairs(text)? {
        match key {
            "name" => name = Some(value.to_owned()),
            "socket" => socket = Some(PathBuf::from(value)),
            "port" => of = Some(value),
            key if PortSpec::OPTIONS.contains(&key) => {
                of_port.push_str(&format!(",{key}={value}"));
            }
            "metadata" => metadata = Some(PathBuf::from(value)),
            "metadata-token" => tokens = Some(token_policy(value)?),
            "mac" => mac = Some(value.parse()?),
            "guard" => checks = Some(value),
            "tx-limit" => limits.transmit = Some(value.parse()?),
            "rx-limit" => limits.receive = Some(value.parse()?),
            key if access::take(&mut access, "socket", key, value)? => {}
            _ => bail!(
                "'{key}' is not known: name, socket, port and its options, metadata, metadata-token, mac, \
                 guard, tx-limit, rx-limit, socket-owner, socket-group, socket-mode"
            ),
        }
    }
    let of = of.ok_or_else(|| anyhow!("port=PORT is missing"))?;
    Ok(VmSpec {
        name: name.ok_or_else(|| anyhow!("name=NAME is missing"))?,
        socket: socket.ok_or_else(|| anyhow!("socket=PATH is missing"))?,
        port: port(&format!("{of}{of_port}"))?,
        metadata,
        tokens,
        mac,
        guard: guard(checks, mac)?,
        limits,
        access,
    })
}

#[cfg(test)]
mod tests;
