//! What a caller can choose: the arguments of `zerowire-bench net`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use zerowire_guest::features::names;

use crate::backend::BackendKind;
use crate::case::{Case, Direction, WorkingSet};
use crate::experiment::Files;
use crate::frame::{ETHERNET_LEN, SMALLEST};
use crate::programs::{self, NamedProgram, percent};
use crate::words::{by_words, defaults, verify_rounds, wrong};

/// The most VMs of the scaling table: their taps share a class B network.
const MOST_VMS: usize = 64;
/// The most idle VMs: as many as one process serves.
const MOST_IDLE_VMS: usize = 256;
/// VMs of the scaling table, and idle ones, where nothing else is said.
const VMS: usize = 12;

/// The longest frame over a veth pair: the MTU of the veth devices and the Ethernet header, bytes.
pub(crate) const VETH_LONGEST: usize = 1500 + ETHERNET_LEN;
/// Frame lengths there where none is given.
const VETH_SIZES: [usize; 2] = [64, 1500];

/// A port of `zerowire net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PortKind {
    /// `tap:IF`, which the back end makes itself.
    Tap,
    /// `xdp:IF`.
    Xdp,
    /// `packet:IF`.
    Packet,
}

by_words!(PortKind);

/// Options of [`crate::run_net`] and [`crate::ports::run_ports`].
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Measures CPU nanoseconds a frame of all threads of the back end, driven by a guest without a VM; variants are \
interleaved, every frame is accounted for. hot is a working set of 256 KiB, cold one of 64 MiB. Needs root, or \
'unshare -Urn zerowire-bench net'. Takes some minutes; with --quick less than one.\n\
\n\
--port xdp and --port packet measure those ports over veth pairs instead, at lengths up to 1514, beside the bare AF_XDP loop, \
the tap port and its floor and a plain packet socket, then bandwidth and CPU load of a stream of the longest frames both ways; \
--vms, --idle-vms, --fragment-len, --bare-calls and --without are for --port tap alone. They need root. See measurements/ports.md.")]
pub struct NetOptions {
    /// tap, or xdp, packet or both: the tap's port stands beside them.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "tap",
        hide_possible_values = true,
        value_name = "PORT,…"
    )]
    pub port: Vec<PortKind>,
    /// Fewer rounds; of the numbers of VMs only the first, the middle and the last.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each case: 25, of other ports than a tap 15, and 5 with --quick; three times as
    /// many, shorter ones of frames beyond 9014 bytes.
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Frame lengths, bytes from the Ethernet header on, 60 to 65549; above 9014 they are TCP
    /// frames to be segmented [default: 64,1500,9000,60000; over a veth pair 64,1500].
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…")]
    pub sizes: Vec<usize>,
    /// tx (guest to tap), rx, or both.
    #[arg(
        long = "direction",
        value_delimiter = ',',
        default_value = "tx,rx",
        hide_possible_values = true,
        value_name = "WAY,…"
    )]
    pub directions: Vec<Direction>,
    /// hot, cold or both.
    #[arg(
        long = "working-set",
        value_delimiter = ',',
        default_value = "hot,cold",
        hide_possible_values = true,
        value_name = "SET,…"
    )]
    pub working_sets: Vec<WorkingSet>,
    /// Numbers of VMs in the scaling table, each 1 to 64; 0 leaves the table out [default: 1 to
    /// 12]. Taps only.
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    pub vms: Vec<usize>,
    /// VMs of the process that is watched while they do nothing, 1 to 256 [default: 12]. Taps only.
    #[arg(long, value_name = "N")]
    pub idle_vms: Option<usize>,
    /// Bytes of the pieces in which the guest sends large frames [default: 32768]. Taps only.
    // A Linux guest's TCP uses pieces of up to 32 KiB; single pages are the worst case.
    #[arg(long, value_name = "BYTES")]
    pub fragment_len: Option<usize>,
    /// Measure also a bare loop of the copies and system calls that the device makes for a frame,
    /// and set the device beside it. Taps only.
    #[arg(long)]
    pub bare_calls: bool,
    /// What is measured beside the floor.
    #[command(flatten)]
    pub which: NetVariants,
    /// The program whose `net` is measured where none is named; `None` measures the floor alone.
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

/// What is measured beside the floor.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct NetVariants {
    /// Measure these programs in turns in place of the one beside this: --program before=PATH
    /// --program after=PATH. Each is set beside the first (/before). Options behind PATH go to that
    /// program alone: 'on=PATH --sandbox on'. Without --path copy, many VMs and idle ones.
    #[arg(long = "program", value_name = "NAME=PATH", conflicts_with = "floor_only")]
    pub programs: Vec<NamedProgram>,
    /// With --program: end with status 1 if a further program takes more than PERCENT more CPU time
    /// than the first one in a case. The lower quartile of the ratios (/before) counts.
    #[arg(long, value_name = "PERCENT", requires = "programs", value_parser = percent)]
    pub gate: Option<f64>,
    /// A further variant of the back end, as arguments of 'zerowire net': --with '--gather-max 0'.
    /// Repeat for more.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub with: Vec<String>,
    /// A further variant whose guest leaves out a feature: --without IN_ORDER. Repeat for more.
    /// Taps only.
    #[arg(long, value_name = "FEATURE")]
    pub without: Vec<String>,
    /// Measure the floor alone, or with --bare-calls both bare loops.
    #[arg(long)]
    pub floor_only: bool,
}

impl Default for NetOptions {
    fn default() -> Self {
        defaults()
    }
}

impl NetOptions {
    /// Frame lengths; `usual` where none is given.
    pub(crate) fn lengths<'a>(&'a self, usual: &'a [usize]) -> &'a [usize] {
        if self.sizes.is_empty() { usual } else { &self.sizes }
    }

    /// The variants whose guest leaves out a feature.
    pub(crate) fn guests_without(&self) -> Result<Vec<BackendKind>> {
        let known = |name: &String| (0..64).map(|bit| 1 << bit).find(|one| names(*one) == [name.as_str()]);
        let kind = |name| match known(name) {
            Some(one) => Ok(BackendKind::without(one)),
            None => {
                wrong!("feature '{name}' is not known: give IN_ORDER, RING_EVENT_IDX, NET_MQ or another one")
            }
        };
        self.which.without.iter().map(kind).collect()
    }

    /// Rounds of each case on taps.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 5 } else { 25 })
    }

    /// Rounds of each case on veth pairs.
    pub(crate) fn port_rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 5 } else { 15 })
    }

    /// All cases on veth pairs. Refuses what can't be measured, with the value, and what taps alone
    /// have.
    pub(crate) fn port_cases(&self) -> Result<Vec<Case>> {
        let for_taps = [
            (!self.vms.is_empty(), "--vms"),
            (self.idle_vms.is_some(), "--idle-vms"),
            (self.fragment_len.is_some(), "--fragment-len"),
            (self.bare_calls, "--bare-calls"),
            (!self.which.without.is_empty(), "--without"),
        ];
        if let Some((_, name)) = for_taps.into_iter().find(|(given, _)| *given) {
            let ports = self.port.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            wrong!("{name} is for taps: leave it out, or --port {ports}");
        }
        verify_rounds(self.port_rounds())?;
        programs::verify(&self.which.programs, self.which.gate)?;
        let sizes = self.lengths(&VETH_SIZES);
        if let Some(size) = sizes.iter().find(|size| !(SMALLEST..=VETH_LONGEST).contains(*size)) {
            wrong!(
                "frame length {size}: over a veth pair choose {SMALLEST} to {VETH_LONGEST} bytes; longer ones with --port tap"
            );
        }
        Case::all(&self.directions, sizes, &self.working_sets)
    }

    /// Numbers of VMs, thinned out when quick; empty: the table is left out.
    pub fn vm_counts(&self) -> Result<Vec<usize>> {
        if let Some(vms) = self.vms.iter().find(|vms| **vms > MOST_VMS) {
            wrong!("{vms} VMs: choose 1 to {MOST_VMS}");
        }
        let vms: Vec<usize> = match self.vms.is_empty() {
            true => (1..=VMS).collect(),
            false => self.vms.iter().copied().filter(|vms| *vms > 0).collect(),
        };
        if !self.quick || vms.len() <= 3 {
            return Ok(vms);
        }
        Ok(vec![vms[0], vms[vms.len() / 2], vms[vms.len() - 1]])
    }

    /// VMs that do nothing.
    pub(crate) fn idle_count(&self) -> Result<usize> {
        match self.idle_vms.unwrap_or(VMS) {
            vms @ 1..=MOST_IDLE_VMS => Ok(vms),
            vms => wrong!("{vms} idle VMs: choose 1 to {MOST_IDLE_VMS}"),
        }
    }

    /// Bytes of the pieces of large frames.
    pub(crate) fn fragment_bytes(&self) -> usize {
        self.fragment_len.unwrap_or(32 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_fewer_rounds_and_vms() {
        let full = NetOptions::default();
        let quick = NetOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds());
        assert_eq!(quick.vm_counts().unwrap(), [1, 7, 12]);
        assert_eq!(full.vm_counts().unwrap().len(), 12);
        let given = NetOptions { rounds: Some(2), vms: vec![4], ..quick };
        assert_eq!((given.rounds(), given.vm_counts().unwrap()), (2, vec![4]));
    }
}
