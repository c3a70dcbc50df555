//! What to compare.

use std::path::PathBuf;

use anyhow::Result;

use super::cell::ComparedPart;
use super::find::{self, NamedPeer};
use crate::experiment::Files;
use crate::wrong::wrong;

/// Options of [`crate::peers::run_peers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeersOptions {
    /// Fewer rounds, less in each.
    pub quick: bool,
    /// Rounds of each row; `None`: 15, or 3 when quick.
    pub rounds: Option<usize>,
    /// Which parts of zerowire.
    pub parts: Vec<ComparedPart>,
    /// The program `zerowire`.
    pub program: PathBuf,
    /// Peers that are not those in PATH.
    pub peers: Vec<NamedPeer>,
    /// Where the report goes besides the text.
    pub files: Files,
}

impl PeersOptions {
    /// All parts, with this program.
    pub fn new(program: PathBuf) -> Self {
        let (parts, files) = (ComparedPart::ALL.to_vec(), Files::default());
        Self { quick: false, rounds: None, parts, program, peers: Vec::new(), files }
    }

    /// Rounds of each row.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 15 })
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`crate::WrongArguments`].
    pub(super) fn verify(&self) -> Result<()> {
        if self.rounds() == 0 {
            wrong!("0 rounds: give at least 1");
        }
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
