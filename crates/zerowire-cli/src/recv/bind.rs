//! The listening socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Connections that wait to be accepted, at most; the system may allow fewer (net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// How long to wait for a port that is in use, and how often to try again. The kernel closes an
/// io_uring with its listening socket some time after the program that had it was killed.
const IN_USE: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(10);

/// Listens at a name or address. The address of all of IPv6 takes IPv4 too. On a machine without
/// IPv6 it is all of IPv4.
pub fn listen(host: &str, port: u16) -> Result<OwnedFd> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let addresses = (bare, port)
        .to_socket_addrs()
        .with_context(|| format!("--bind {host} is no address and no name that can be resolved"))?;
    let (mut last, begin) = (None, Instant::now());
    for address in addresses {
        match retry(begin, || listen_at(address)) {
            Ok(socket) => return Ok(socket),
            Err(e) => last = Some((address, e)),
        }
    }
    let (address, e) = last.with_context(|| format!("--bind {host} has no address"))?;
    Err(e).with_context(|| match e {
        Errno::ADDRINUSE => {
            format!("port {port} is in use at {}: give another -p, or end who listens there ('ss -ltnp')", address.ip())
        }
        Errno::ACCESS => {
            format!("port {port} is for the administrator (net.ipv4.ip_unprivileged_port_start): give -p 1024 or more")
        }
        Errno::ADDRNOTAVAIL => format!("--bind {host}: no interface of this machine has the address {}", address.ip()),
        _ => format!("can't listen at {address}"),
    })
}

/// Tries again while the port is in use, for [`IN_USE`] from `begin` on.
fn retry(begin: Instant, mut listen: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    loop {
        match listen() {
            Err(Errno::ADDRINUSE) if begin.elapsed() < IN_USE => std::thread::sleep(RETRY),
            ended => return ended,
        }
    }
}

fn listen_at(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let made = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let all = address.ip().is_unspecified();
    let socket = match made {
        Err(Errno::AFNOSUPPORT) if all && address.is_ipv6() => {
            return listen_at(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()));
        }
        made => made?,
    };
    if address.is_ipv6() && all {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Where a socket listens.
pub fn address(socket: &OwnedFd) -> Result<SocketAddr> {
    let name = rustix::net::getsockname(socket).context("the socket's address")?;
    SocketAddr::try_from(name).context("the socket's address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_take_both_versions() {
        let socket = listen("::", 0).unwrap();
        let port = address(&socket).unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            std::net::TcpStream::connect((host, port)).unwrap();
        }
    }

    #[test]
    fn a_port_that_is_free_soon_is_waited_for() {
        let mut taken = Some(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let at = taken.as_ref().unwrap().local_addr().unwrap();
        let mut tries = 0;
        let listening = retry(Instant::now(), || {
            tries += 1;
            if tries == 2 {
                taken = None;
            }
            listen_at(at)
        });
        assert_eq!(address(&listening.unwrap()).unwrap(), at);
        assert_eq!(tries, 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        for (host, port, word) in [
            ("127.0.0.1", port, "is in use"),
            ("192.0.2.1", 0, "no interface of this machine"),
            ("not a name", 0, "'not a name'"),
        ] {
            let e = format!("{:#}", listen(host, port).unwrap_err());
            assert!(e.contains(word.trim_matches('\'')), "{e}");
        }
        assert!(listen("[::1]", 0).is_ok(), "brackets are taken off");
    }
}
