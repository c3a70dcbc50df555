//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::PortSpec;
use zerowire_net::{FrameGuard, Limits, MetadataSource, Policy, VmConfig};
use zerowire_vhost::serve::{Endpoint, SocketAccess};

use super::{NetArgs, TokenArg, policy};
use crate::file::{ReadText, WrongKey, of_key, parsed};
use crate::service::HandedSockets;
use crate::{access, file, serving, spec};

/// The VMs that the arguments ask for, each on the socket of its name if one was handed over.
/// `text` reads the file of --config.
pub(super) fn vms(args: &NetArgs, text: ReadText, handed: &HandedSockets) -> Result<Vec<VmConfig>> {
    args.control.check(args.postcopy)?;
    args.sandbox.check(args)?;
    let mut vms = named(args, text, handed)?;
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
    let of_vm = |spec: &String| parse_vm(spec).and_then(|(_, vm)| port(&vm.port));
    args.vm.iter().map(of_vm).chain([port(own_port(args))])
}

/// The port of the command line's own VM.
fn own_port(args: &NetArgs) -> &str {
    args.port.as_deref().unwrap_or("tap:zerowire0")
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
            access: args.socket.access(),
            metadata: args.metadata.metadata.clone(),
            tokens: match args.metadata.metadata_token {
                TokenArg::Required => TokenPolicy::Required,
                TokenArg::Optional => TokenPolicy::Optional,
            },
            policy: policy(args)?,
            postcopy: args.postcopy,
        })
    }

    /// Gives a VM what it does not say itself.
    fn complete(&self, vm: VmConfig, metadata: Option<PathBuf>, tokens: Option<TokenPolicy>) -> VmConfig {
        let access = access::or(vm.access, self.access);
        let metadata = metadata.or_else(|| self.metadata.clone());
        let tokens = tokens.unwrap_or(self.tokens);
        vm.access(access)
            .metadata(metadata.map(|file| MetadataSource { file, tokens }))
            .policy(self.policy)
            .postcopy(self.postcopy)
    }

    /// Whether a VM that names no metadata has some.
    pub(super) fn have_metadata(&self) -> bool {
        self.metadata.is_some()
    }

    /// A VM of the file, of `--vm` or of the control socket.
    pub(super) fn vm(&self, name: &str, net: file::Net) -> Result<VmConfig, WrongKey> {
        let keys = ["socket-owner", "socket-group", "socket-mode"];
        let access = access::of_keys(keys, [&net.socket_owner, &net.socket_group, &net.socket_mode])?;
        let mac = parsed("mac", &net.mac)?;
        let port = of_key("port", port(&net.port))?;
        let tokens = net.metadata_token.as_deref().map(token_policy).transpose();
        let tokens = of_key("metadata-token", tokens)?;
        if tokens.is_some() && net.metadata.as_ref().or(self.metadata.as_ref()).is_none() {
            let text = "there is no metadata service to ask for tokens: give metadata, too, or leave it out";
            return Err(WrongKey { key: "metadata-token", text: text.to_owned() });
        }
        let guard = of_key("guard", guard(net.guard.as_deref(), mac))?;
        let transmit = parsed("tx-limit", &net.tx_limit)?;
        let limits = Limits { transmit, receive: parsed("rx-limit", &net.rx_limit)? };
        let vm = VmConfig::new(name, Endpoint::Path(net.socket), port);
        let vm = vm.access(access).mac(mac).guard(guard).limits(limits);
        Ok(self.complete(vm, net.metadata, tokens))
    }
}

fn named(args: &NetArgs, text: ReadText, handed: &HandedSockets) -> Result<Vec<VmConfig>> {
    let defaults = Defaults::new(args)?;
    let may_be_none = args.control.has_socket();
    let made = |name: &str, vm| defaults.vm(name, vm);
    let config = args.config.as_deref().map(|path| (path, text));
    let vms = serving::named_vms(config, &args.vm, may_be_none, ("vm.net", |vm| vm.net), parse_vm, made)?;
    if let Some(vms) = vms {
        return Ok(vms);
    }
    let Some(endpoint) = args.socket.endpoint(handed) else {
        if may_be_none {
            let device = &args.device;
            serving::refuse_without_vm(&[
                ("--port", args.port.is_some()),
                ("--name", args.name.is_some()),
                ("--mac", device.mac.is_some()),
                ("--guard", device.guard.is_some()),
                ("--tx-limit", device.tx_limit.is_some()),
                ("--rx-limit", device.rx_limit.is_some()),
            ])?;
            return Ok(Vec::new());
        }
        bail!(
            "give --socket PATH, --fd N, --vm SPEC, --config FILE or --control PATH (see 'zerowire net --help')"
        );
    };
    let guard = guard(args.device.guard.as_deref(), args.device.mac)?;
    let limits = Limits { transmit: args.device.tx_limit, receive: args.device.rx_limit };
    let vm = VmConfig::new(serving::own_name(&args.name), endpoint, port(own_port(args))?);
    let vm = vm.mac(args.device.mac).guard(guard).limits(limits);
    Ok(vec![defaults.complete(vm, None, None)])
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

/// Parses name=…,socket=…,port=…[,OPTION OF THE PORT
/// …][,metadata=FILE][,metadata-token=WHEN][,mac=MAC][,guard=CHECKS]
/// [,tx-limit=LIMIT][,rx-limit=LIMIT]
/// [,socket-owner=USER][,socket-group=GROUP][,socket-mode=MODE].
/// Returns the name, and the other keys as the file would have them.
fn parse_vm(text: &str) -> Result<(String, file::Net)> {
    let (mut name, mut socket, mut of, mut of_port) = (None, None, None, String::new());
    let mut net = file::Net::default();
    for (key, value) in spec::pairs(text)? {
        let text = Some(value.to_owned());
        match key {
            "name" => name = text,
            "socket" => socket = text,
            "port" => of = text,
            key if PortSpec::OPTIONS.contains(&key) => {
                of_port.push_str(&format!(",{key}={value}"));
            }
            "metadata" => net.metadata = text.map(PathBuf::from),
            "metadata-token" => net.metadata_token = text,
            "mac" => net.mac = text,
            "guard" => net.guard = text,
            "tx-limit" => net.tx_limit = text,
            "rx-limit" => net.rx_limit = text,
            "socket-owner" => net.socket_owner = text,
            "socket-group" => net.socket_group = text,
            "socket-mode" => net.socket_mode = text,
            _ => bail!(
                "'{key}' is not known: name, socket, port and its options, metadata, metadata-token, mac, \
                 guard, tx-limit, rx-limit, socket-owner, socket-group, socket-mode"
            ),
        }
    }
    net.port = spec::needed(of, "port=PORT")? + &of_port;
    net.socket = spec::needed(socket, "socket=PATH")?.into();
    Ok((spec::needed(name, "name=NAME")?, net))
}

#[cfg(test)]
mod tests;
