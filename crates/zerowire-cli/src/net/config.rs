//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::PortSpec;
use zerowire_net::{MetadataSource, VmConfig};
use zerowire_vhost::serve::{Endpoint, SocketAccess};

use super::{NetArgs, TokenArg, policy};
use crate::{access, file, spec};

/// The VMs that the arguments ask for.
pub(super) fn vms(args: &NetArgs) -> Result<Vec<VmConfig>> {
    let vms = named(args)?;
    if args.postcopy && vms.len() > 1 {
        bail!(
            "--postcopy with {} VMs: a front end could stop and change the others; give each such VM a process of its own",
            vms.len()
        );
    }
    Ok(vms)
}

fn named(args: &NetArgs) -> Result<Vec<VmConfig>> {
    let default_tokens = match args.metadata.metadata_token {
        TokenArg::Required => TokenPolicy::Required,
        TokenArg::Optional => TokenPolicy::Optional,
    };
    let made = |vm: VmSpec, endpoint| -> Result<VmConfig> {
        Ok(VmConfig {
            name: vm.name,
            endpoint,
            access: access::or(vm.access, args.access.into()),
            port: vm.port,
            metadata: vm
                .metadata
                .or_else(|| args.metadata.metadata.clone())
                .map(|file| MetadataSource { file, tokens: vm.tokens.unwrap_or(default_tokens) }),
            policy: policy(args)?,
            mac: vm.mac.or(args.mac),
            postcopy: args.postcopy,
        })
    };
    if let Some(path) = &args.config {
        return file::read(path, "vm.net", |vm| vm.net)?
            .into_iter()
            .map(|(name, net)| {
                let context = || format!("{}: VM {name}", path.display());
                let vm = net_vm(&name, net).with_context(context)?;
                let endpoint = Endpoint::Path(vm.socket.clone());
                made(vm, endpoint)
            })
            .collect();
    }
    if !args.vm.is_empty() {
        return args
            .vm
            .iter()
            .map(|spec| {
                let vm = parse_vm(spec).with_context(|| format!("--vm {spec}"))?;
                let endpoint = Endpoint::Path(vm.socket.clone());
                made(vm, endpoint)
            })
            .collect();
    }
    let endpoint = match (&args.socket, args.fd) {
        (Some(path), None) => Endpoint::Path(path.clone()),
        (None, Some(fd)) => Endpoint::Fd(fd),
        _ => bail!("give --socket PATH, --fd N, --vm SPEC or --config FILE (see 'zerowire net --help')"),
    };
    let vm = VmSpec {
        name: args.name.clone(),
        socket: PathBuf::new(),
        port: port(&args.port)?,
        metadata: None,
        tokens: None,
        mac: None,
        access: SocketAccess::default(),
    };
    Ok(vec![made(vm, endpoint)?])
}

/// A VM of the file.
fn net_vm(name: &str, net: file::Net) -> Result<VmSpec> {
    let text = Option::as_deref;
    Ok(VmSpec {
        name: name.to_owned(),
        port: port(&net.port)?,
        tokens: text(&net.metadata_token).map(token_policy).transpose()?,
        mac: text(&net.mac).map(str::parse).transpose()?,
        access: access::parse(text(&net.socket_owner), text(&net.socket_group), text(&net.socket_mode))?,
        socket: net.socket,
        metadata: net.metadata,
    })
}

fn token_policy(word: &str) -> Result<TokenPolicy> {
    match word {
        "required" => Ok(TokenPolicy::Required),
        "optional" => Ok(TokenPolicy::Optional),
        other => bail!("metadata-token '{other}': give required or optional"),
    }
}

/// Parses what --port takes.
fn port(text: &str) -> Result<PortSpec> {
    Ok(text.parse()?)
}

#[derive(Debug)]
struct VmSpec {
    name: String,
    socket: PathBuf,
    port: PortSpec,
    metadata: Option<PathBuf>,
    tokens: Option<TokenPolicy>,
    mac: Option<MacAddress>,
    access: SocketAccess,
}

/// Parses name=…,socket=…,port=…[,OPTION OF THE PORT
/// …][,metadata=FILE][,metadata-token=WHEN][,mac=MAC]
/// [,socket-owner=USER][,socket-group=GROUP][,socket-mode=MODE].
fn parse_vm(text: &str) -> Result<VmSpec> {
    let (mut name, mut socket, mut metadata, mut tokens) = (None, None, None, None);
    let (mut of, mut of_port, mut mac) = (None, String::new(), None);
    let mut access = SocketAccess::default();
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
            key if access::take(&mut access, "socket", key, value)? => {}
            _ => bail!(
                "'{key}' is not known: name, socket, port and its options, metadata, metadata-token, mac, \
                 socket-owner, socket-group, socket-mode"
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
        access,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
        let v = parse_vm("name=a,socket=/run/a,port=tap:t0,queues=2,metadata=m.json,metadata-token=optional")
            .unwrap();
        assert_eq!((v.name.as_str(), v.port.queues()), ("a", 2));
        assert_eq!(v.tokens, Some(TokenPolicy::Optional));
        let v =
            parse_vm("name=a,socket=/s,port=tap:t,socket-owner=7,socket-group=8,socket-mode=0640").unwrap();
        assert_eq!(v.access, SocketAccess { owner: Some(7), group: Some(8), mode: Some(0o640) });
        assert_eq!(v.mac, None);
        let m = parse_vm("name=a,socket=/s,port=tap:t,mac=52:54:00:00:00:01").unwrap();
        assert_eq!(m.mac.map(|m| m.to_string()).as_deref(), Some("52:54:00:00:00:01"));
        let x = parse_vm("name=a,port=xdp:e0,socket=/run/a,mode=copy,queue=3,offloads=off").unwrap();
        assert_eq!(x.port.to_string(), "xdp:e0,queue=3,queues=1,mode=copy,offloads=off");
        let partial = parse_vm("name=a,port=xdp:e0,socket=/run/a,pin=partial").unwrap();
        assert_eq!(partial.port.to_string(), "xdp:e0,queue=0,queues=1,pin=partial");
        let p = parse_vm("name=a,port=packet:e0,socket=/run/a,rings=on").unwrap();
        assert_eq!(p.port.to_string(), "packet:e0,rings=on");
        let p = parse_vm("name=a,port=packet:e0,receive=socket,socket=/run/a").unwrap();
        assert_eq!(p.port.to_string(), "packet:e0,receive=socket");
        for (bad, word) in [
            ("name=a,port=packet:e0,socket=/s,receive=tap", "receive=tap: give ring, socket or auto"),
            ("name=a,port=xdp:e0,socket=/s,pin=half", "partial or off"),
            ("name=a,socket=/s,port=tap:t,mac=ff:ff:ff:ff:ff:ff", "'ff:ff:ff:ff:ff:ff': give six bytes"),
            ("name=a,port=tap:t,socket=/s,pin=on", "'pin=on' is not known"),
            ("name=a,socket=/s", "port"),
            ("socket=/s,port=tap:t", "name"),
            ("name=a,socket=/s,port=tap:t,mode=copy", "mode=copy"),
            ("name=a,socket=/s,port=xdp:e,rings=on", "rings=on"),
            ("x", "'x'"),
            ("name=a,cpu=3", "'cpu'"),
            (
                "name=a,socket=/s,port=tap:t,socket-mode=rw",
                "socket-mode: mode 'rw': give permissions in octal",
            ),
            (
                "name=a,socket=/s,port=tap:t,socket-group=no-such",
                "socket-group: group 'no-such' is not in /etc/group",
            ),
            ("name=a,socket=/s,port=tap:t,metadata-token=maybe", "metadata-token 'maybe'"),
            ("name=a,socket=/s,port=tap:t,name=b", "name=a and name=b: give 'name' once"),
            ("name=a,socket=/s,port=tap:t,queues=2,queues=3", "queues=2 and queues=3"),
        ] {
            assert!(parse_vm(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
        assert!(token_policy("maybe").is_err());
    }
}
