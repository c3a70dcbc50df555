//! What a caller can choose.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use zerowire_wire::mapped::WINDOWS;

use crate::case::{Direction, WorkingSet};
use crate::experiment::Files;
use crate::vsock::host::HostCpu;
use crate::words::{defaults, verify_rounds, wrong};

/// The port of the server where none is named.
pub const PORT: u32 = 1234;
/// Bytes of a page of windows and buffers.
pub const PAGE: usize = 4096;
/// Bytes that the server gives to one write: as many as in the published experiment.
pub const TX_BUFFER: usize = 16 << 20;
/// The most pages of the server's buffer: 1 GiB.
const MAX_TX_PAGES: usize = 1 << 18;
/// The most megabytes that the server sends: 64 TiB.
const MAX_MEGABYTES: u64 = 1 << 26;
/// Bytes of all windows together, unless their number is given. They are well above the usual
/// credit, so that what was sent ahead fits, and within a second-level cache.
const RING_BYTES: usize = 1 << 20;

/// Where the connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RxPlace {
    /// AF_VSOCK of the kernel: in a guest.
    Kernel,
    /// The host's end of `zerowire vsock`: what its `--uds` has.
    Host(PathBuf),
    /// A vsock device that a user-space driver of this process drives: in a guest, by its PCI
    /// address.
    Device(String),
}

/// Options of [`super::run_server`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Where the client comes from.
    pub place: RxPlace,
    /// The port to listen on.
    pub port: u32,
    /// Bytes to send.
    pub bytes: u64,
    /// Bytes of each write.
    pub tx_buffer: usize,
    /// Sum up what is sent, to compare it with the client's sum.
    pub check: bool,
}

impl ServerOptions {
    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        if self.bytes == 0 || self.bytes > MAX_MEGABYTES << 20 {
            wrong!("-m {}: choose 1 to {MAX_MEGABYTES} megabytes to send", self.bytes >> 20);
        }
        if self.tx_buffer == 0 || self.tx_buffer > MAX_TX_PAGES * PAGE {
            wrong!("-b {}: choose 1 to {MAX_TX_PAGES} pages for the server's buffer", self.tx_buffer / PAGE);
        }
        Ok(())
    }
}

/// Refuses a number of windows that a ring can't have; 0 stands for the default.
fn verify_windows(windows: u32) -> Result<()> {
    if windows != 0 && !WINDOWS.contains(&windows) {
        wrong!("--windows {windows}: choose {} to {}", WINDOWS.start(), WINDOWS.end());
    }
    Ok(())
}

/// Options of [`super::run_client`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// The way to the server.
    pub place: RxPlace,
    /// The server's address; the host's programs have one guest only, the one of [`RxPlace::Host`].
    pub cid: u32,
    /// The server's port.
    pub port: u32,
    /// How to receive.
    pub mode: ReceiveMode,
    /// Pages of the buffer, or of a window.
    pub pages: u32,
    /// Bytes that make a dequeue worth while; 0: 1.
    pub lowat: u32,
    /// Bytes that the server may send ahead; 0: what the other side gives by itself.
    pub credit: u32,
    /// Windows; 0: as many as have 1 MiB, at least 4 and at most 64.
    pub windows: u32,
    /// Copy what was dequeued into a private buffer first: shows what one more copy costs.
    pub copy_out: bool,
    /// Sum up what arrives, to compare it with the server's sum.
    pub check: bool,
}

impl ClientOptions {
    /// Bytes of the buffer, or of a window.
    pub fn buffer_bytes(&self) -> usize {
        self.pages as usize * PAGE
    }

    /// Bytes that make a dequeue worth while.
    pub fn lowat(&self) -> u32 {
        self.lowat.max(1)
    }

    /// Windows in the ring.
    pub fn windows(&self) -> u32 {
        windows_for(self.windows, self.buffer_bytes())
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        let pages = self.pages;
        if !(1..=4096).contains(&pages) {
            wrong!("-b {pages}: choose 1 to 4096 pages");
        }
        if self.lowat as usize > self.buffer_bytes() {
            wrong!("-r {}: the buffer of {pages} pages has {} bytes", self.lowat, self.buffer_bytes());
        }
        if self.mode == ReceiveMode::Copy && self.credit != 0 && matches!(self.place, RxPlace::Host(_)) {
            wrong!(
                "-v {}: with -z n on the host the credit is that of zerowire vsock: start it with --buffer {0}, and leave \
                 out -v",
                self.credit
            );
        }
        if self.mode == ReceiveMode::Direct && !matches!(self.place, RxPlace::Host(_)) {
            wrong!(
                "-z d: only a program of the host can look into the guest's memory; in the guest take -z y"
            );
        }
        verify_windows(self.windows)
    }
}

/// As many windows as were `given`; of 0 those of `len` bytes that have `RING_BYTES` together, 4 to
/// 64.
pub fn windows_for(given: u32, len: usize) -> u32 {
    if given != 0 { given } else { (RING_BYTES / len.max(1)).clamp(4, 64) as u32 }
}

/// Options of [`super::run_table`].
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TableOptions {
    /// Table: fewer rounds, sizes and bytes.
    #[arg(long)]
    pub quick: bool,
    /// Table: rounds of each case [default: 5, with --quick 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Megabytes (2^20 bytes) that the server sends, or each run of the table [default: 2048, table
    /// with --quick: 64].
    #[arg(short = 'm', long, value_name = "MEGABYTES")]
    pub megabytes: Option<u64>,
    /// Table: bytes of a dequeue, multiples of 4096 up to 4194304.
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…",
        default_values_t = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10])]
    pub sizes: Vec<usize>,
    /// Table: tx (guest to host), rx, or both.
    #[arg(
        long = "direction",
        value_delimiter = ',',
        default_value = "tx,rx",
        hide_possible_values = true,
        value_name = "WAY,…"
    )]
    pub directions: Vec<Direction>,
    /// Table: hot, cold or both.
    #[arg(
        long = "working-set",
        value_delimiter = ',',
        default_value = "hot,cold",
        hide_possible_values = true,
        value_name = "SET,…"
    )]
    pub working_sets: Vec<WorkingSet>,
    /// Table: modes, as letters of -z.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "n,y,u,d",
        hide_possible_values = true,
        value_name = "MODE,…"
    )]
    pub modes: Vec<ReceiveMode>,
    /// Client, table: credit of the connection, the bytes that the server may send ahead [default:
    /// the other side's; table: 262144].
    #[arg(short = 'v', long, value_name = "BYTES")]
    pub credit: Option<u32>,
    /// Client, table: windows in the ring, 2 to 64 [default: as many as have 1 MiB, at least 4].
    #[arg(long, default_value_t = 0, value_name = "N", hide_default_value = true)]
    pub windows: u32,
    /// Table: CPU of the host's program: backend (the back end's; a polling one gets the guest's),
    /// guest (the guest's), or any.
    #[arg(long, default_value = "backend", hide_possible_values = true, value_name = "CPU")]
    pub host_cpu: HostCpu,
    /// Table: measure the floors alone.
    #[arg(long)]
    pub floor_only: bool,
    /// The program whose `vsock` is measured; `None` measures the floors alone.
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// The program `zerowire-bench`, whose `vsock-rx` sends and receives on the host.
    #[arg(skip)]
    pub tool: PathBuf,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

impl Default for TableOptions {
    fn default() -> Self {
        defaults()
    }
}

impl TableOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Bytes of each run.
    pub fn bytes(&self) -> u64 {
        self.megabytes.unwrap_or(if self.quick { 64 } else { 2048 }).saturating_mul(1 << 20)
    }

    /// Credit of a connection, for back end and guest.
    pub(super) fn credit(&self) -> u32 {
        self.credit.unwrap_or(256 << 10)
    }

    /// Bytes of a dequeue, thinned out when quick.
    pub fn lens(&self) -> Vec<usize> {
        let all = &self.sizes;
        if !self.quick || all.len() <= 3 {
            return all.clone();
        }
        vec![all[0], all[(all.len() - 1) / 2], all[all.len() - 1]]
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        verify_rounds(self.rounds())?;
        if self.bytes() == 0 || self.bytes() > 64 << 30 {
            wrong!("-m {}: choose 1 to 65536 megabytes", self.megabytes.unwrap_or_default());
        }
        if let Some(len) =
            self.sizes.iter().find(|len| **len == 0 || **len > 4 << 20 || !len.is_multiple_of(PAGE))
        {
            wrong!("a dequeue of {len} bytes: choose a multiple of {PAGE}, up to 4194304");
        }
        if !(4096..=16 << 20).contains(&self.credit()) {
            wrong!("-v {}: choose 4096 to 16777216 bytes", self.credit());
        }
        let only_direct = self.modes.iter().all(|mode| *mode == ReceiveMode::Direct);
        if only_direct && !self.directions.contains(&Direction::Transmit) {
            wrong!(
                "--modes d --direction rx: host to guest no window is direct, for the device writes there; take y"
            );
        }
        verify_windows(self.windows)
    }
}

/// How a program takes what has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveMode {
    /// Calls that copy into a buffer of the program; it sleeps in poll().
    #[value(name = "n", alias = "copy")]
    Copy,
    /// Windows that the program has mapped; it sleeps until one is published.
    #[value(name = "y", alias = "mapped")]
    Mapped,
    /// The same; it looks at the window's flag in a loop.
    #[value(name = "u", alias = "polling")]
    Polling,
    /// The same as [`ReceiveMode::Mapped`], with payload left in the guest's memory.
    #[value(name = "d", alias = "direct")]
    Direct,
}

impl ReceiveMode {
    /// The letter behind `-z`.
    pub fn letter(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl fmt::Display for ReceiveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Copy => "copy",
            Self::Mapped => "mapped",
            Self::Polling => "polling",
            Self::Direct => "direct",
        })
    }
}

#[cfg(test)]
mod tests;
