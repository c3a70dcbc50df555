//! From arguments and files to VMs.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_metadata::TokenPolicy;
use zerowire_virtio::daemon::{Endpoint, MetadataSource, VmConfig};
use zerowire_virtio::port::{MAX_QUEUES, TapSpec};

use super::{NetArgs, TokenArg, engine, policy};
use crate::file;

/// The VMs that the arguments ask for.
pub(super) fn vms(args: &NetArgs) -> Result<Vec<VmConfig>> {
    let made = |name: &str, endpoint, port: TapSpec, metadata: Option<PathBuf>, tokens| -> Result<VmConfig> {
        Ok(VmConfig {
            name: name.to_owned(),
            endpoint,
            port,
            metadata: metadata.map(|file| MetadataSource { file, tokens }),
            policy: policy(args)?,
            engine: engine(args),
        })
    };
    let default_tokens = match args.metadata_token {
        TokenArg::Required => TokenPolicy::Required,
        TokenArg::Optional => TokenPolicy::Optional,
    };
    if let Some(path) = &args.config {
        return file::read(path, "vm.net", |vm| vm.net)?
            .into_iter()
            .map(|(name, net)| {
                let tokens = net.metadata_token.as_deref().map_or(Ok(default_tokens), token_policy);
                let context = || format!("{}: VM {name}", path.display());
                let port = port(&net.port).with_context(context)?;
                made(&name, Endpoint::Path(net.socket), port, net.metadata, tokens.with_context(context)?)
            })
            .collect();
    }
    if !args.vm.is_empty() {
        return args
            .vm
            .iter()
            .map(|spec| {
                let v = parse_vm(spec).with_context(|| format!("--vm {spec}"))?;
                let tokens = v.tokens.as_deref().map_or(Ok(default_tokens), token_policy)?;
                made(&v.name, Endpoint::Path(v.socket), v.port, v.metadata, tokens)
            })
            .collect();
    }
    let endpoint = match (&args.socket, args.fd) {
        (Some(path), None) => Endpoint::Path(path.clone()),
        (None, Some(fd)) => Endpoint::Fd(fd),
        _ => bail!("give --socket PATH, --fd N, --vm SPEC or --config FILE (see 'zerowire net --help')"),
    };
    Ok(vec![made(&args.name, endpoint, port(&args.port)?, args.metadata.clone(), default_tokens)?])
}

fn token_policy(word: &str) -> Result<TokenPolicy> {
    match word {
        "required" => Ok(TokenPolicy::Required),
        "optional" => Ok(TokenPolicy::Optional),
        other => bail!("metadata-token '{other}': give required or optional"),
    }
}

/// Parses tap:NAME[,queues=N].
fn port(text: &str) -> Result<TapSpec> {
    let mut parts = text.split(',');
    let name = parts
        .next()
        .and_then(|p| p.strip_prefix("tap:"))
        .ok_or_else(|| anyhow!("port '{text}': give tap:NAME[,queues=N]"))?;
    let mut spec = TapSpec { name: name.to_owned(), queues: 1 };
    for part in parts {
        match part.split_once('=') {
            Some(("queues", n)) => spec.queues = queues(n)?,
            _ => bail!("port '{text}': '{part}' is not known, only queues=N"),
        }
    }
    Ok(spec)
}

fn queues(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(n @ 1..=MAX_QUEUES) => Ok(n),
        _ => bail!("queues={text}: a device has 1 to {MAX_QUEUES} queue pairs"),
    }
}

#[derive(Debug)]
struct VmSpec {
    name: String,
    socket: PathBuf,
    port: TapSpec,
    metadata: Option<PathBuf>,
    tokens: Option<String>,
}

/// Parses name=…,socket=…,port=tap:…[,queues=N][,metadata=FILE][,metadata-token=WHEN].
fn parse_vm(text: &str) -> Result<VmSpec> {
    let (mut name, mut socket, mut spec, mut metadata, mut tokens, mut pairs) =
        (None, None, None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| anyhow!("'{part}' is not KEY=VALUE"))?;
        match key {
            "name" => name = Some(value.to_owned()),
            "socket" => socket = Some(PathBuf::from(value)),
            "port" => spec = Some(port(value)?),
            "queues" => pairs = Some(queues(value)?),
            "metadata" => metadata = Some(PathBuf::from(value)),
            "metadata-token" => tokens = Some(value.to_owned()),
            _ => bail!("'{key}' is not known: name, socket, port, queues, metadata, metadata-token"),
        }
    }
    let mut port = spec.ok_or_else(|| anyhow!("port=tap:NAME is missing"))?;
    port.queues = pairs.unwrap_or(port.queues);
    Ok(VmSpec {
        name: name.ok_or_else(|| anyhow!("name=NAME is missing"))?,
        socket: socket.ok_or_else(|| anyhow!("socket=PATH is missing"))?,
        port,
        metadata,
        tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_and_errors_name_the_value() {
        assert_eq!(port("tap:t0").unwrap(), TapSpec { name: "t0".into(), queues: 1 });
        assert_eq!(port("tap:t0,queues=4").unwrap().queues, 4);
        for (bad, word) in [("veth:a", "veth:a"), ("tap:t0,queues=0", "queues=0"), ("tap:t0,mtu=9", "mtu=9")]
        {
            assert!(port(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
    }

    #[test]
    fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
        let v = parse_vm("name=a,socket=/run/a,port=tap:t0,queues=2,metadata=m.json,metadata-token=optional")
            .unwrap();
        assert_eq!((v.name.as_str(), v.port.queues), ("a", 2));
        assert_eq!(v.tokens.as_deref(), Some("optional"));
        for (bad, word) in [
            ("name=a,socket=/s", "port"),
            ("socket=/s,port=tap:t", "name"),
            ("x", "'x'"),
            ("name=a,cpu=3", "'cpu'"),
        ] {
            assert!(parse_vm(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
        assert!(token_policy("maybe").is_err());
    }
}
