//! `zerowire vsock`.

mod args;
mod config;
mod manage;
mod metrics;
mod report;
mod sandbox;
mod start;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use zerowire_capture::LINKTYPE_VSOCK;
use zerowire_cli::{WrongArguments, logging};
use zerowire_vhost::serve::ChangeTurn;
use zerowire_vsock::{OwnSockets, VsockFleet, VsockServer};

use self::args::{LimitArgs, MapArgs, UdsArgs};
pub use self::sandbox::child as confined_child;
use self::sandbox::{VsockSandboxArgs, VsockSupervisor};
use crate::access::SocketArgs;
use crate::control::{ControlArgs, Manage};
use crate::file;
use crate::pcap::{self, PcapArgs};
use crate::reload::FileReload;
use crate::service::{self, HandedSockets};
use crate::serving;

/// Arguments of `zerowire vsock`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct VsockArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// The guest's address (CID), 3 to 4294967294; no two VMs of a process share one.
    #[arg(long, value_name = "N", conflicts_with_all = ["vm", "config"])]
    cid: Option<u64>,
    /// The host's end. Host programs connect to PATH (streams) or PATH.seqpacket (messages), write
    /// 'CONNECT PORT' and a newline, and read 'OK HOSTPORT'. Programs that map their receive
    /// buffers connect to PATH.map. A guest that connects to CID 2 port P arrives at the unix
    /// socket PATH_P, where a host program listens (SOCK_STREAM, or SOCK_SEQPACKET for messages).
    #[arg(long, visible_alias = "uds-path", value_name = "PATH", conflicts_with_all = ["vm", "config"])]
    uds: Option<PathBuf>,
    #[command(flatten)]
    uds_access: UdsArgs,
    /// Groups of the VM, with + between them. VMs of one process that share a group reach each
    /// other by CID. Default: the group 'default'.
    #[arg(long, value_name = "A+B", conflicts_with_all = ["vm", "config"])]
    groups: Option<String>,
    /// Name of the VM in logs and statistics. Default: vm0.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["vm", "config"])]
    name: Option<String>,
    /// One of several VMs: name=NAME,cid=N,socket=PATH,uds=PATH. Behind commas it takes groups=A+B,
    /// tx-limit=LIMIT, rx-limit=LIMIT, socket-owner=USER, socket-group=GROUP, socket-mode=MODE,
    /// uds-owner=USER, uds-group=GROUP and uds-mode=MODE. Repeat for more, up to 256. In a LIMIT
    /// '+' stands in place of commas.
    #[arg(long, value_name = "SPEC", conflicts_with = "config")]
    vm: Vec<String>,
    /// TOML file with the VMs: [[vm]] name = …, [vm.vsock] socket = …, cid = …, uds = …, groups =
    /// ["A", "B"], tx-limit = …, rx-limit = …, socket-owner = …, uds-owner = … and so on. VMs
    /// without [vm.vsock] are skipped. SIGHUP reads it again and changes what differs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    map: MapArgs,
    #[command(flatten)]
    pcap: PcapArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    sandbox: VsockSandboxArgs,
    /// Print statistics as one line of JSON, on SIGUSR1 and at the end; without it as a table.
    #[arg(long)]
    json: bool,
    /// Print what this back end can do, as QEMU's docs/interop/vhost-user.json describes, and exit.
    #[arg(long)]
    print_capabilities: bool,
}

const AFTER_HELP: &str = "\
Service managers: a socket handed over by LISTEN_FDS serves the VM of its name; a single one serves the VM of --name. \
NOTIFY_SOCKET is told READY, RELOADING, STATUS and STOPPING, and WATCHDOG while all control threads answer.

Signals: SIGUSR1 prints statistics, SIGHUP reads the file of --config again, SIGTERM and SIGINT end the program.

Exit status: 0 ended by SIGTERM or SIGINT, 1 can't serve the VMs, 2 wrong arguments or configuration.

Limits: 256 VMs a process; 65536 connections a VM; rings up to 32768 entries; 509 memory regions a VM; indirect tables up \
to 1024 descriptors. Each connection request beyond --request-rate is answered by a reset and counted, and the log says so once a minute at \
most. A 'CONNECT PORT' line has at most 32 bytes and comes within 10 s; the guest answers a host program's \
connect within 10 s; what a guest sent before it closed waits for a slow host program for 30 s at most. Messages of a host \
program have at most 1 MiB.

Memory: for slow sides a VM can make the program hold --max-connections times --buffer bytes, 2 GiB by default; on \
connections of messages 2.25 times as much, and 1 MiB each toward the guest. Give less of either for a VM that is not trusted. \
The windows of programs that map come on top, up to --map-max bytes each and --map-total in all.

QEMU:
  zerowire vsock --socket /run/vm.sock --cid 3 --uds /run/vm.vsock &
  qemu-system-x86_64 … \\
    -object memory-backend-memfd,id=mem,size=1G,share=on \\
    -numa node,memdev=mem \\
    -chardev socket,id=v0,path=/run/vm.sock \\
    -device vhost-user-vsock-pci,chardev=v0
  socat - UNIX-CONNECT:/run/vm.vsock           # then: CONNECT 5000
  socat UNIX-LISTEN:/run/vm.vsock_5000,fork -
    # in the guest: socat - VSOCK-CONNECT:2:5000";

/// Runs the command, whose children log at level `log`.
pub fn run(args: VsockArgs, log: &str) -> Result<ExitCode> {
    if args.print_capabilities {
        crate::outcome::print(&serde_json::json!({ "type": "vsock", "features": [] }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let handed = HandedSockets::from_environment().map_err(WrongArguments::because)?;
    let vms = config::vms(&args, file::text_at_start, &handed).map_err(WrongArguments::because)?;
    handed.check(vms.iter().map(|vm| &vm.endpoint)).map_err(WrongArguments::because)?;
    args.sandbox.check(&args).map_err(WrongArguments::because)?;
    let defaults = config::Defaults::new(&args).map_err(WrongArguments::because)?;
    let is_confined = args.sandbox.settle(&args, &vms);
    let mut reload = FileReload::new(&vms, handed);
    let lasting = args.control.has_socket() || vms.iter().all(|vm| service::lasts(&vm.endpoint));
    let may_come = args.control.has_socket() || args.config.is_some();
    let names: Vec<_> = vms.iter().map(|vm| vm.name.clone()).collect();
    let all = (!may_come).then(|| names.iter().map(String::as_str).collect());
    let captured = args.pcap.options(LINKTYPE_VSOCK, all)?;
    let reader = captured.as_ref().and_then(pcap::await_reader);
    let signals = serving::block_signals()?;
    let limit = serving::raise_descriptor_limit();
    // The text of these errors says all of their sources.
    let capture = pcap::start(captured.as_ref())?;
    drop(reader);
    // Before there is a guest that could reach it.
    let control = args.control.bind()?;
    let own = OwnSockets::default();
    let _entry = own.enter(&args.control.path().map(Path::to_owned).into_iter().collect::<Vec<_>>());
    let refused = |e| serving::refused(&args.config, &e);
    let server: Arc<dyn VsockFleet> = if is_confined {
        let (owner, level) = (args.sandbox.owner(), logging::effective_level(log));
        Arc::new(VsockSupervisor::start(vms, owner, &level, capture, own).map_err(refused)?)
    } else {
        let server = match vms.is_empty() {
            true => Ok(VsockServer::empty_captured(capture, own)),
            false => VsockServer::start_captured(vms, capture, own),
        };
        Arc::new(server.map_err(refused)?)
    };
    start::tell(&*server, &names, limit);
    let managed = Arc::new(manage::Managed::new(server.clone(), defaults, limit, args.control.pcap_dir()));
    let open = || args.control.start(control, &managed);
    let wording = |stats: &_| serving::wording(stats, args.json, report::table);
    let printer = args.pcap.printer();
    serving::serve(&signals, lasting, &server, open, printer, wording, || {
        read_again(&args, &mut reload, &*server, managed.turn(), limit);
    })
}

/// SIGHUP.
fn read_again(
    args: &VsockArgs,
    before: &mut FileReload,
    server: &dyn VsockFleet,
    turn: &ChangeTurn,
    limit: Option<u64>,
) {
    let Some(path) = &args.config else {
        tracing::info!("SIGHUP: there is nothing to read again");
        return;
    };
    let wanted = config::vms(args, file::text_again, &before.handed);
    match before.reload(path, turn, wanted, |before, wanted| server.reload(before, wanted), || server.vms()) {
        Ok(added) => start::tell(server, &added, limit),
        Err(e) => tracing::error!("SIGHUP: {e}; nothing has changed"),
    }
}

#[cfg(test)]
mod tests;
