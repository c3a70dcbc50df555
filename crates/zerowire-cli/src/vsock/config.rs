//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_vhost::serve::{Endpoint, SocketAccess};
use zerowire_vsock::{DEFAULT_GROUP, Limits, VsockConfig};

use super::VsockArgs;
use crate::service::HandedSockets;
use crate::{access, file, spec};

/// The VMs that the arguments ask for, each on the socket of its name if one was handed over.
pub(super) fn vms(args: &VsockArgs, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let mut vms = named(args, handed)?;
    handed.assign(vms.iter_mut().map(|vm| (vm.name.as_str(), &mut vm.endpoint)));
    Ok(vms)
}

fn named(args: &VsockArgs, handed: &HandedSockets) -> Result<Vec<VsockConfig>> {
    let map = args.map.policy()?;
    let made = |vm: VsockVmConfig| VsockConfig {
        name: vm.name,
        endpoint: vm.endpoint,
        access: access::or(vm.access, args.access.into()),
        cid: vm.cid,
        uds: vm.uds,
        uds_access: access::or(vm.uds_access, args.uds_access.into()),
        groups: vm.groups,
        limits: args.limits.into(),
        rates: vm.rates,
        map: map.clone(),
    };
    if let Some(path) = &args.config {
        return file::read(path, "vm.vsock", |vm| vm.vsock)?
            .into_iter()
            .map(|(name, v)| {
                let context = || format!("{}: VM {name}", path.display());
                vsock_vm(&name, v).with_context(context).map(made)
            })
            .collect();
    }
    if !args.vm.is_empty() {
        return args
            .vm
            .iter()
            .map(|spec| parse_vm(spec).with_context(|| format!("--vm {spec}")).map(made))
            .collect();
    }
    let endpoint = match (&args.socket, args.fd, handed.single()) {
        (None, Some(fd), _) => Endpoint::Fd(fd),
        (_, None, Some(endpoint)) => endpoint,
        (Some(path), None, None) => Endpoint::Path(path.clone()),
        _ => bail!(
            "give --socket PATH or --fd N with --cid N and --uds PATH, or --vm SPEC, or --config FILE (see 'zerowire vsock \
             --help')"
        ),
    };
    let (Some(cid), Some(uds)) = (args.cid, &args.uds) else {
        bail!("a single VM needs its address and the host's end: give --cid N and --uds PATH");
    };
    let groups = parse_groups(&args.groups).with_context(|| format!("--groups {}", args.groups))?;
    let own = SocketAccess::default();
    let (name, uds, rates) = (args.name.clone(), uds.clone(), args.limits.rates());
    Ok(vec![made(VsockVmConfig { name, endpoint, access: own, cid, uds, uds_access: own, groups, rates })])
}

/// A VM of the file.
fn vsock_vm(name: &str, v: file::Vsock) -> Result<VsockVmConfig> {
    let text = Option::as_deref;
    Ok(VsockVmConfig {
        name: name.to_owned(),
        access: access::parse(text(&v.socket_owner), text(&v.socket_group), text(&v.socket_mode))?,
        uds_access: access::parse(text(&v.uds_owner), text(&v.uds_group), text(&v.uds_mode))?,
        endpoint: Endpoint::Path(v.socket),
        cid: v.cid,
        uds: v.uds,
        groups: checked_groups(v.groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]))?,
        rates: Limits {
            transmit: text(&v.tx_limit).map(str::parse).transpose()?,
            receive: text(&v.rx_limit).map(str::parse).transpose()?,
        },
    })
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
