//! Options about the control socket and metrics.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use zerowire_cli::WrongArguments;
use zerowire_vhost::serve::{ControlSocket, SocketAccess};

use super::api::{Api, Metrics};
use super::manage::Manage;
use super::serve::{ControlListener, Service};
use crate::{access, serving};

/// The port of metrics where none is given.
const METRICS_PORT: u16 = 9465;

/// How a server is managed and watched.
#[derive(clap::Args, Clone, Debug)]
pub struct ControlArgs {
    /// Unix socket for 'zerowire ctl', curl and other clients of its HTTP API: they add, change,
    /// remove and drain VMs and read statistics. With it a server may start without VMs.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// User who owns the control socket, and may manage: a name of /etc/passwd or a number. Root
    /// and the user of this process may in any case.
    #[arg(long, value_name = "USER", value_parser = access::owner, requires = "control")]
    control_owner: Option<u32>,
    /// Group whose users may manage: a name of /etc/group or a number.
    #[arg(long, value_name = "GROUP", value_parser = access::group, requires = "control")]
    control_group: Option<u32>,
    /// Permissions of the control socket, in octal. Default: 0600, and 0660 with --control-group.
    #[arg(long, value_name = "MODE", value_parser = access::mode, requires = "control")]
    control_mode: Option<u32>,
    /// Serve GET /metrics to Prometheus on this TCP address, to everybody who reaches it: HOST,
    /// PORT or HOST:PORT with a numeric host. Default: 127.0.0.1:9465.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1",
        value_parser = metrics_address)]
    metrics: Option<SocketAddr>,
    /// Let those who may manage begin captures ('zerowire ctl capture start'), into files of this
    /// folder.
    #[arg(long, value_name = "DIR", requires = "control")]
    pcap_dir: Option<PathBuf>,
}

impl ControlArgs {
    /// Whether VMs can come while the server runs.
    pub fn has_socket(&self) -> bool {
        self.control.is_some()
    }

    /// Where captures go that the control socket begins.
    pub fn pcap_dir(&self) -> Option<&Path> {
        self.pcap_dir.as_deref()
    }

    /// The control socket's path.
    pub fn path(&self) -> Option<&Path> {
        self.control.as_deref()
    }

    /// Makes the control socket. Clients wait until [`Self::start`].
    pub fn bind(&self) -> Result<Option<ControlSocket>> {
        let access =
            SocketAccess { owner: self.control_owner, group: self.control_group, mode: self.control_mode };
        let bound = self.path().map(|path| ControlSocket::bind(path, &access));
        bound.transpose().map_err(|e| serving::refused(&None, &e)).context("--control")
    }

    /// Answers clients of the control socket, and opens what else was asked for. It closes when the
    /// value is dropped.
    pub fn start<M: Manage>(&self, socket: Option<ControlSocket>, manage: &Arc<M>) -> Result<Vec<Service>> {
        let mut doors = Vec::new();
        if let Some((socket, path)) = socket.zip(self.path()) {
            let api = Arc::new(Api::new(manage.clone()));
            doors.push(Service::start("control", ControlListener::Control(socket), api)?);
            tracing::info!("control socket at {}", path.display());
        }
        if let Some(address) = self.metrics {
            let listening = || -> std::io::Result<TcpListener> {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            };
            let listener = listening().map_err(|e| {
                let hint = match e.raw_os_error() {
                    Some(libc::EAFNOSUPPORT) => "; a unit takes the drop-in metrics.conf for that",
                    _ => "",
                };
                anyhow!("--metrics {address}: can't listen there: {e}{hint}")
            })?;
            let metrics = Arc::new(Metrics::new(manage.clone()));
            // With port 0 the kernel has chosen one.
            let address = listener.local_addr().unwrap_or(address);
            doors.push(Service::start("metrics", ControlListener::Tcp(listener), metrics)?);
            tracing::info!("metrics at http://{address}/metrics");
        }
        Ok(doors)
    }

    /// Refuses what can't go together.
    pub fn check(&self, postcopy: bool) -> Result<()> {
        if postcopy && self.has_socket() {
            let text = "--postcopy with --control: a front end could stop and change VMs that are added; give such a VM a \
                        process of its own";
            bail!(WrongArguments(text.to_owned()));
        }
        Ok(())
    }
}

/// HOST, PORT or HOST:PORT.
fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    if let Ok(port) = text.parse() {
        return Ok((loopback, port).into());
    }
    let host = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let address = text.parse().or(host.map(|host| SocketAddr::from((host, METRICS_PORT))));
    address.map_err(|_| format!("'{text}': give a numeric HOST, a PORT or HOST:PORT, such as 127.0.0.1:9465"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_host_or_port() {
        for (text, want) in [
            ("127.0.0.1", "127.0.0.1:9465"),
            ("9100", "127.0.0.1:9100"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "[::1]:9465"),
            ("[::1]", "[::1]:9465"),
            ("[::]:9100", "[::]:9100"),
        ] {
            assert_eq!(metrics_address(text).expect(text).to_string(), want, "{text}");
        }
        for bad in ["", "localhost", "localhost:80", "1.2.3", "70000", ":80"] {
            assert!(metrics_address(bad).is_err(), "{bad}");
        }
    }
}
