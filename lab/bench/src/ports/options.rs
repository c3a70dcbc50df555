//! What a caller can choose.

use std::path::PathBuf;

use anyhow::Result;

use crate::case::{Case, Direction, WorkingSet};
use crate::experiment::Files;
use crate::frame::{ETHERNET_LEN, SMALLEST};
use crate::wrong::wrong;

/// The longest frame: the MTU of the veth devices and the Ethernet header, bytes.
pub const LONGEST: usize = 1500 + ETHERNET_LEN;

/// A port of `zerowire net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    /// `tap:IF`, which the back end makes itself.
    Tap,
    /// `xdp:IF`.
    Xdp,
    /// `packet:IF`.
    Packet,
}

impl PortKind {
    /// The word before the colon.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Xdp => "xdp",
            Self::Packet => "packet",
        }
    }

    /// What `--port` takes for the interface `name`.
    pub fn spec(self, name: &str) -> String {
        format!("{}:{name}", self.word())
    }
}

impl std::str::FromStr for PortKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tap" => Ok(Self::Tap),
            "xdp" => Ok(Self::Xdp),
            "packet" => Ok(Self::Packet),
            _ => Err(format!("port {text:?}: choose tap, xdp or packet")),
        }
    }
}

/// Options of [`super::run_ports`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOptions {
    /// Which ports of the program; the tap's stands beside them in any case.
    pub ports: Vec<PortKind>,
    /// Fewer rounds, half as many frames.
    pub quick: bool,
    /// Rounds of each case; `None`: 15, or 5 when quick.
    pub rounds: Option<usize>,
    /// Frame lengths in bytes from the Ethernet header on, 60 to [`LONGEST`].
    pub sizes: Vec<usize>,
    /// Which ways.
    pub directions: Vec<Direction>,
    /// Which working sets.
    pub working_sets: Vec<WorkingSet>,
    /// The program whose `net` command is measured; `None` measures the bare loops alone.
    pub program: Option<PathBuf>,
    /// Further variants of each of these ports: the arguments behind `net`, separated by blanks.
    pub variants: Vec<String>,
    /// Where the report goes besides the text.
    pub files: Files,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            ports: vec![PortKind::Xdp],
            quick: false,
            rounds: None,
            sizes: vec![64, 1500],
            directions: Direction::ALL.to_vec(),
            working_sets: WorkingSet::ALL.to_vec(),
            program: None,
            variants: Vec::new(),
            files: Files::default(),
        }
    }
}

impl PortOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 5 } else { 15 })
    }

    /// All cases. Refuses what can't be measured, with the value.
    pub fn cases(&self) -> Result<Vec<Case>> {
        if self.rounds() == 0 {
            wrong!("0 rounds: give at least 1");
        }
        if let Some(size) = self.sizes.iter().find(|size| !(SMALLEST..=LONGEST).contains(*size)) {
            wrong!(
                "frame length {size}: over a veth pair choose {SMALLEST} to {LONGEST} bytes; longer ones with --port tap"
            );
        }
        if self.ports.is_empty() {
            wrong!("no port: choose xdp, packet or tap");
        }
        Case::all(&self.directions, &self.sizes, &self.working_sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_parse_and_make_specs() {
        assert_eq!("xdp".parse::<PortKind>().unwrap().spec("e0"), "xdp:e0");
        assert_eq!("packet".parse::<PortKind>().unwrap().spec("e0"), "packet:e0");
        assert!("veth".parse::<PortKind>().unwrap_err().contains("veth"));
    }

    #[test]
    fn lengths_and_rounds_are_checked() {
        let refused = |options: PortOptions| options.cases().unwrap_err().to_string();
        assert!(refused(PortOptions { sizes: vec![64, 9000], ..Default::default() }).contains("9000"));
        assert!(refused(PortOptions { rounds: Some(0), ..Default::default() }).contains("at least 1"));
        assert!(refused(PortOptions { ports: Vec::new(), ..Default::default() }).contains("no port"));
        assert_eq!(PortOptions::default().cases().unwrap().len(), 8);
    }
}
