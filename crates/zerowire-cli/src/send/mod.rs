//! `zerowire send`: a file or standard input to a peer, lent to the kernel where that pays.

mod datagrams;
mod pump;
mod report;
mod source;
mod stall;
mod stop;
mod target;

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use zerowire::send::{Close, SendBackend, SendMode, SendOptions, Sender};
use zerowire_cli::WrongArguments;

use self::datagrams::Datagrams;
use self::pump::Pump;
use self::report::SendSummary;
use self::source::Input;
use self::stall::Stall;
use self::stop::SendStop;
use self::target::SendTarget;
use crate::outcome::{self, JsonOutput, Outcome};
use crate::progress::TransferProgress;
use crate::spec;
use crate::table::process_cpu;

/// Payload handed over in one call, if nothing else was asked for.
const CHUNK_BYTES: usize = 256 << 10;
/// The same on AF_VSOCK. The kernel copies a call that is longer than the peer's credit
/// (virtio_transport_can_zcopy, net/vmw_vsock/virtio_transport_common.c), and many peers give 256
/// KiB or less.
const VSOCK_CHUNK_BYTES: usize = 64 << 10;
/// Longest payload handed over in one call.
const MAX_CHUNK_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum ModeArg {
    /// The kernel copies.
    Copy,
    /// Lend always; where a limit forbids it, fail and name it.
    Zerocopy,
    /// Measure, and take what costs less CPU.
    Auto,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    /// io_uring where memory can be registered (standard input), plain socket calls otherwise.
    Auto,
    /// send, sendmsg, sendmmsg, with MSG_ZEROCOPY.
    Socket,
    /// SEND_ZC and SENDMSG_ZC; an error where io_uring is not allowed.
    Uring,
}

/// Sends a file or standard input to a peer: any program that receives on a socket (ncat, socat,
/// iperf-like sinks).
///
/// Memory is lent to the kernel where that costs less CPU, and the ledger at the end says of every
/// byte whether it was copied and why. A regular file is mapped and lent page by page; it must not
/// be made shorter meanwhile. Anything else is read into 28 buffers that are registered with
/// io_uring where it is allowed. A receiver on this machine makes the kernel copy.
#[derive(Args)]
#[command(
    after_help = "Limits: --chunk at most 4 MiB; --datagram at most 65507 bytes; 16 MiB and 1024 payloads lent at a time. \
UDP has no flow control: what the receiver or the network can't take is lost, as with every UDP sender.\n\
Exit status: 0 all sent, 1 not all sent, 2 wrong arguments, 130 or 143 ended by SIGINT or SIGTERM, with the summary; a second signal, \
1 s or more after the first, ends it without one."
)]
pub struct SendArgs {
    /// The peer: HOST:PORT, [IPV6]:PORT, vsock:CID:PORT, or unix:PATH.
    #[arg(long, value_name = "PEER")]
    to: String,
    /// Datagrams instead of a stream (with HOST:PORT and unix:PATH).
    #[arg(long)]
    udp: bool,
    /// What to send; - is standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Whether memory is copied or lent.
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeArg,
    /// Which system calls send.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArg,
    /// Bytes of a stream in one call, 1 to 4194304. Default: 262144; 65536 to vsock:, where the
    /// kernel copies what is longer than the peer's credit.
    #[arg(long, value_name = "BYTES")]
    chunk: Option<usize>,
    /// Payload of a datagram with --udp, 1 to 65507. Default: 1400, or what the path takes in one
    /// packet if that is less. Several go in one call and the kernel or the NIC cuts them
    /// (UDP_SEGMENT), unless there is room for only one, or they are longer than the path takes in
    /// one packet: those go one by one, as fragments.
    #[arg(long, value_name = "BYTES")]
    datagram: Option<usize>,
    /// Give up when the peer takes nothing for this time, or doesn't answer a new connection for
    /// it; without it, when the kernel does. Input that is slow to come is waited for.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// No progress and no summary, only errors.
    #[arg(short, long)]
    quiet: bool,
    /// The result as JSON to a file, in place of the summary; - is standard output. Progress is on
    /// standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl SendArgs {
    fn options(&self) -> SendOptions {
        SendOptions::default()
            .mode(match self.mode {
                ModeArg::Copy => SendMode::Copy,
                ModeArg::Zerocopy => SendMode::ZeroCopy,
                ModeArg::Auto => SendMode::Auto,
            })
            .backend(match self.backend {
                BackendArg::Auto => SendBackend::Auto,
                BackendArg::Socket => SendBackend::Socket,
                BackendArg::Uring => SendBackend::Uring,
            })
    }

    /// The peer and the time to wait for it, once all arguments are known to be good.
    fn checked(&self) -> Result<(SendTarget, Option<Duration>)> {
        match (self.udp, self.chunk, self.datagram) {
            (true, Some(bytes), _) => {
                bail!(
                    "--chunk {bytes} with --udp: it is for streams; give --datagram BYTES, or leave --udp out"
                )
            }
            (false, _, Some(bytes)) => {
                bail!("--datagram {bytes} without --udp: give --udp, too, or --chunk BYTES for a stream")
            }
            (true, None, _) => datagrams::check(self.datagram)?,
            (false, ..) => _ = self.chunk()?,
        }
        let target: SendTarget = self.to.parse()?;
        if let (true, SendTarget::Vsock(cid, port)) = (self.udp, &target) {
            bail!("--udp with vsock:{cid}:{port}: AF_VSOCK has no datagrams on virtio; leave --udp out");
        }
        Ok((target, spec::timeout(self.timeout)?))
    }

    /// Bytes of a stream handed over in one call.
    fn chunk(&self) -> Result<usize> {
        let usual = if self.to.starts_with("vsock:") { VSOCK_CHUNK_BYTES } else { CHUNK_BYTES };
        let chunk = self.chunk.unwrap_or(usual);
        if !(1..=MAX_CHUNK_BYTES).contains(&chunk) {
            bail!("--chunk {chunk} is not between 1 and {MAX_CHUNK_BYTES} bytes");
        }
        Ok(chunk)
    }
}

/// Runs the command.
pub fn run(args: &SendArgs) -> Result<ExitCode> {
    let (target, timeout) = args.checked().map_err(WrongArguments::because)?;
    // Before any other thread is started.
    let stop = SendStop::start()?;
    let input = Input::open(&args.file)?;
    let json = JsonOutput::open(args.json.as_deref(), &[&args.file])?;
    let socket = target.connect(args.udp, timeout)?;
    stop::reset_at_close(&socket)?;
    let is_unix = matches!(target, SendTarget::Unix(_));
    let datagrams = args.udp.then(|| Datagrams::plan(args.datagram, &socket, is_unix)).transpose()?;
    let chunk = datagrams.as_ref().map_or_else(|| args.chunk(), |d| Ok(d.chunk()))?;
    let mut source = input.source(chunk)?;
    let stall = Stall::new(timeout);
    // It waits for several payloads at once, so this tick makes it look for a signal now and then.
    let options = args
        .options()
        .segment_bytes(datagrams.as_ref().and_then(Datagrams::segment).map(NonZeroU16::get))
        .timeout(Some(stall.tick()));
    let mut sender = Sender::with_areas(socket, options, source.areas())
        .with_context(|| format!("can't send to {target}"))?;
    // Late: a sender can't be made on a connection that a signal has ended.
    let mut watched = stop.watch(&sender)?;
    let mut progress = TransferProgress::new(source.total(), args.quiet);
    let cut = datagrams.as_ref().map_or_else(String::new, |d| format!("; {d}"));
    progress.say(&format!("to {target}: {}{cut}", sender.path()));

    let begin = Instant::now();
    let cpu = process_cpu();
    let mut pump = Pump { sender: &mut sender, watched: &mut watched, stall, datagrams, moved: 0 };
    let pumped = pump.run(&mut source, &mut progress);
    let (moved, datagrams) = (pump.moved, pump.datagrams);
    progress.finish();
    let took = begin.elapsed();
    let cpu_seconds = (process_cpu() - cpu).as_secs_f64();

    // While no memory is lent, a slow peer on a unix socket or AF_VSOCK may take the rest from the
    // kernel after the end. Over TCP it has taken everything, or gets a reset.
    let how =
        if pumped.is_ok() && watched.signal().is_none() { Close::Drain(stop::LINGER) } else { Close::Abort };
    let failure = pumped.and_then(|()| watched.end_of_data(timeout)).err();
    // Behind the end of the data, which a signal may cut.
    let signal = watched.signal();
    let outcome = match (&failure, signal) {
        (_, Some(_)) => Outcome::Interrupted,
        (Some(_), None) => Outcome::Failed,
        (None, None) => Outcome::Complete,
    };
    let report = SendSummary {
        to: target.to_string(),
        mode: args.mode,
        path: sender.path(),
        datagrams,
        outcome,
        error: failure.as_ref().filter(|_| signal.is_none()).map(|e| format!("{e:#}")),
        bytes: moved,
        seconds: took.as_secs_f64(),
        cpu_seconds,
        choices: sender.choices(),
        ledger: sender.counters().snapshot(),
        left: finish(sender, how),
        replied_bytes: watched.replied_bytes,
    };
    outcome::ended(failure, signal, report.write(&json, args.quiet))
}

/// What was not back at the end.
#[derive(Default, serde::Serialize)]
struct Left {
    payloads: usize,
    bytes: usize,
}

fn finish(sender: Sender, how: Close) -> Left {
    // An error is of the peer, which may go once it has everything: all memory was back before.
    let closed = sender.close(how).unwrap_or_else(|e| e.closed);
    Left { payloads: closed.aborted, bytes: closed.aborted_bytes }
}
