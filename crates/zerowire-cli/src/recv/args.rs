//! Arguments of `zerowire recv`, and what they mean.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use zerowire::area::Pages;
use zerowire::recv::{RecvBackend, RecvOptions};

use super::session::Told;
use crate::configure::{self, Setup};
use crate::spec;

/// Connections at a time where no number was given.
const MANY_CONNECTIONS: usize = 65_536;
/// The most megabytes of `-r`: 2⁶⁴ bytes and more can't be counted.
const MOST_MEGABYTES: u64 = u64::MAX / 1_000_000;

/// Which way receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// With -i and -q: queue. Else multishot, or plain where io_uring is refused.
    Auto,
    /// epoll and recvmsg: every kernel and container.
    Plain,
    /// io_uring multishot receive into provided buffers; an error where io_uring is refused.
    Multishot,
    /// io_uring zero-copy receive without a device: the kernel copies into the area (Linux 7.1,
    /// CAP_NET_ADMIN).
    Nodev,
    /// io_uring zero-copy receive: the NIC places payload in the area; needs -i and -q.
    Queue,
}

impl ModeArg {
    fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Plain => "plain",
            Self::Multishot => "multishot",
            Self::Nodev => "nodev",
            Self::Queue => "queue",
        }
    }
}

/// Receives TCP connections of any senders (ncat, socat, 'zerowire send', another machine's) into
/// an area of memory, and says at the end which bytes the NIC placed there, which the kernel
/// copied, and at which rate.
///
/// With -i and -q the NIC places payload by io_uring zero-copy receive; the queue must be free,
/// header split on, and the port's flows steered to it: 'zerowire doctor -i IF -q Q' goes through
/// that. Without a queue the kernel copies into the area.
#[derive(Args)]
#[command(
    after_help = "It ends when -r megabytes have come, or when --connections connections have ended, whichever is first. What \
came with the last of the megabytes is counted and written too, and senders that go on see a reset. Connections beyond --connections are not taken.\n\
\n\
Limits: --buffer 64 bytes to 1 GiB, a multiple of 64; --buffers 2 to 32768; at most a quarter of the \
buffers waits for --to on one connection. RLIMIT_NOFILE bounds the connections at a time; it is raised as far as it may be.\n\
Exit status: 0 complete, 1 something failed (a connection was reset, --timeout), 2 wrong arguments, 130, 143, 129 or 131 ended by \
SIGINT, SIGTERM, SIGHUP or SIGQUIT (the last two where they are not ignored), with the summary; a second signal, 1 s or more after the first, ends it without one, as soon as \
--configure is set back.\n\
\n\
Examples:\n  zerowire recv -p 9999 -r 3000                  3000 megabytes by the best way without a NIC's queue\n  \
zerowire recv -p 9999 -i eth1 -q 20 -r 3000    the same into queue 20 of eth1\n  \
zerowire recv -p 9999 --to - | tar x           one connection to standard output\n  \
zerowire recv -p 9999 --connections 4 --to f   four connections to f.1 to f.4"
)]
pub struct RecvArgs {
    /// TCP port to listen at; 0: any free one, which is printed.
    #[arg(short, long, value_name = "PORT")]
    pub port: u16,
    /// Network interface whose queue receives; with -q.
    #[arg(short, long, value_name = "IF", requires = "queue")]
    interface: Option<String>,
    /// Receive queue of the interface.
    #[arg(short, long, value_name = "QUEUE", requires = "interface")]
    queue: Option<u32>,
    /// Ends after this many megabytes (of 1000000 bytes), of all connections together.
    #[arg(short = 'r', long = "receive", value_name = "MEGABYTES")]
    megabytes: Option<u64>,
    /// Takes N connections, and ends when all have ended; 0: ends by -r, --timeout or a signal.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// Which way receives.
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeArg,
    /// Address or name to listen at; :: is all addresses, IPv6 and IPv4.
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    pub bind: String,
    /// Writes what comes to a file, straight from the area; - is standard output. Of more than one
    /// connection each gets a file of its own: FILE.1, FILE.2, in the order in which they were
    /// accepted.
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// Ends with an error when nothing has come for this time.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    #[command(flatten)]
    area: AreaArgs,
    /// Turns header split of the interface on, and RSS off the queue, and sets both back at the end
    /// (CAP_NET_ADMIN). The command that steers the port's flows to the queue is printed.
    #[arg(long, requires = "queue")]
    configure: bool,
    /// No progress and no summary, only errors, and what --configure changed.
    #[arg(long)]
    pub quiet: bool,
    /// The result as JSON to a file; - is standard output, in place of the summary.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The memory that is received into.
#[derive(Args, Debug)]
struct AreaArgs {
    /// Length of a buffer.
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    buffer: usize,
    /// Number of buffers.
    #[arg(long, value_name = "N", default_value_t = 256)]
    buffers: usize,
    /// The area lies in huge pages of 2 MiB.
    #[arg(long)]
    huge: bool,
    /// Length of the buffers of a NIC's queue: a power of two from a page on (Linux 7.0, some
    /// drivers; with --huge).
    #[arg(long, value_name = "BYTES", requires = "queue")]
    rx_buf_len: Option<u32>,
}

impl AreaArgs {
    fn options(&self) -> RecvOptions {
        let mut options = RecvOptions::default()
            .buffer_bytes(self.buffer)
            .buffers(self.buffers)
            .pages(if self.huge { Pages::Huge } else { Pages::Normal });
        options.zcrx.rx_buf_len = self.rx_buf_len;
        options
    }
}

/// What the arguments mean.
pub struct RecvPlan {
    /// The mode as a word: what was asked for.
    pub mode: &'static str,
    /// For the library.
    pub options: RecvOptions,
    /// When to end.
    pub told: Told,
}

impl RecvArgs {
    /// Checks what clap can't.
    pub fn plan(&self) -> Result<RecvPlan> {
        let bytes = match self.megabytes {
            None => None,
            Some(0) => bail!("-r 0: give 1 megabyte or more, or leave it out for no limit"),
            Some(n) if n > MOST_MEGABYTES => bail!("-r {n}: give at most {MOST_MEGABYTES} megabytes"),
            Some(n) => Some(n * 1_000_000),
        };
        let timeout = spec::timeout(self.timeout)?;
        if self.to_stdout() && self.connections != 1 {
            bail!(
                "--to - with --connections {}: standard output takes one connection; give --to FILE, which makes FILE.1, FILE.2",
                self.connections
            );
        }
        if self.to_stdout() && self.json.as_deref() == Some(Path::new("-")) {
            bail!("--to - and --json -: standard output takes one of them; give --json FILE");
        }
        let connections = Some(self.connections).filter(|n| *n > 0);
        if let (Some(to), Some(json)) = (&self.to, &self.json)
            && self.connections != 1
            && connection_number(json, to).is_some_and(|number| connections.is_none_or(|most| number <= most))
        {
            let json = json.display();
            bail!(
                "--json {json}: that is the file of a connection (--to {}); give another one",
                to.display()
            );
        }
        let (mode, backend) = self.backend()?;
        let options =
            self.area.options().backend(backend).max_connections(connections.unwrap_or(MANY_CONNECTIONS));
        Ok(RecvPlan { mode, options, told: Told { connections, bytes, timeout } })
    }

    fn backend(&self) -> Result<(&'static str, RecvBackend)> {
        let queue = self.interface.clone().zip(self.queue);
        let backend = match (self.mode, queue) {
            (ModeArg::Auto | ModeArg::Queue, Some((interface, queue))) => {
                return Ok(("queue", RecvBackend::Queue { interface, queue }));
            }
            (ModeArg::Queue, None) => bail!("--mode queue: name the queue with -i IF -q QUEUE"),
            (other, Some((interface, queue))) => {
                bail!(
                    "-i {interface} -q {queue} with --mode {}: a queue is for --mode queue; leave -i and -q out, or --mode",
                    other.word()
                )
            }
            (ModeArg::Auto, None) => RecvBackend::Auto,
            (ModeArg::Plain, None) => RecvBackend::Plain,
            (ModeArg::Multishot, None) => RecvBackend::Multishot,
            (ModeArg::Nodev, None) => RecvBackend::NoDevice,
        };
        Ok((self.mode.word(), backend))
    }

    /// Changes the interface's settings, if that was asked for.
    pub fn configure(&self, setup: &Setup) -> Result<()> {
        match (&self.interface, self.queue) {
            (Some(interface), Some(queue)) if self.configure => setup.apply(interface, queue, self.quiet),
            _ => Ok(()),
        }
    }

    /// With --configure: the commands that are still to be given.
    pub fn steering(&self, port: u16) -> Vec<String> {
        match (&self.interface, self.queue) {
            (Some(interface), Some(queue)) if self.configure => configure::steering(interface, queue, port),
            _ => Vec::new(),
        }
    }

    /// Whether received bytes go to standard output.
    pub fn to_stdout(&self) -> bool {
        self.to.as_deref() == Some(Path::new("-"))
    }
}

/// Of which connection `path` is the file where those of all begin with `to`.
fn connection_number(path: &Path, to: &Path) -> Option<usize> {
    let folder = |path: &Path| Path::new(".").join(path.parent()?).canonicalize().ok();
    let number = path.file_name()?.as_bytes().strip_prefix(to.file_name()?.as_bytes())?.strip_prefix(b".")?;
    let is_same_folder = folder(path).is_some() && folder(path) == folder(to);
    // No connection is 0, 01 or +1.
    let is_written_so = |n: &usize| *n > 0 && n.to_string().as_bytes() == number;
    str::from_utf8(number).ok()?.parse().ok().filter(is_written_so).filter(|_| is_same_folder)
}
