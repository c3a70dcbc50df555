//! What a caller can choose: the arguments of `zerowire-bench tcp-rx`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::way::WayName;
use crate::experiment::Files;
use crate::words::{defaults, verify_rounds, wrong};

/// Numbers of connections of the table.
const CONNECTIONS: [usize; 3] = [1, 16, 256];
/// select() knows descriptors up to 1023.
pub const MOST_CONNECTIONS: usize = 480;
/// The longest read.
pub const MOST_READ_BYTES: usize = 16 << 20;

/// Where the bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Client {
    /// A thread of this process, over the loopback interface of a namespace of its own.
    Own,
    /// iperf3 clients that send TCP here, one test after the other.
    External,
}

/// Options of [`super::run_tcp_rx`].
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "\
Ways: recv (one connection only: the floor), select (select and read, what iperf does), epoll (epoll and read), uring-read \
(io_uring, a READ a connection); of the library: plain, multishot, nodev (the zero-copy interface \
in copy mode), queue (placed by the NIC). A way that this kernel doesn't have is named with the reason.\n\
\n\
CPU time is that of the receiving thread; memory traffic is measured where the machine has hardware counters. Ways are \
interleaved round by round, every byte is accounted for. With its own sender it needs root, or 'unshare -Urn zerowire-bench \
tcp-rx', and makes a network namespace of its own. With --client external it listens at -p, and each test of iperf3 is one run of one \
way: it says how many are needed. Bytes reach a NIC's queue only so. Limits: 480 connections, 128 with iperf3; TCP towards this \
side only (no -u, -R, --bidir).\n\
\n\
Examples:\n  zerowire-bench tcp-rx --quick\n  zerowire-bench tcp-rx --connections 256 --ways epoll,multishot --touch\n  \
zerowire-bench tcp-rx --client external -p 5201 -i eth1 -q 20")]
pub struct TcpRxOptions {
    /// Fewer rounds, an eighth of the bytes.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each case [default: 9; with --quick or --client external 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Megabytes (of 1000000 bytes) of a run, of all connections together [default: 512, with
    /// --quick 64].
    #[arg(long, value_name = "N", conflicts_with = "port")]
    pub megabytes: Option<u64>,
    /// Numbers of connections, 1 to 480 each.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = CONNECTIONS, conflicts_with = "port")]
    pub connections: Vec<usize>,
    /// Which ways [default: all, queue only with -i and -q].
    #[arg(long, value_delimiter = ',', hide_possible_values = true, value_name = "WAY,…")]
    pub ways: Vec<WayName>,
    /// Bytes of a read() or recv() of the ways without the library (iperf3 takes 131072).
    #[arg(long = "read", value_name = "BYTES", default_value_t = 65_536)]
    pub read_bytes: usize,
    /// Look at every byte, as a program that uses the data does.
    #[arg(long)]
    pub touch: bool,
    /// Network interface of the way queue; with -q.
    #[arg(short, long, value_name = "IF", requires = "queue")]
    pub interface: Option<String>,
    /// Its receive queue.
    #[arg(short, long, value_name = "QUEUE", requires = "interface")]
    pub queue: Option<u32>,
    /// Where the bytes come from.
    #[arg(long, value_enum, default_value = "own")]
    pub client: Client,
    /// With --client external: TCP port to listen at [default: 5201].
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,
    /// With --client external: address to listen at.
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    pub bind: String,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

impl Default for TcpRxOptions {
    fn default() -> Self {
        defaults()
    }
}

impl TcpRxOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        let few = self.quick || self.client != Client::Own;
        self.rounds.unwrap_or(if few { 3 } else { 9 })
    }

    /// Bytes of a run.
    pub fn bytes(&self) -> u64 {
        self.megabytes.unwrap_or(if self.quick { 64 } else { 512 }).saturating_mul(1_000_000)
    }

    /// Interface and queue of [`WayName::Queue`].
    pub(super) fn place(&self) -> Option<(String, u32)> {
        self.interface.clone().zip(self.queue)
    }

    /// Which ways are measured, in the order of the table.
    pub fn ways(&self) -> Vec<WayName> {
        let wanted = |way: &WayName| match self.ways.is_empty() {
            true => *way != WayName::Queue || self.queue.is_some(),
            false => self.ways.contains(way),
        };
        WayName::value_variants().iter().copied().filter(wanted).collect()
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        verify_rounds(self.rounds())?;
        if let Some(n) = self.connections.iter().find(|n| !(1..=MOST_CONNECTIONS).contains(*n)) {
            wrong!(
                "{n} connections: choose 1 to {MOST_CONNECTIONS} (select() takes no descriptor above 1023)"
            );
        }
        let is_served = |n: &&usize| self.ways().iter().any(|way| way.serves(**n));
        if self.client == Client::Own
            && let Some(n) = self.connections.iter().find(|n| !is_served(n))
        {
            wrong!("{n} connections with --ways recv: it serves one; add another way, or --connections 1");
        }
        if !(1..=MOST_READ_BYTES).contains(&self.read_bytes) {
            wrong!("reads of {} bytes: choose 1 to {MOST_READ_BYTES}", self.read_bytes);
        }
        if !(1..=1_000_000).contains(&(self.bytes() / 1_000_000)) {
            wrong!("{} megabytes a run: choose 1 to 1000000", self.megabytes.unwrap_or_default());
        }
        if let (Client::Own, Some(port)) = (self.client, self.port) {
            wrong!("-p {port} is for --client external: the own sender needs no port");
        }
        let has_queue = self.ways().contains(&WayName::Queue);
        match self.place() {
            None if has_queue => wrong!("the way queue: name the queue with -i IF -q QUEUE"),
            Some((interface, queue)) if self.client == Client::Own => wrong!(
                "-i {interface} -q {queue}: bytes that this machine sends to itself pass no queue; give --client external, and run \
                 iperf3 on another machine"
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_less_and_impossible_options_are_named() {
        let full = TcpRxOptions::default();
        full.verify().unwrap();
        let quick = TcpRxOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds() && quick.bytes() < full.bytes());
        assert!(!full.ways().contains(&WayName::Queue));
        let refused = |options: TcpRxOptions| options.verify().unwrap_err().to_string();
        assert!(refused(TcpRxOptions { rounds: Some(0), ..full.clone() }).contains("at least 1"));
        assert!(refused(TcpRxOptions { connections: vec![481], ..full.clone() }).contains("481 connections"));
        let recv = TcpRxOptions { ways: vec![WayName::Recv], connections: vec![1, 16], ..full.clone() };
        assert!(refused(recv.clone()).contains("16 connections with --ways recv"));
        TcpRxOptions { connections: vec![1], ..recv.clone() }.verify().unwrap();
        TcpRxOptions { ways: vec![WayName::Recv, WayName::Epoll], ..recv }.verify().unwrap();
        assert!(refused(TcpRxOptions { read_bytes: 0, ..full.clone() }).contains("reads of 0 bytes"));
        assert!(refused(TcpRxOptions { megabytes: Some(0), ..full.clone() }).contains("0 megabytes"));
        assert!(refused(TcpRxOptions { megabytes: Some(u64::MAX), ..full.clone() }).contains("megabytes"));
        assert!(refused(TcpRxOptions { port: Some(1), ..full.clone() }).contains("-p 1"));
        let own = TcpRxOptions { interface: Some("eth1".into()), queue: Some(3), ..full.clone() };
        assert!(refused(own.clone()).contains("-i eth1 -q 3") && own.ways().contains(&WayName::Queue));
        TcpRxOptions { client: Client::External, ..own }.verify().unwrap();
        let ways = vec![WayName::Queue];
        assert!(refused(TcpRxOptions { ways, ..full }).contains("-i IF"));
    }
}
