//! From arguments and files to VMs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use zerowire_vhost::serve::{Endpoint, SocketAccess};
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{DEFAULT_GROUP, Limits, VsockConfig, VsockLimits};

use super::VsockArgs;
use crate::file::{ReadText, WrongKey, of_key, parsed};
use crate::service::HandedSockets;
use crate::{access, file, serving, spec};

/// The VMs that the arguments ask for, each on the socket of its name if one was handed over.
/// `text` reads the file of --config.
pub(super) fn vms(args: &VsockArgs, text: ReadText, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let mut vms = named(args, text, handed)?;
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
    control: Option<PathBuf>,
}

impl Defaults {
    pub(super) fn new(args: &VsockArgs) -> Result<Self> {
        Ok(Self {
            access: args.socket.access(),
            uds_access: args.uds_access.into(),
            limits: args.limits.into(),
            map: args.map.policy()?,
            control: args.control.path().map(Path::to_owned),
        })
    }

    /// Gives a VM what it does not say itself.
    fn complete(&self, vm: VsockConfig) -> VsockConfig {
        let (access, uds_access) =
            (access::or(vm.access, self.access), access::or(vm.uds_access, self.uds_access));
        let vm = vm.access(access).uds_access(uds_access).limits(self.limits).map(self.map.clone());
        vm.control(self.control.clone())
    }

    /// A VM of the file, of `--vm` or of the control socket.
    pub(super) fn vm(&self, name: &str, v: file::Vsock) -> Result<VsockConfig, WrongKey> {
        let keys = ["socket-owner", "socket-group", "socket-mode"];
        let access = access::of_keys(keys, [&v.socket_owner, &v.socket_group, &v.socket_mode])?;
        let keys = ["uds-owner", "uds-group", "uds-mode"];
        let uds_access = access::of_keys(keys, [&v.uds_owner, &v.uds_group, &v.uds_mode])?;
        let groups = v.groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]);
        let groups = of_key("groups", checked_groups(groups))?;
        let transmit = parsed("tx-limit", &v.tx_limit)?;
        let rates = Limits { transmit, receive: parsed("rx-limit", &v.rx_limit)? };
        let vm = VsockConfig::new(name, Endpoint::Path(v.socket), v.cid, v.uds);
        Ok(self.complete(vm.access(access).uds_access(uds_access).groups(groups).rates(rates)))
    }
}

fn named(args: &VsockArgs, text: ReadText, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let defaults = Defaults::new(args)?;
    let may_be_none = args.control.has_socket();
    let made = |name: &str, vm| defaults.vm(name, vm);
    let config = args.config.as_deref().map(|path| (path, text));
    let vms = serving::named_vms(config, &args.vm, may_be_none, ("vm.vsock", |vm| vm.vsock), parse_vm, made)?;
    if let Some(vms) = vms {
        return Ok(vms);
    }
    let Some(endpoint) = args.socket.endpoint(handed) else {
        if may_be_none {
            let rates = args.limits.rates();
            serving::refuse_without_vm(&[
                ("--cid", args.cid.is_some()),
                ("--uds", args.uds.is_some()),
                ("--groups", args.groups.is_some()),
                ("--name", args.name.is_some()),
                ("--tx-limit", rates.transmit.is_some()),
                ("--rx-limit", rates.receive.is_some()),
            ])?;
            return Ok(Vec::new());
        }
        bail!(
            "give --socket PATH or --fd N with --cid N and --uds PATH, or --vm SPEC, --config FILE or --control PATH (see \
             'zerowire vsock --help')"
        );
    };
    let (Some(cid), Some(uds)) = (args.cid, &args.uds) else {
        bail!("a single VM needs its address and the host's end: give --cid N and --uds PATH");
    };
    let groups = args.groups.as_deref().unwrap_or(DEFAULT_GROUP);
    let groups = checked_groups(split_groups(groups)).with_context(|| format!("--groups {groups}"))?;
    let vm = VsockConfig::new(serving::own_name(&args.name), endpoint, cid, uds.clone());
    Ok(vec![defaults.complete(vm.groups(groups).rates(args.limits.rates()))])
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

/// Parses name=…,cid=…,socket=…,uds=…[,groups=A+B], and tx-limit, rx-limit, socket-owner,
/// socket-group, socket-mode, uds-owner, uds-group, uds-mode.
/// Returns the name, and the other keys as the file would have them.
fn parse_vm(text: &str) -> Result<(String, file::Vsock)> {
    let (mut name, mut cid, mut socket, mut uds) = (None, None, None, None);
    let mut vm = file::Vsock::default();
    for (key, value) in spec::pairs(text)? {
        let text = Some(value.to_owned());
        match key {
            "name" => name = text,
            "cid" => cid = Some(value.parse().map_err(|_| anyhow!("cid={value}: give a number, 3 or more"))?),
            "socket" => socket = text,
            "uds" => uds = text,
            "groups" => vm.groups = Some(split_groups(value)),
            "tx-limit" => vm.tx_limit = text,
            "rx-limit" => vm.rx_limit = text,
            "socket-owner" => vm.socket_owner = text,
            "socket-group" => vm.socket_group = text,
            "socket-mode" => vm.socket_mode = text,
            "uds-owner" => vm.uds_owner = text,
            "uds-group" => vm.uds_group = text,
            "uds-mode" => vm.uds_mode = text,
            _ => bail!(
                "'{key}' is not known: name, cid, socket, uds, groups, tx-limit, rx-limit, socket-owner, socket-group, \
                 socket-mode, uds-owner, uds-group, uds-mode"
            ),
        }
    }
    vm.socket = spec::needed(socket, "socket=PATH")?.into();
    vm.cid = spec::needed(cid, "cid=N")?;
    vm.uds = spec::needed(uds, "uds=PATH")?.into();
    Ok((spec::needed(name, "name=NAME")?, vm))
}

/// The groups of A+B.
fn split_groups(text: &str) -> Vec<String> {
    text.split('+').map(ToOwned::to_owned).collect()
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
