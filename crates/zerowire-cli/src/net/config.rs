//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_metadata::TokenPolicy;
use zerowire_net::config::MacAddress;
use zerowire_net::port::PortSpec;
use zerowire_net::{MetadataSource, Policy, VmConfig};
use zerowire_vhost::serve::{Endpoint, SocketAccess};

use super::{NetArgs, TokenArg, policy};
use crate::{access, file, spec};

/// The VMs that the arguments ask for.
pub(super) fn vms(args: &NetArgs) -> Result<Vec<VmConfig>> {
    args.control.check(args.postcopy)?;
    let vms = named(args)?;
    if args.postcopy && vms.len() > 1 {
        bail!(
            "--postcopy with {} VMs: a front end could stop and change the others; give each such VM a process of its own",
            vms.len()
        );
    }
    Ok(vms)
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
        VmConfig {
            name: vm.name,
            endpoint,
            access: access::or(vm.access, self.access),
            port: vm.port,
            metadata: vm
                .metadata
                .or_else(|| self.metadata.clone())
                .map(|file| MetadataSource { file, tokens: vm.tokens.unwrap_or(self.tokens) }),
            policy: self.policy,
            mac: vm.mac,
            postcopy: self.postcopy,
        }
    }

    fn on_socket(&self, vm: VmSpec) -> VmConfig {
        self.at(Endpoint::Path(vm.socket.clone()), vm)
    }

    /// A VM of the file or of the control socket.
    pub(super) fn vm(&self, name: &str, net: file::Net) -> Result<VmConfig, WrongKey> {
        net_vm(name, net).map(|vm| self.on_socket(vm))
    }
}

fn named(args: &NetArgs) -> Result<Vec<VmConfig>> {
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
    let endpoint = match (&args.socket, args.fd) {
        (Some(path), None) => Endpoint::Path(path.clone()),
        (None, Some(fd)) => Endpoint::Fd(fd),
        (None, None) if args.control.has_socket() => return Ok(Vec::new()),
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
        mac: args.mac,
        access: SocketAccess::default(),
    };
    Ok(vec![defaults.at(endpoint, vm)])
}

/// A key of a VM that has a wrong value.
#[derive(Debug)]
pub(super) struct WrongKey {
    /// The key.
    pub key: &'static str,
    /// What is wrong with its value.
    pub text: String,
}

impl std::fmt::Display for WrongKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for WrongKey {}

/// A VM of the file.
fn net_vm(name: &str, net: file::Net) -> Result<VmSpec, WrongKey> {
    fn of_key<T>(key: &'static str, value: Result<T>) -> Result<T, WrongKey> {
        value.map_err(|e| WrongKey { key, text: format!("{e:#}") })
    }
    let text = Option::as_deref;
    let owner = of_key("socket-owner", access::parse(text(&net.socket_owner), None, None))?;
    let group = of_key("socket-group", access::parse(None, text(&net.socket_group), None))?;
    let mode = of_key("socket-mode", access::parse(None, None, text(&net.socket_mode)))?;
    Ok(VmSpec {
        name: name.to_owned(),
        port: of_key("port", port(&net.port))?,
        tokens: of_key("metadata-token", text(&net.metadata_token).map(token_policy).transpose())?,
        mac: of_key("mac", text(&net.mac).map(|mac| Ok(mac.parse()?)).transpose())?,
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
    fn a_vm_is_the_same_by_its_own_table() {
        let defaults = Defaults {
            access: SocketAccess { owner: None, group: Some(7), mode: None },
            metadata: Some("/all.json".into()),
            tokens: TokenPolicy::Optional,
            policy: Policy::default(),
            postcopy: false,
        };
        let bare = file::Net {
            socket: "/s".into(),
            port: "tap:a".to_owned(),
            metadata: None,
            metadata_token: None,
            mac: None,
            socket_owner: None,
            socket_group: None,
            socket_mode: None,
        };
        for net in [
            bare.clone(),
            file::Net {
                port: "xdp:e0,queue=3,queues=2,match=mac:52:54:00:00:00:01,pin=off".to_owned(),
                metadata: Some("/own.json".into()),
                metadata_token: Some("required".to_owned()),
                mac: Some("52:54:00:00:00:02".to_owned()),
                socket_owner: Some("root".to_owned()),
                socket_mode: Some("0640".to_owned()),
                ..bare
            },
        ] {
            let vm = defaults.vm("a", net).expect("a VM");
            let mut again = defaults.vm("a", table_of(&vm)).expect("the same VM");
            // What the mode is by default is said there.
            assert_eq!(again.access.mode(), vm.access.mode());
            again.access.mode = vm.access.mode;
            assert_eq!(again, vm);
        }
    }

    #[test]
    fn a_wrong_value_has_its_key() {
        let good = || file::Net {
            socket: "/s".into(),
            port: "tap:a".to_owned(),
            metadata: None,
            metadata_token: None,
            mac: None,
            socket_owner: None,
            socket_group: None,
            socket_mode: None,
        };
        let bad = || Some("?".to_owned());
        for (net, key) in [
            (file::Net { port: "?".to_owned(), ..good() }, "port"),
            (file::Net { metadata_token: bad(), ..good() }, "metadata-token"),
            (file::Net { mac: bad(), ..good() }, "mac"),
            (file::Net { socket_owner: bad(), ..good() }, "socket-owner"),
            (file::Net { socket_group: bad(), ..good() }, "socket-group"),
            (file::Net { socket_mode: bad(), ..good() }, "socket-mode"),
        ] {
            assert_eq!(net_vm("a", net).expect_err(key).key, key);
        }
    }

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
