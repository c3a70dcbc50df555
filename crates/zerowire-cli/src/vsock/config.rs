//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_vhost::serve::{Endpoint, SocketAccess};
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{DEFAULT_GROUP, Limits, VsockConfig, VsockLimits};

use super::VsockArgs;
use crate::file::{WrongKey, of_key};
use crate::service::HandedSockets;
use crate::{access, file, spec};

/// The VMs that the arguments ask for, each on the socket of its name if one was handed over.
pub(super) fn vms(args: &VsockArgs, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let mut vms = named(args, handed)?;
    handed.assign(vms.iter_mut().map(|vm| (vm.name.as_str(), &mut vm.endpoint)));
    Ok(vms)
}

/// What the command line says of VMs that say nothing themselves.
#[derive(Clone, Debug)]
pub(super) struct Defaults {
    access: SocketAccess,
    uds_access: SocketAccess,
    limits: VsockLimits,
    map: MapPolicy,
}

impl Defaults {
    pub(super) fn new(args: &VsockArgs) -> Result<Self> {
        Ok(Self {
            access: args.access.into(),
            uds_access: args.uds_access.into(),
            limits: args.limits.into(),
            map: args.map.policy()?,
        })
    }

    fn made(&self, vm: VsockVmConfig) -> VsockConfig {
        VsockConfig::new(vm.name, vm.endpoint, vm.cid, vm.uds)
            .access(access::or(vm.access, self.access))
            .uds_access(access::or(vm.uds_access, self.uds_access))
            .groups(vm.groups)
            .limits(self.limits)
            .rates(vm.rates)
            .map(self.map.clone())
    }

    /// A VM of the file or of the control socket.
    pub(super) fn vm(&self, name: &str, vm: file::Vsock) -> Result<VsockConfig, WrongKey> {
        vsock_vm(name, vm).map(|vm| self.made(vm))
    }
}

fn named(args: &VsockArgs, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let defaults = Defaults::new(args)?;
    if let Some(path) = &args.config {
        let vms = if args.control.has_socket() {
            file::read_any(path, |vm| vm.vsock)?
        } else {
            file::read(path, "vm.vsock", |vm| vm.vsock)?
        };
        let context = |name: &str| format!("{}: VM {name}", path.display());
        return vms
            .into_iter()
            .map(|(name, vm)| defaults.vm(&name, vm).with_context(|| context(&name)))
            .collect();
    }
    if !args.vm.is_empty() {
        return args
            .vm
            .iter()
            .map(|spec| parse_vm(spec).with_context(|| format!("--vm {spec}")).map(|vm| defaults.made(vm)))
            .collect();
    }
    let endpoint = match (&args.socket, args.fd, handed.single()) {
        (None, Some(fd), _) => Endpoint::Fd(fd),
        (_, None, Some(endpoint)) => endpoint,
        (Some(path), None, None) => Endpoint::Path(path.clone()),
        (None, None, None) if args.control.has_socket() => return Ok(Vec::new()),
        _ => bail!(
            "give --socket PATH or --fd N with --cid N and --uds PATH, or --vm SPEC, --config FILE or --control PATH (see \
             'zerowire vsock --help')"
        ),
    };
    let (Some(cid), Some(uds)) = (args.cid, &args.uds) else {
        bail!("a single VM needs its address and the host's end: give --cid N and --uds PATH");
    };
    let groups = parse_groups(&args.groups).with_context(|| format!("--groups {}", args.groups))?;
    let own = SocketAccess::default();
    let (name, uds, rates) = (args.name.clone(), uds.clone(), args.limits.rates());
    Ok(vec![defaults.made(VsockVmConfig {
        name,
        endpoint,
        access: own,
        cid,
        uds,
        uds_access: own,
        groups,
        rates,
    })])
}

/// A VM of the file.
fn vsock_vm(name: &str, v: file::Vsock) -> Result<VsockVmConfig, WrongKey> {
    let text = Option::as_deref;
    let limit = |limit: &Option<String>| Ok(text(limit).map(str::parse).transpose()?);
    let owner = of_key("socket-owner", access::parse(text(&v.socket_owner), None, None))?;
    let group = of_key("socket-group", access::parse(None, text(&v.socket_group), None))?;
    let mode = of_key("socket-mode", access::parse(None, None, text(&v.socket_mode)))?;
    let uds_owner = of_key("uds-owner", access::parse(text(&v.uds_owner), None, None))?;
    let uds_group = of_key("uds-group", access::parse(None, text(&v.uds_group), None))?;
    let uds_mode = of_key("uds-mode", access::parse(None, None, text(&v.uds_mode)))?;
    let groups = v.groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]);
    Ok(VsockVmConfig {
        name: name.to_owned(),
        access: access::or(owner, access::or(group, mode)),
        uds_access: access::or(uds_owner, access::or(uds_group, uds_mode)),
        groups: of_key("groups", checked_groups(groups))?,
        rates: Limits {
            transmit: of_key("tx-limit", limit(&v.tx_limit))?,
            receive: of_key("rx-limit", limit(&v.rx_limit))?,
        },
        endpoint: Endpoint::Path(v.socket),
        cid: v.cid,
        uds: v.uds,
    })
}

/// A VM as the file would have it, all keys included that have a value.
pub(super) fn table_of(vm: &VsockConfig) -> file::Vsock {
    let id = |id: Option<u32>| id.map(|id| id.to_string());
    let mode = |access: &SocketAccess| Some(format!("{:04o}", access.mode()));
    file::Vsock {
        socket: PathBuf::from(vm.endpoint.to_string()),
        cid: vm.cid,
        uds: vm.uds.clone(),
        groups: Some(vm.groups.clone()),
        tx_limit: vm.rates.transmit.map(|limit| limit.to_string()),
        rx_limit: vm.rates.receive.map(|limit| limit.to_string()),
        socket_owner: id(vm.access.owner),
        socket_group: id(vm.access.group),
        socket_mode: mode(&vm.access),
        uds_owner: id(vm.uds_access.owner),
        uds_group: id(vm.uds_access.group),
        uds_mode: mode(&vm.uds_access),
    }
}

#[derive(Debug)]
struct VsockVmConfig {
    name: String,
    endpoint: Endpoint,
    access: SocketAccess,
    cid: u64,
    uds: PathBuf,
    uds_access: SocketAccess,
    groups: Vec<String>,
    rates: Limits,
}

/// Parses name=…,cid=…,socket=…,uds=…[,groups=A+B], and tx-limit, rx-limit, socket-owner,
/// socket-group, socket-mode, uds-owner, uds-group, uds-mode.
fn parse_vm(text: &str) -> Result<VsockVmConfig> {
    let (mut name, mut cid, mut socket, mut uds, mut groups) = (None, None, None, None, None);
    let (mut access, mut uds_access) = (SocketAccess::default(), SocketAccess::default());
    let mut rates = Limits::default();
    for (key, value) in spec::pairs(text)? {
        match key {
            "name" => name = Some(value.to_owned()),
            "cid" => cid = Some(value.parse().map_err(|_| anyhow!("cid={value}: give a number, 3 or more"))?),
            "socket" => socket = Some(PathBuf::from(value)),
            "uds" => uds = Some(PathBuf::from(value)),
            "groups" => groups = Some(parse_groups(value)?),
            "tx-limit" => rates.transmit = Some(value.parse()?),
            "rx-limit" => rates.receive = Some(value.parse()?),
            key if access::take(&mut access, "socket", key, value)? => {}
            key if access::take(&mut uds_access, "uds", key, value)? => {}
            _ => bail!(
                "'{key}' is not known: name, cid, socket, uds, groups, tx-limit, rx-limit, socket-owner, socket-group, \
                 socket-mode, uds-owner, uds-group, uds-mode"
            ),
        }
    }
    Ok(VsockVmConfig {
        name: name.ok_or_else(|| anyhow!("name=NAME is missing"))?,
        endpoint: Endpoint::Path(socket.ok_or_else(|| anyhow!("socket=PATH is missing"))?),
        access,
        cid: cid.ok_or_else(|| anyhow!("cid=N is missing"))?,
        uds: uds.ok_or_else(|| anyhow!("uds=PATH is missing"))?,
        uds_access,
        groups: groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]),
        rates,
    })
}

/// Parses A+B.
fn parse_groups(text: &str) -> Result<Vec<String>> {
    checked_groups(text.split('+').map(ToOwned::to_owned).collect())
}

fn checked_groups(groups: Vec<String>) -> Result<Vec<String>> {
    if groups.is_empty() {
        bail!("no group is named: a VM that is to reach no other one goes into a group of its own");
    }
    if groups.iter().any(|g| g.is_empty() || g.contains('+')) {
        bail!("groups '{}': give names of at least one byte, with + between them", groups.join("+"));
    }
    Ok(groups)
}

#[cfg(test)]
mod tests;
