//! The command line of `zerowire replay`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::policy::{Oversized, Policy, Short, TruncatedPolicy};
use super::port::PortChoice;
use super::timing::{Backwards, ReplayPace};
use crate::spec;

/// Arguments of `zerowire replay`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    /// The capture: pcap or pcapng, plain or in gzip; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Interface to send on, which must be up and of the Ethernet kind.
    #[arg(short, long, visible_alias = "intf1", value_name = "IF")]
    pub interface: String,
    #[command(flatten)]
    pub end: EndArgs,
    #[command(flatten)]
    pub pace: PaceArgs,
    #[command(flatten)]
    pub port: PortArgs,
    #[command(flatten)]
    pub packets: PacketArgs,
    /// Packets whose time is before that of their predecessor: refuse the capture, or send them
    /// right after it. Matters for the recorded speed and --speed only.
    #[arg(long, value_enum, default_value = "fail")]
    pub backwards: Backwards,
    /// Shorten longer recorded pauses to this time. For the recorded speed and --speed only.
    #[arg(long, value_name = "SECONDS", value_parser = positive, conflicts_with_all = ["pps", "mbps", "topspeed"])]
    pub max_gap: Option<f64>,
    /// Send what is whole of a capture that ends inside a packet.
    #[arg(long)]
    pub ignore_truncated: bool,
    /// Memory for the capture: K, M and G stand for powers of 1024. A capture that needs more is
    /// read while it is sent.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = size)]
    pub max_memory: usize,
    /// Taken for tcpreplay's sake: a capture that fits is always loaded before it is sent.
    #[arg(short = 'K', long, visible_alias = "preload-pcap")]
    pub preload: bool,
    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the summary as JSON to FILE, or in place of the text to standard output (-).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// When it ends.
#[derive(Args, Debug)]
pub struct EndArgs {
    /// Passes through the capture; 0 goes on until a signal, --limit or --duration. A pass begins
    /// right after the last frame of the one before.
    #[arg(short = 'l', long = "loop", value_name = "N", default_value_t = 1)]
    pub passes: u64,
    /// Frames to send in all.
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Seconds to send for.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub duration: Option<f64>,
}

/// How fast.
#[derive(Args, Debug)]
pub struct PaceArgs {
    /// Send X times as fast as recorded.
    #[arg(short = 'x', long, visible_alias = "multiplier", value_name = "X", value_parser = positive, group = "pace")]
    speed: Option<f64>,
    /// Send N frames a second.
    #[arg(short, long, value_name = "N", value_parser = positive, group = "pace")]
    pps: Option<f64>,
    /// Send X times 10⁶ bits a second, counted from the Ethernet header to the end of the payload.
    #[arg(short = 'M', long, value_name = "X", value_parser = positive, group = "pace")]
    mbps: Option<f64>,
    /// Send as fast as the port takes frames.
    #[arg(short, long, group = "pace")]
    topspeed: bool,
}

/// Which port sends.
#[derive(Args, Debug)]
pub struct PortArgs {
    /// How frames go out: packet is a ring shared with the kernel (PACKET_TX_RING), send a packet
    /// socket whose frames the kernel copies, xdp is AF_XDP; auto takes the ring, and the socket
    /// where rings are refused.
    #[arg(long, value_enum, default_value = "auto")]
    pub port: PortChoice,
    /// Queue of the interface, for --port xdp: 0 unless given.
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Go straight to the driver, past the interface's queue and its traffic control; packet and
    /// send only.
    #[arg(long)]
    pub bypass_queue: bool,
}

/// What is done with packets that can't go out as they are.
#[derive(Args, Debug)]
pub struct PacketArgs {
    /// Packets longer than the interface takes (MTU and 14 bytes, with a VLAN tag 4 more): refuse
    /// the capture; leave them out; let TCP be cut into segments by the kernel or the interface,
    /// and refuse others (gso) or leave others out (gso-skip).
    #[arg(long, value_enum, default_value = "fail")]
    pub oversized: Oversized,
    /// Bytes of payload of each segment; by default what the MTU leaves. Needs --oversized gso or
    /// gso-skip.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(8..))]
    mss: Option<u16>,
    /// Packets that were captured in part (snap length): refuse the capture, leave them out, or
    /// send the part.
    #[arg(long, value_enum, default_value = "fail", conflicts_with = "pad")]
    truncated: TruncatedPolicy,
    /// Fill up packets that were captured in part to their original length, with zeroes.
    #[arg(long)]
    pad: bool,
    /// Packets of less than the 14 bytes of an Ethernet header, empty ones among them: refuse the
    /// capture, or leave them out.
    #[arg(long, value_enum, default_value = "fail")]
    short: Short,
}

const AFTER_HELP: &str = "\
Frames go out byte for byte as captured; only segmented ones get their checksum and lengths prepared.
Exit status: 0 all sent that was asked for, 1 an error, which names the packet (counted from 1), 2 wrong arguments, 130 or 143 \
ended by SIGINT or SIGTERM, with the summary; a second signal, 1 s or more after the first, ends it without one.

Limits: packets up to 262144 bytes captured, pcapng blocks of packets up to 1 MiB, 65536 interfaces a pcapng section. \
Frames go up to the MTU and 14 bytes (4 more with a VLAN tag), segmented ones up to 65550. A capture lies in the port's \
own memory (is resident) when it fits: into a ring of 1 GiB and 524288 frames, or into --max-memory with AF_XDP. What is \
loaded takes up to twice --max-memory while it is moved there. A capture that doesn't fit --max-memory is read once to \
check it and once more in each pass; over a pipe it is sent while it is read, once only.

Pacing: each frame has a time counted from the first one, so that errors don't add up; frames that are late go at once. \
Gaps over 100 µs are slept through up to 100 µs before their end; the rest, and shorter gaps, are spent looking at the \
clock, which takes a CPU. Frames that are due go together, up to 256 in a batch. Where no frame comes back for 30 s, the \
queue is stuck, which is an error.

Needs CAP_NET_RAW.

Examples:
  zerowire replay -i eth1 office.pcap
  zerowire replay -i eth1 -x 10 --max-gap 1 office.pcapng.gz
  zerowire replay -i eth1 -t --loop 0 --duration 60 --json result.json office.pcap
  zerowire replay -i eth1 --oversized gso --mss 1400 captured-with-tso.pcap
  tcpdump -U -i eth0 -w - | zerowire replay -i eth1 --max-memory 1K -   # sent while it is read";

impl PaceArgs {
    /// How fast.
    pub fn pace(&self) -> ReplayPace {
        match (self.speed, self.pps, self.mbps, self.topspeed) {
            (Some(speed), ..) => ReplayPace::Recorded { speed },
            (_, Some(n), ..) => ReplayPace::Pps(n),
            (_, _, Some(n), _) => ReplayPace::Mbps(n),
            (.., true) => ReplayPace::Top,
            _ => ReplayPace::Recorded { speed: 1.0 },
        }
    }
}

impl PortArgs {
    /// The queue of the interface.
    pub fn queue(&self) -> Result<u32> {
        if self.queue.is_some() && self.port != PortChoice::Xdp {
            bail!("--queue is for AF_XDP: give --port xdp, too");
        }
        Ok(self.queue.unwrap_or(0))
    }
}

impl PacketArgs {
    /// What is done with packets, on an interface of this MTU.
    pub fn policy(&self, mtu: usize) -> Result<Policy> {
        if self.mss.is_some() && !self.oversized.offload() {
            bail!("--mss is for segments: give --oversized gso or gso-skip, too");
        }
        let cut = if self.pad { TruncatedPolicy::Pad } else { self.truncated };
        Ok(Policy { mtu, short: self.short, cut, oversized: self.oversized, mss: self.mss })
    }
}

/// A positive number of seconds, or a rate.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && n > 0.0 && n <= 1e15 => Ok(n),
        _ => Err("give a number above 0, up to 10^15".to_owned()),
    }
}

/// A number of bytes above 0.
fn size(text: &str) -> Result<usize, String> {
    let bytes = spec::bytes(text).ok().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    bytes.ok_or_else(|| "give a number of bytes above 0, such as 268435456, 256M or 1G".to_owned())
}

/// Seconds as a duration.
pub fn seconds(n: f64) -> Duration {
    Duration::try_from_secs_f64(n).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
