//! Options of a vsock device: who may connect, bounds, mapped receive.

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use zerowire_vhost::limit::{Limit, Limits};
use zerowire_vhost::serve::SocketAccess;
use zerowire_vsock::VsockLimits;
use zerowire_vsock::mapped::{MapListen, MapPolicy};

use crate::access;

/// Options about the host end's sockets.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct UdsArgs {
    /// User who owns the host end's sockets (PATH, PATH.seqpacket, PATH.map), and may connect: a
    /// name of /etc/passwd or a number. Default: the user of this process.
    #[arg(long, value_name = "USER", value_parser = access::owner)]
    uds_owner: Option<u32>,
    /// Group whose programs may connect to the host end: a name of /etc/group or a number.
    #[arg(long, value_name = "GROUP", value_parser = access::group)]
    uds_group: Option<u32>,
    /// Permissions of the host end's sockets, in octal; to connect takes the right to write.
    /// Default: 0600, and 0660 with --uds-group.
    #[arg(long, value_name = "MODE", value_parser = access::mode)]
    uds_mode: Option<u32>,
}

impl From<UdsArgs> for SocketAccess {
    fn from(args: UdsArgs) -> Self {
        Self { owner: args.uds_owner, group: args.uds_group, mode: args.uds_mode }
    }
}

/// Bounds of a device.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LimitArgs {
    /// Credit a connection: bytes that a guest may send before the other side has taken them, and
    /// the most that is held for a slow one; 4096 to 16777216. With less than 196608 a host
    /// program's socket keeps 192 KiB unread all the same. See 'Memory' below.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10,
        value_parser = clap::value_parser!(u32).range(4096..=16 << 20))]
    buffer: u32,
    /// Connections of a VM at once, 1 to 65536; further ones are reset. Each one to a host program
    /// takes a descriptor, and each one memory: see below.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_connections: u32,
    /// Of these, the ones that one other guest of the process may have with the VM's, 0 to
    /// --max-connections; further ones are reset. A quarter of them, and 2 at least, if not given.
    #[arg(long, value_name = "N")]
    peer_connections: Option<u32>,
    /// Of these, the ones that all other guests together may have, 0 to --max-connections; the rest
    /// are for host programs and for the guest's own with them. Seven eighths if not given.
    #[arg(long, value_name = "N")]
    sibling_connections: Option<u32>,
    /// Connection requests of a VM's guest to the host a second, and at once, up to 1000000;
    /// further ones are reset without a look, so that a guest that asks all the time leaves its own
    /// connections their rate. 0: no bound.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    request_rate: u32,
    /// What the guest may send in a second: BYTES/s, BITSbit/s, ops=PACKETS/s, or both, such as
    /// 100M/s,ops=10k/s; K, M, G and T are powers of 1000. burst=BYTES is the size of the token
    /// bucket (default: what comes in 100 ms), once=BYTES a burst beside it at the start;
    /// ops-burst=PACKETS and ops-once=PACKETS are the same for packets. What is beyond the limit
    /// waits in the guest's ring; nothing is dropped.
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["vm", "config"])]
    tx_limit: Option<Limit>,
    /// What the guest may receive from host programs in a second, in the form of --tx-limit. What
    /// is beyond the limit waits in the programs' sockets.
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["vm", "config"])]
    rx_limit: Option<Limit>,
}

impl LimitArgs {
    /// What the VM of the command line may send and receive in a second.
    pub(super) fn rates(&self) -> Limits {
        Limits { transmit: self.tx_limit, receive: self.rx_limit }
    }
}

impl From<LimitArgs> for VsockLimits {
    fn from(args: LimitArgs) -> Self {
        Self::default()
            .buffer_bytes(args.buffer)
            .max_connections(args.max_connections as usize)
            .peer_connections(args.peer_connections.map(|n| n as usize))
            .sibling_connections(args.sibling_connections.map(|n| n as usize))
            .request_rate(args.request_rate)
    }
}

/// Who may map receive buffers, and how much.
#[derive(Args, Clone, Debug)]
pub(super) struct MapArgs {
    /// User, beside root and the one that runs this, whose programs may connect to the guest with
    /// mapped receive buffers, at PATH.map. They need the right to write that socket as well
    /// (--uds-group GROUP); repeat for more.
    #[arg(long, value_name = "UID")]
    map_allow: Vec<u32>,
    /// User whose programs may take the guest's connections to ports of the host, at PATH.map as
    /// well: those to the ports named, as in 1000:5000-5009+7000, or to all. A program that listens
    /// at PATH_P comes first. Repeat for more.
    #[arg(long, value_name = "UID[:PORTS]")]
    map_listen: Vec<String>,
    /// Bytes that a mapped connection may have at most, windows and their headers; 65536 to
    /// 4294967296.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20,
        value_parser = clap::value_parser!(u64).range(65536..=4 << 30))]
    map_max: u64,
    /// Mapped connections of a VM at once, 0 to --max-connections; further ones are refused. Each
    /// takes two mappings and three descriptors of this process. If not given, all VMs together
    /// get half of each: a quarter of vm.max_map_count or a sixth of the open files, whichever is
    /// less, divided by the number of VMs, and 8 at least.
    #[arg(long, value_name = "N")]
    map_connections: Option<u32>,
    /// Bytes that all mapped connections of a VM may have together, windows and their headers;
    /// 65536 to 1099511627776.
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 30,
        value_parser = clap::value_parser!(u64).range(65536..=1 << 40))]
    map_total: u64,
    /// Let programs that map receive buffers read the guest's whole memory, so that payload needs
    /// no copy at all. They can read whatever else the guest keeps there, keys included, and one
    /// that means harm can open that memory anew and write to it: only for programs that are
    /// trusted as the VMM is.
    #[arg(long)]
    share_guest_memory: bool,
    /// With --share-guest-memory: milliseconds for which a program may hold what lies in the
    /// guest's memory before further payload is copied for it, until it has given everything back;
    /// 1 to 60000.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    map_hold: u64,
}

impl MapArgs {
    /// What the options say.
    pub(super) fn policy(&self) -> Result<MapPolicy> {
        let listen = self.map_listen.iter().map(|text| parse_listen(text)).collect::<Result<_>>()?;
        Ok(MapPolicy::default()
            .own_user(Some(rustix::process::geteuid().as_raw()))
            .allow(self.map_allow.clone())
            .listen(listen)
            .max_bytes(self.map_max)
            .max_connections(self.map_connections.map(|n| n as usize))
            .max_total_bytes(self.map_total)
            .share_guest_memory(self.share_guest_memory)
            .hold(Duration::from_millis(self.map_hold)))
    }
}

/// Parses UID[:A-B+C].
fn parse_listen(text: &str) -> Result<MapListen> {
    let bad = || {
        anyhow!(
            "--map-listen {text}: give the number of a user, and ports if not all: 1000, 1000:5000 or 1000:5000-5009+7000"
        )
    };
    let (user, ports) = match text.split_once(':') {
        Some((user, ports)) => (user, Some(ports)),
        None => (text, None),
    };
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(first..=last)
    };
    let ports = ports.map_or(Some(Vec::new()), |p| p.split('+').map(range).collect());
    Ok(MapListen { user: user.parse().map_err(|_| bad())?, ports: ports.ok_or_else(bad)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_who_may_listen_and_their_ports() {
        let all = parse_listen("1000").unwrap();
        assert_eq!((all.user, all.ports.len()), (1000, 0));
        let some = parse_listen("1000:5000-5009+7000").unwrap();
        assert_eq!((some.user, some.ports), (1000, vec![5000..=5009, 7000..=7000]));
        for bad in ["", "root", "1000:", "1000:5-4", "1000:4294967296", "1000:5,6", "1000:5+", "-1"] {
            let e = parse_listen(bad).unwrap_err().to_string();
            assert!(e.contains(&format!("--map-listen {bad}:")) && e.contains("1000:5000-5009+7000"), "{e}");
        }
    }
}
