//! Where it goes.

use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// How long a connect waits at least.
const LEAST_TIMEOUT: Duration = Duration::from_millis(1);

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTarget {
    /// A name or address, and a port.
    Host(String, u16),
    /// A virtual machine, or the host (2) from inside one.
    Vsock(u32, u32),
    /// A unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for SendTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Host(host, port) => write!(f, "{host}:{port}"),
            Self::Vsock(cid, port) => write!(f, "vsock:{cid}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for SendTarget {
    type Err = anyhow::Error;

    fn from_str(s: &str) -> Result<Self> {
        if let Some(path) = s.strip_prefix("unix:") {
            if path.is_empty() {
                bail!("--to {s}: no path behind unix:");
            }
            return Ok(Self::Unix(path.into()));
        }
        if let Some(rest) = s.strip_prefix("vsock:") {
            let (cid, port) =
                rest.split_once(':').with_context(|| format!("--to {s} is not vsock:CID:PORT"))?;
            let number = |what: &str, text: &str| {
                text.parse::<u32>().map_err(|_| {
                    anyhow::anyhow!("--to {s}: the {what} {text:?} is no number from 0 to 4294967295")
                })
            };
            return Ok(Self::Vsock(number("CID", cid)?, number("port", port)?));
        }
        let (host, port) = s.rsplit_once(':').with_context(|| {
            format!("--to {s} names no port: give HOST:PORT, [IPV6]:PORT, vsock:CID:PORT or unix:PATH")
        })?;
        let Ok(port) = port.parse() else {
            bail!("--to {s}: the port {port:?} is no number from 1 to 65535");
        };
        let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(inner) => inner,
            None if host.contains(':') => {
                bail!("--to {s}: write an IPv6 address in brackets, [{host}]:{port}")
            }
            None => host,
        };
        if host.is_empty() || port == 0 {
            bail!("--to {s}: a host and a port of 1 to 65535 are needed");
        }
        Ok(Self::Host(host.to_owned(), port))
    }
}

impl SendTarget {
    /// A connected socket. Each address has `timeout` to answer, if one is given; AF_VSOCK has the
    /// kernel's 2 s.
    pub fn connect(&self, datagrams: bool, timeout: Option<Duration>) -> Result<OwnedFd> {
        let kind = if datagrams { SocketType::DGRAM } else { SocketType::STREAM };
        match self {
            Self::Host(host, port) => {
                let addresses = (host.as_str(), *port)
                    .to_socket_addrs()
                    .with_context(|| format!("{host} can't be resolved"))?;
                let mut last = None;
                for address in addresses {
                    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                    match socket_with(family, kind, SocketFlags::CLOEXEC, None)
                        .and_then(|socket| connect_within(&socket, &address, timeout).map(|()| socket))
                    {
                        Ok(socket) => return Ok(socket),
                        Err(e) => last = Some((address, e)),
                    }
                }
                match last {
                    Some((address, e)) => Err(refused(e, &address, timeout)),
                    None => bail!("{host} has no address"),
                }
            }
            Self::Vsock(cid, port) => zerowire_cli::af_vsock::connect(*cid, *port, 0, 1),
            Self::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
                let address = rustix::net::SocketAddrUnix::new(path)
                    .with_context(|| format!("{} is no path of a unix socket", path.display()))?;
                connect_within(&socket, &address, timeout).map_err(|e| refused(e, self, timeout))?;
                Ok(socket)
            }
        }
    }
}

/// connect(2), which waits at most for `timeout`.
fn connect_within(
    socket: &OwnedFd,
    address: &impl SocketAddrArg,
    timeout: Option<Duration>,
) -> rustix::io::Result<()> {
    let Some(limit) = timeout else { return rustix::net::connect(socket, address) };
    let begin = Instant::now();
    loop {
        // SO_SNDTIMEO counts for connect, too (socket(7)); unlike with a non-blocking socket, for
        // those of AF_UNIX as well. Zero would be no limit. A stop may take longer than the limit,
        // and the kernel connect meanwhile: then the next call says so at once.
        let left = limit.saturating_sub(begin.elapsed()).max(LEAST_TIMEOUT);
        set_socket_timeout(socket, Timeout::Send, Some(left))?;
        match rustix::net::connect(socket, address) {
            // With SO_SNDTIMEO the kernel does not go on by itself after a stop (signal(7)). The
            // next call waits for the connection that this one has begun.
            Err(Errno::INTR) => {}
            ended => break ended?,
        }
    }
    set_socket_timeout(socket, Timeout::Send, None)
}

fn refused(e: Errno, to: &dyn std::fmt::Display, timeout: Option<Duration>) -> anyhow::Error {
    match timeout {
        // What connect says when SO_SNDTIMEO is over: the first of TCP, the second of TCP by a call
        // that is not the first, the third of AF_UNIX.
        Some(limit) if matches!(e, Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN) => {
            anyhow::anyhow!("can't connect to {to}: no answer within {limit:?} (--timeout)")
        }
        _ => anyhow::Error::from(e).context(format!("can't connect to {to}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read() {
        for (text, want) in [
            ("localhost:5001", SendTarget::Host("localhost".into(), 5001)),
            ("[::1]:80", SendTarget::Host("::1".into(), 80)),
            ("vsock:2:1234", SendTarget::Vsock(2, 1234)),
            ("unix:/run/x", SendTarget::Unix("/run/x".into())),
        ] {
            let target: SendTarget = text.parse().unwrap();
            assert_eq!(target, want);
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("localhost", "names no port"),
            ("localhost:x", "the port \"x\""),
            ("localhost:70000", "the port \"70000\" is no number from 1 to 65535"),
            ("::1:80", "in brackets"),
            (":80", "a host"),
            ("h:0", "1 to 65535"),
            ("vsock:2", "vsock:CID:PORT"),
            ("vsock:a:1", "the CID \"a\""),
            ("unix:", "no path"),
        ] {
            let e = text.parse::<SendTarget>().unwrap_err().to_string();
            assert!(e.contains(word), "{text}: {e}");
        }
    }
}
