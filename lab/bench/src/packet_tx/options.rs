//! What a caller can choose.

use std::path::PathBuf;

use anyhow::Result;

use super::case::{PAYLOADS, SinkKind, TxCase};
use super::column::Column;
use crate::case::WorkingSet;
use crate::experiment::Files;
use crate::wrong::wrong;

/// Options of [`super::run_packet_tx`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketTxOptions {
    /// Fewer rounds, a quarter of the sends.
    pub quick: bool,
    /// Rounds of each case; `None`: 9, or 3 when quick.
    pub rounds: Option<usize>,
    /// Payload lengths in bytes, 1 to 65000.
    pub sizes: Vec<usize>,
    /// Which sinks.
    pub sinks: Vec<SinkKind>,
    /// Which working sets.
    pub working_sets: Vec<WorkingSet>,
    /// Which columns.
    pub columns: Vec<Column>,
    /// Measure the bare loops alone.
    pub floor_only: bool,
    /// Sends of each side of the comparison of Auto; `None`: 100 000, or 20 000 when quick; 0
    /// leaves it out. It is made when [`Column::Auto`] is among the columns.
    pub auto_sends: Option<usize>,
    /// Find the share of CPU time in copy routines with perf.
    pub cycles: bool,
    /// Compare the program's `replay` with tcpreplay.
    pub replay: bool,
    /// The program whose `replay` is run.
    pub program: Option<PathBuf>,
    /// Where the report goes besides the text.
    pub files: Files,
}

impl Default for PacketTxOptions {
    fn default() -> Self {
        Self {
            quick: false,
            rounds: None,
            sizes: PAYLOADS.to_vec(),
            sinks: SinkKind::ALL.to_vec(),
            working_sets: WorkingSet::ALL.to_vec(),
            columns: Column::ALL.to_vec(),
            floor_only: false,
            auto_sends: None,
            cycles: false,
            replay: false,
            program: None,
            files: Files::default(),
        }
    }
}

impl PacketTxOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 })
    }

    /// Sends of each side of the comparison of Auto; 0: it is left out.
    pub fn auto_sends(&self) -> usize {
        match self.columns.contains(&Column::Auto) && !self.floor_only {
            true => self.auto_sends.unwrap_or(if self.quick { 20_000 } else { 100_000 }),
            false => 0,
        }
    }

    /// The rows of the table for one sink.
    pub fn cases(&self, sink: SinkKind) -> Result<Vec<TxCase>> {
        TxCase::all(&[sink], &self.working_sets, &self.sizes)
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        if self.rounds() == 0 {
            wrong!("0 rounds: give at least 1");
        }
        TxCase::all(&self.sinks, &self.working_sets, &self.sizes)?;
        let empty = [
            self.sizes.is_empty(),
            self.sinks.is_empty(),
            self.working_sets.is_empty(),
            self.columns.is_empty(),
        ];
        if empty.contains(&true) {
            wrong!("nothing to measure: give at least one size, sink, working set and column");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_less_and_impossible_options_are_named() {
        let full = PacketTxOptions::default();
        full.verify().unwrap();
        let quick = PacketTxOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds() && quick.auto_sends() < full.auto_sends());
        assert_eq!(full.auto_sends(), 100_000);
        let without = PacketTxOptions { columns: vec![Column::Udp], ..full.clone() };
        assert_eq!(without.auto_sends(), 0);
        let refused = |options: PacketTxOptions| options.verify().unwrap_err().to_string();
        assert!(refused(PacketTxOptions { rounds: Some(0), ..full.clone() }).contains("at least 1"));
        assert!(refused(PacketTxOptions { sizes: vec![70_000], ..full.clone() }).contains("70000"));
        assert!(refused(PacketTxOptions { columns: Vec::new(), ..full }).contains("column"));
    }
}
