//! What a caller can choose.

use std::path::PathBuf;

use anyhow::Result;
use zerowire_guest::features::names;

use crate::backend::BackendKind;
use crate::case::{Direction, WorkingSet};
use crate::experiment::Files;
use crate::programs::NamedProgram;
use crate::wrong::wrong;

/// Options of [`crate::run_net`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetOptions {
    /// Less of everything: under a minute instead of some minutes. Of `vms` only the first, the
    /// middle and the last number are taken.
    pub quick: bool,
    /// Rounds of each case; `None`: 25, or 5 when quick.
    pub rounds: Option<usize>,
    /// Frame lengths in bytes from the Ethernet header on, 60 to 65549. Above 9014 the frame is a
    /// TCP frame to be segmented.
    pub sizes: Vec<usize>,
    /// Which ways.
    pub directions: Vec<Direction>,
    /// Which working sets.
    pub working_sets: Vec<WorkingSet>,
    /// Length in bytes of the fragments of a large frame that the guest sends. A Linux guest's TCP
    /// uses pieces of up to 32 KiB; single pages of 4096 bytes are the worst case.
    pub fragment_len: usize,
    /// Numbers of VMs for the scaling table, each 1 to 64; empty leaves the table out.
    pub vms: Vec<usize>,
    /// VMs of the process that is watched while they do nothing, 1 to 256.
    pub idle_vms: usize,
    /// Measure the device's copies and calls without its rings, too.
    pub bare_calls: bool,
    /// The program whose `net` command is measured; `None` measures the floor alone.
    pub program: Option<PathBuf>,
    /// Programs that are measured in turns in its place; the others are set beside the first one.
    pub programs: Vec<NamedProgram>,
    /// Further variants of the back end: each the arguments behind `net`, separated by blanks.
    pub variants: Vec<String>,
    /// Further variants with a guest that leaves out a feature: names of
    /// [`zerowire_guest::features`].
    pub without: Vec<String>,
    /// Where the report goes besides the text.
    pub files: Files,
}

impl Default for NetOptions {
    fn default() -> Self {
        Self {
            quick: false,
            rounds: None,
            sizes: vec![64, 1500, 9000, 60_000],
            directions: Direction::ALL.to_vec(),
            working_sets: WorkingSet::ALL.to_vec(),
            fragment_len: 32 << 10,
            vms: (1..=12).collect(),
            idle_vms: 12,
            bare_calls: false,
            program: None,
            programs: Vec::new(),
            variants: Vec::new(),
            without: Vec::new(),
            files: Files::default(),
        }
    }
}

impl NetOptions {
    /// The variants whose guest leaves out a feature.
    pub(crate) fn guests_without(&self) -> Result<Vec<BackendKind>> {
        let known = |name: &String| (0..64).map(|bit| 1 << bit).find(|one| names(*one) == [name.as_str()]);
        let kind = |name| match known(name) {
            Some(one) => Ok(BackendKind::without(one)),
            None => {
                wrong!("feature '{name}' is not known: give IN_ORDER, RING_EVENT_IDX, NET_MQ or another one")
            }
        };
        self.without.iter().map(kind).collect()
    }

    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 5 } else { 25 })
    }

    /// Numbers of VMs, thinned out when quick.
    pub fn vm_counts(&self) -> Vec<usize> {
        let vms = &self.vms;
        if !self.quick || vms.len() <= 3 {
            return vms.clone();
        }
        vec![vms[0], vms[vms.len() / 2], vms[vms.len() - 1]]
    }
}

/// The most idle VMs: as many as one process serves.
pub const MOST_IDLE_VMS: usize = 256;

/// The most VMs of the scaling table: their taps share a class B network.
pub const MOST_VMS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_fewer_rounds_and_vms() {
        let full = NetOptions::default();
        let quick = NetOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds());
        assert_eq!(quick.vm_counts(), [1, 7, 12]);
        assert_eq!(full.vm_counts().len(), 12);
        let given = NetOptions { rounds: Some(2), vms: vec![4], ..quick };
        assert_eq!((given.rounds(), given.vm_counts()), (2, vec![4]));
    }
}
