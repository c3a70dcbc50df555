//! `zerowire net`.

mod config;
mod manage;
mod metrics;
mod reload;
mod report;
mod sandbox;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use rustix::thread::CapabilitySet;
use zerowire_capture::LINKTYPE_ETHERNET;
use zerowire_cli::WrongArguments;
use zerowire_net::config::MacAddress;
use zerowire_net::{Fleet, GATHER_MAX_BYTES, MAX_FRAME_BYTES, PathMode, Policy, RX_COPYBREAK_BYTES, Server};
use zerowire_vhost::limit::Limit;
use zerowire_vhost::memory::PinBudget;

pub use sandbox::child as confined_child;

use crate::access::SocketArgs;
use crate::control::{ControlArgs, Manage};
use crate::file;
use crate::pcap::{self, PcapArgs};
use crate::reload::FileReload;
use crate::rights;
use crate::service::{self, HandedSockets};
use crate::serving;
use crate::spec;
use sandbox::SandboxArgs;

/// Whether frames are copied in user space.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum PathArg {
    /// Scatter lists where they pay, copies where those pay.
    #[default]
    Auto,
    /// Copy every frame: the control of measurements.
    Copy,
}

/// Whether metadata requests need a session token.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum TokenArg {
    /// A request without a token is answered 401.
    #[default]
    Required,
    /// A request without a token is answered; one with a wrong token is not.
    Optional,
}

/// Arguments of `zerowire net`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct NetArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Where frames go, in this process's network namespace: tap:NAME, xdp:IF or packet:IF, with
    /// options; see 'Ports' below. Default: tap:zerowire0.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["vm", "config"])]
    port: Option<String>,
    /// Name of the VM in logs and statistics. Default: vm0.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["vm", "config"])]
    name: Option<String>,
    /// One of several VMs: name=NAME,socket=PATH,port=PORT with PORT as for --port. Behind commas
    /// it takes metadata=FILE, metadata-token=WHEN, mac=MAC, guard=CHECKS, tx-limit=LIMIT,
    /// rx-limit=LIMIT, socket-owner=USER, socket-group=GROUP and socket-mode=MODE. Repeat for more,
    /// up to 256. In a LIMIT '+' stands in place of commas.
    #[arg(long, value_name = "SPEC", conflicts_with = "config")]
    vm: Vec<String>,
    /// TOML file with the VMs: [[vm]] name = …, [vm.net] socket = …, port = …, metadata = …,
    /// metadata-token = …, mac = …, guard = …, tx-limit = …, rx-limit = …, socket-owner = …,
    /// socket-group = …, socket-mode = ….
    /// VMs without [vm.net] are skipped. SIGHUP reads it again and changes what differs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Offer post-copy migration (PAGEFAULT), of one VM on a tap or packet port with one queue
    /// pair. Its front end gets a userfaultfd of this process, with which it can stop this process
    /// and write into its memory: for front ends that are trusted as much as this process.
    #[arg(long)]
    postcopy: bool,
    #[command(flatten)]
    metadata: MetadataArgs,
    /// Bytes (256M, 4G, …) of guests' memory that xdp ports may pin in all. A VM on an xdp port
    /// needs all of its memory and 2.6 MB for each queue pair; its rings don't start where that
    /// exceeds what is left, and the log names the figure. Default: what RLIMIT_MEMLOCK allows,
    /// and without limit with CAP_IPC_LOCK.
    #[arg(long, value_name = "BYTES", value_parser = spec::bytes)]
    memlock: Option<u64>,
    #[command(flatten)]
    copies: CopyArgs,
    #[command(flatten)]
    pcap: PcapArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Print statistics as one line of JSON, on SIGUSR1 and at the end; without it as a table.
    #[arg(long)]
    json: bool,
    /// Print what this back end can do, as QEMU's docs/interop/vhost-user.json describes, and exit.
    #[arg(long)]
    print_capabilities: bool,
}

/// The device of a VM of the command line's own.
#[derive(Args, Debug)]
struct DeviceArgs {
    /// The device's MAC address, for front ends that ask the back end for the device's
    /// configuration (GET_CONFIG): they get the address, the MTU and the number of queue pairs. Not
    /// for QEMU and libvirt: they have an option of their own, and warn of a back end with this
    /// one.
    #[arg(long, value_name = "MAC", conflicts_with_all = ["vm", "config"])]
    mac: Option<MacAddress>,
    /// What the guest may send, as CHECK+CHECK+…: mac, mac=MAC, vlan=off, vlan=NUMBER,
    /// ip=ADDRESS+ADDRESS…, arp, nd, and storm=RATE toward the guest; see 'Guard' below.
    #[arg(long, value_name = "CHECKS", conflicts_with_all = ["vm", "config"])]
    guard: Option<String>,
    /// What the guest may send in a second: BYTES/s, BITSbit/s, ops=FRAMES/s, or both, such as
    /// 100M/s,ops=10k/s; K, M, G and T are powers of 1000. burst=BYTES is the size of the token
    /// bucket (default: what comes in 100 ms), once=BYTES a burst beside it at the start;
    /// ops-burst=FRAMES and ops-once=FRAMES are the same for frames. What is beyond the limit waits
    /// in the guest's ring; nothing is dropped.
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["vm", "config"])]
    tx_limit: Option<Limit>,
    /// What the guest may receive in a second, in the form of --tx-limit. What is beyond the limit
    /// waits in the port's queue; the kernel drops what that has no room for.
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["vm", "config"])]
    rx_limit: Option<Limit>,
}

/// The metadata of VMs that name none of their own.
#[derive(Args, Debug)]
struct MetadataArgs {
    /// JSON file (up to 1 MiB) to serve at http://169.254.169.254/ and http://[fd00:ec2::254]/
    /// inside the guest; SIGHUP reads it again. It holds for VMs that name none.
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Whether metadata requests need a session token. It holds for VMs that say nothing of it.
    #[arg(long, value_name = "WHEN", default_value = "required")]
    metadata_token: TokenArg,
}

/// Which frames are copied.
#[derive(Args, Debug)]
struct CopyArgs {
    /// Whether frames are copied in user space.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    path: PathArg,
    /// Frames up to this many bytes are gathered into one buffer; 0 scatters all but very short
    /// pieces. The default was measured, see measurements/net.md.
    #[arg(long, value_name = "BYTES", default_value_t = GATHER_MAX_BYTES)]
    gather_max: usize,
    /// Received frames up to this many bytes, virtio-net header included, are copied where nothing
    /// but such frames comes; 0 reads all of them straight into the guest's buffers. Taps, and
    /// packet ports that receive from the socket. The default was chosen by 'zerowire-bench net
    /// --direction rx --with "--rx-copybreak 0"'.
    #[arg(long, value_name = "BYTES", default_value_t = RX_COPYBREAK_BYTES)]
    rx_copybreak: usize,
}

const AFTER_HELP: &str = "\
Ports:
  tap:NAME[,queues=N]
    A tap. One that is not there is made, set up, and removed at the end.
  xdp:IF[,queue=N][,queues=N][,mode=zerocopy|copy|auto][,match=mac:…|all]
    [,offloads=on|off][,promisc=on|off][,pin=all|partial|off]
    [,link=follow|ignore]
    Queues of an interface by AF_XDP, with the guest's memory as the
    interface's, which takes frames for any address while the guest runs
    (promisc=off: only for its own). The memory is registered, which pins it
    (counted against 'ulimit -l' without CAP_IPC_LOCK), so the VM must have no
    balloon, no free-page reporting and no virtio-mem: what it gave away and
    uses again is sent with its old content until that is noticed. pin=partial
    registers the VM's share of --memlock, that divided by the number of VMs;
    frames in the rest are copied once more. pin=off registers nothing: all
    frames are copied once more, and a balloon harms none.
  packet:IF[,rings=on|off|auto][,receive=ring|socket|auto]
    [,link=follow|ignore]
    Any Ethernet interface by packet sockets, with checksum and segmentation
    offloads (Linux 6.3, CAP_NET_RAW). One queue pair. Rings take 17 MiB of the
    kernel's memory to send by, and 2 MiB to receive by: 1024 frames of up to
    1970 bytes.
  queues=N: queue pairs of the device, 1 to 128. The guest uses as many of them
  as its front end gives it.
  link=follow: while the interface is down or gone the front end is disconnected
  and refused, so that the guest's link is down. It must connect again by itself
  (QEMU: reconnect=1), and the socket must be a path.

Guard: without it the guest may send any frame. Each check that is named refuses
frames, which are dropped and counted.
  mac, mac=MAC
    The source is the VM's address (that of mac=), or this one.
  vlan=off, vlan=NUMBER
    No VLAN tag, or one 802.1Q tag with this number.
  ip=ADDRESS[/BITS]+ADDRESS[/BITS]…
    IP packets come from these addresses; DHCP and the search for duplicate
    addresses work. With an IPv6 address also from the link-local address that
    follows from the MAC address. Other link-local ones must be named.
  arp
    The sender of ARP packets is the VM, by MAC address and by ip=.
  nd
    Neighbour discovery announces the VM alone, by MAC address and by ip=, and
    no router.
  storm=RATE
    Toward the guest: frames a second to groups (broadcast, multicast), a queue
    pair.
  For a guest with one address: --guard mac=52:54:00:00:00:01+ip=10.0.0.2+arp

Service managers: a socket handed over by LISTEN_FDS serves the VM of its name; a single one serves the VM of --name. \
NOTIFY_SOCKET is told READY, RELOADING, STATUS and STOPPING, and WATCHDOG while all control threads answer.

Signals: SIGUSR1 prints statistics, SIGHUP reads metadata files and the file of --config again, SIGTERM and SIGINT end \
the program.

Exit status: 0 ended by SIGTERM or SIGINT, 1 can't serve the VMs, 2 wrong arguments or configuration.

Limits: 256 VMs a process; 128 queue pairs a device; rings up to 32768 entries; 509 memory regions a VM; frames up to \
65557 bytes; scatter lists up to 1023 segments (longer ones are gathered); indirect tables up to 1024 descriptors.

QEMU:
  zerowire net --socket /run/vm.sock --port tap:tap0 &
  qemu-system-x86_64 … \\
    -object memory-backend-memfd,id=mem,size=1G,share=on \\
    -numa node,memdev=mem \\
    -chardev socket,id=c0,path=/run/vm.sock,reconnect=1 \\
    -netdev vhost-user,id=n0,chardev=c0 \\
    -device virtio-net-pci,netdev=n0";

impl NetArgs {
    /// The capabilities that these VMs take, and those that may come later.
    pub fn rights(&self) -> CapabilitySet {
        let may_come = self.control.has_socket() || self.config.is_some();
        let are_made = config::ports(self).all(|port| port.is_ok_and(|port| !port.takes_interface()));
        let mut kept = rights::OF_ANY_VM;
        kept.set(rights::OF_INTERFACES, may_come || !are_made);
        kept.set(rights::OF_POSTCOPY, self.postcopy);
        kept
    }
}

/// Runs the command, whose children log at level `log`.
pub fn run(args: NetArgs, log: &str) -> Result<ExitCode> {
    if args.print_capabilities {
        crate::outcome::print(&serde_json::json!({ "type": "net", "features": [] }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let handed = HandedSockets::from_environment().map_err(WrongArguments::because)?;
    let vms = config::vms(&args, file::text_at_start, &handed).map_err(WrongArguments::because)?;
    handed.check(vms.iter().map(|vm| &vm.endpoint)).map_err(WrongArguments::because)?;
    if let Some(bytes) = args.memlock {
        PinBudget::of_process().limit(bytes);
    }
    let defaults = config::Defaults::new(&args).map_err(WrongArguments::because)?;
    let is_confined = args.sandbox.settle(&args, &vms);
    let mut reload = FileReload::new(&vms, handed);
    let lasting = args.control.has_socket() || vms.iter().all(|vm| service::lasts(&vm.endpoint));
    let may_come = args.control.has_socket() || args.config.is_some();
    let names = vms.iter().map(|vm| vm.name.as_str()).collect();
    let captured = args.pcap.options(LINKTYPE_ETHERNET, (!may_come).then_some(names))?;
    let reader = captured.as_ref().and_then(pcap::await_reader);
    let signals = serving::block_signals()?;
    serving::raise_descriptor_limit();
    // The text of these errors says all of their sources.
    let capture = pcap::start(captured.as_ref())?;
    drop(reader);
    let refused = |e| serving::refused(&args.config, &e);
    let server: Arc<dyn Fleet> = if is_confined {
        Arc::new(args.sandbox.start(log, vms, capture).map_err(refused)?)
    } else {
        let server = match vms.is_empty() {
            true => Ok(Server::empty_captured(capture)),
            false => Server::start_captured(vms, capture),
        };
        Arc::new(server.map_err(refused)?)
    };
    let managed = Arc::new(manage::Managed::new(server.clone(), defaults, args.control.pcap_dir()));
    let open = || args.control.start(args.control.bind()?, &managed);
    let wording = |stats: &_| serving::wording(stats, args.json, report::table);
    let printer = args.pcap.printer();
    serving::serve(&signals, lasting, &server, open, printer, wording, || {
        reload::reload(&mut reload, &*server, managed.turn(), &args);
    })
}

fn policy(args: &NetArgs) -> Result<Policy> {
    let copies = &args.copies;
    for (option, bytes) in [("--gather-max", copies.gather_max), ("--rx-copybreak", copies.rx_copybreak)] {
        if bytes > MAX_FRAME_BYTES {
            bail!("{option} {bytes}: at most {MAX_FRAME_BYTES}, the longest frame");
        }
    }
    let mode = match copies.path {
        PathArg::Auto => PathMode::Auto,
        PathArg::Copy => PathMode::Copy,
    };
    Ok(Policy::default()
        .mode(mode)
        .gather_max_bytes(copies.gather_max)
        .rx_copybreak_bytes(copies.rx_copybreak))
}
