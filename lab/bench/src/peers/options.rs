//! What a caller can choose: the arguments of `zerowire-bench peers`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::cell::ComparedPart;
use super::find::{self, NamedPeer};
use crate::case::WorkingSet;
use crate::experiment::Files;
use crate::words::{defaults, verify_rounds, wrong};

/// Options of [`crate::peers::run_peers`].
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "\
net: 'zerowire net' and dpdk-testpmd (vhost-user to a tap), driven by a guest without a VM. udp: the same device and passt, from \
a guest to a socket. vsock: 'zerowire vsock' and \
vhost-device-vsock. replay: 'zerowire replay' and tcpreplay, one capture to an ifb device. tcp: 'zerowire send' and 'recv', and \
iperf3, over a veth pair.\n\
\n\
CPU time is that of all threads of a program; of replay, with that of the kernel's softirq threads. Programs take turns in each round; a ratio is that of one round, the other program's \
figure divided by ours. Every frame and byte is accounted for. A program that is not installed is named with its package. Needs \
root, and makes namespaces and devices of its own; vsock alone needs no privilege. Takes about 9 minutes; with --quick less than one. \
See docs/peers.md.")]
pub struct PeersOptions {
    /// Fewer rounds, less in each, hot working sets only.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each row [default: 15, with --quick 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Which parts: net, udp, vsock, replay, tcp.
    #[arg(long, value_delimiter = ',', default_values_t = ComparedPart::value_variants().to_vec(),
        hide_possible_values = true, value_name = "PART,…")]
    pub parts: Vec<ComparedPart>,
    /// The program `zerowire`.
    #[arg(skip)]
    pub program: PathBuf,
    /// Another file than the one in PATH for dpdk-testpmd, passt, vhost-device-vsock, tcpreplay or
    /// iperf3. Repeat for more.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    pub peers: Vec<NamedPeer>,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

impl PeersOptions {
    /// All parts, with this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program, ..defaults() }
    }

    /// Rounds of each row.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 15 })
    }

    /// The working sets of rows that have one.
    pub(super) fn working_sets(&self) -> &'static [WorkingSet] {
        if self.quick { &[WorkingSet::Hot] } else { &WorkingSet::ALL }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`crate::WrongArguments`].
    pub(super) fn verify(&self) -> Result<()> {
        verify_rounds(self.rounds())?;
        if self.parts.is_empty() {
            wrong!("no part: choose from net, udp, vsock, replay and tcp");
        }
        if let Some(part) = self.parts.iter().enumerate().find(|(i, part)| self.parts[..*i].contains(part)) {
            wrong!("part {} is given twice", part.1);
        }
        find::verify(&self.peers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let good = PeersOptions::new("/proc/self/exe".into());
        good.verify().unwrap();
        assert!(PeersOptions { quick: true, ..good.clone() }.rounds() < good.rounds());
        let refused = |options: PeersOptions| options.verify().unwrap_err().to_string();
        assert!(refused(PeersOptions { rounds: Some(0), ..good.clone() }).contains("0 rounds"));
        assert!(refused(PeersOptions { parts: Vec::new(), ..good.clone() }).contains("no part"));
        let twice = vec![ComparedPart::Net, ComparedPart::Net];
        assert!(refused(PeersOptions { parts: twice, ..good }).contains("net is given twice"));
    }
}
