//! From arguments and files to VMs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_virtio::daemon::{DEFAULT_GROUP, Endpoint, VsockConfig};
use zerowire_virtio::vsock::VsockLimits;
use zerowire_virtio::vsock::mapped::MapPolicy;

use super::VsockArgs;
use crate::{file, spec};

/// The VMs that the arguments ask for.
pub(super) fn vms(args: &VsockArgs) -> Result<Vec<VsockConfig>> {
    let limits = VsockLimits {
        buffer_bytes: args.buffer,
        max_connections: args.max_connections as usize,
        request_rate: args.request_rate,
    };
    let made = |vm: Vm| VsockConfig {
        name: vm.name,
        endpoint: vm.endpoint,
        cid: vm.cid,
        uds: vm.uds,
        groups: vm.groups,
        limits,
        map: MapPolicy {
            allow: args.map_allow.clone(),
            max_bytes: args.map_max,
            share_guest_memory: args.share_guest_memory,
            hold: Duration::from_millis(args.map_hold),
        },
    };
    if let Some(path) = &args.config {
        return file::read(path, "vm.vsock", |vm| vm.vsock)?
            .into_iter()
            .map(|(name, v)| {
                let context = || format!("{}: VM {name}", path.display());
                let groups = v.groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]);
                let groups = checked_groups(groups).with_context(context)?;
                let endpoint = Endpoint::Path(v.socket);
                Ok(made(Vm { name, endpoint, cid: v.cid, uds: v.uds, groups }))
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
    let endpoint = match (&args.socket, args.fd) {
        (Some(path), None) => Endpoint::Path(path.clone()),
        (None, Some(fd)) => Endpoint::Fd(fd),
        _ => bail!(
            "give --socket PATH or --fd N with --cid N and --uds PATH, or --vm SPEC, or --config FILE (see 'zerowire vsock \
             --help')"
        ),
    };
    let (Some(cid), Some(uds)) = (args.cid, &args.uds) else {
        bail!("a single VM needs its address and the host's end: give --cid N and --uds PATH");
    };
    let groups = parse_groups(&args.groups).with_context(|| format!("--groups {}", args.groups))?;
    Ok(vec![made(Vm { name: args.name.clone(), endpoint, cid, uds: uds.clone(), groups })])
}

#[derive(Debug)]
struct Vm {
    name: String,
    endpoint: Endpoint,
    cid: u64,
    uds: PathBuf,
    groups: Vec<String>,
}

/// Parses name=…,cid=…,socket=…,uds=…[,groups=A+B].
fn parse_vm(text: &str) -> Result<Vm> {
    let (mut name, mut cid, mut socket, mut uds, mut groups) = (None, None, None, None, None);
    for (key, value) in spec::pairs(text)? {
        match key {
            "name" => name = Some(value.to_owned()),
            "cid" => cid = Some(value.parse().map_err(|_| anyhow!("cid={value}: give a number, 3 or more"))?),
            "socket" => socket = Some(PathBuf::from(value)),
            "uds" => uds = Some(PathBuf::from(value)),
            "groups" => groups = Some(parse_groups(value)?),
            _ => bail!("'{key}' is not known: name, cid, socket, uds, groups"),
        }
    }
    Ok(Vm {
        name: name.ok_or_else(|| anyhow!("name=NAME is missing"))?,
        endpoint: Endpoint::Path(socket.ok_or_else(|| anyhow!("socket=PATH is missing"))?),
        cid: cid.ok_or_else(|| anyhow!("cid=N is missing"))?,
        uds: uds.ok_or_else(|| anyhow!("uds=PATH is missing"))?,
        groups: groups.unwrap_or_else(|| vec![DEFAULT_GROUP.to_owned()]),
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
mod tests {
    use super::*;

    #[test]
    fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
        let v = parse_vm("name=a,cid=3,socket=/run/a,uds=/run/a.host,groups=x+y").unwrap();
        assert_eq!((v.name.as_str(), v.cid), ("a", 3));
        assert_eq!(v.groups, ["x", "y"]);
        let alone = parse_vm("name=a,cid=3,socket=/s,uds=/u").unwrap();
        assert_eq!(alone.groups, [DEFAULT_GROUP]);
        for (bad, word) in [
            ("name=a,cid=3,socket=/s", "uds=PATH"),
            ("name=a,cid=3,uds=/u", "socket=PATH"),
            ("name=a,socket=/s,uds=/u", "cid=N"),
            ("cid=3,socket=/s,uds=/u", "name=NAME"),
            ("name=a,cid=three", "cid=three"),
            ("name=a,cid=-1", "cid=-1"),
            ("x", "'x'"),
            ("name=a,cid=3,cid=4,socket=/s,uds=/u", "cid=3 and cid=4"),
            ("name=a,port=tap:t", "'port'"),
            ("name=a,groups=x++y", "x++y"),
        ] {
            assert!(parse_vm(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
    }

    #[test]
    fn groups_have_names() {
        assert_eq!(parse_groups("a").unwrap(), ["a"]);
        assert!(parse_groups("").is_err());
        assert!(parse_groups("a+").unwrap_err().to_string().contains("'a+'"));
        assert!(checked_groups(Vec::new()).unwrap_err().to_string().contains("group of its own"));
        assert!(checked_groups(vec!["a+b".to_owned()]).is_err());
    }
}
