//! Sets an interface back: takes the steps in reverse, and repeats each while the kernel refuses it
//! for the moment.
//!
//! A ring that was closed gives its queue back some time later. Until then the kernel answers
//! EINVAL to whoever turns header split off or sets a threshold for it ("while device has memory
//! provider enabled", net/ethtool/rings.c).

use std::time::Duration;

use zerowire_sys::netlink::{DataSplit, Ethtool, NetlinkError};

/// Time between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// Pauses in all: 2 s, twice what a registration waits for a queue that is being given back.
const PAUSES: u32 = 200;

/// The settings that are changed; a trait, so that tests can refuse as a kernel does.
pub(super) trait Settings {
    fn data_split(&mut self, index: u32, split: Option<DataSplit>) -> Result<(), NetlinkError>;
    fn hds_thresh(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError>;
    /// An empty table: the default one.
    fn rss_table(&mut self, index: u32, table: &[u32]) -> Result<(), NetlinkError>;
}

impl Settings for Ethtool {
    fn data_split(&mut self, index: u32, split: Option<DataSplit>) -> Result<(), NetlinkError> {
        self.set_data_split(index, split)
    }

    fn hds_thresh(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        self.set_hds_thresh(index, bytes)
    }

    fn rss_table(&mut self, index: u32, table: &[u32]) -> Result<(), NetlinkError> {
        self.set_rss_table(index, table)
    }
}

/// What was before a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undo {
    DataSplit(Option<DataSplit>),
    Threshold(u32),
    /// Empty: the default one. It is requested by name and not written. The kernel notes a table
    /// that is written as the user's own, and such a table doesn't follow the number of channels.
    Table(Vec<u32>),
}

/// A step to take back, and the command that does it by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UndoStep {
    pub(super) undo: Undo,
    pub(super) back: String,
}

/// Takes back all `steps`, the last one first. On an error those that failed are left in `steps`,
/// and the others were attempted all the same; the error is the first one.
pub(super) fn set_back(
    settings: &mut impl Settings,
    index: u32,
    steps: &mut Vec<UndoStep>,
    mut pause: impl FnMut(),
) -> Result<(), NetlinkError> {
    let mut first = Ok(());
    let mut pauses = PAUSES;
    let mut left = Vec::new();
    while let Some(step) = steps.pop() {
        if let Err(e) = patiently(settings, index, &step.undo, &mut pauses, &mut pause) {
            left.push(step);
            first = first.and(Err(e));
        }
    }
    left.reverse();
    *steps = left;
    first
}

fn patiently(
    settings: &mut impl Settings,
    index: u32,
    undo: &Undo,
    pauses: &mut u32,
    pause: &mut impl FnMut(),
) -> Result<(), NetlinkError> {
    loop {
        let error = match once(settings, index, undo) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        match error.errno() {
            // An interface that is gone has no settings.
            Some(libc::ENODEV) => return Ok(()),
            Some(libc::EINVAL | libc::EBUSY) if *pauses > 0 => {
                *pauses -= 1;
                pause();
            }
            // A driver that reports "off" of its own choice may refuse a request for it (fbnic).
            Some(libc::EINVAL) if *undo == Undo::DataSplit(Some(DataSplit::Off)) => {
                return settings.data_split(index, None).or(Err(error));
            }
            _ => return Err(error),
        }
    }
}

fn once(settings: &mut impl Settings, index: u32, undo: &Undo) -> Result<(), NetlinkError> {
    match undo {
        Undo::DataSplit(before) => settings.data_split(index, *before),
        Undo::Threshold(bytes) => settings.hds_thresh(index, *bytes),
        Undo::Table(table) => settings.rss_table(index, table),
    }
}

/// How to set back `table`, of an interface with `count` receive queues: what to write, and the
/// command that does it by hand (ethtool(8), `-X`).
pub(super) fn table_back(interface: &str, table: &[u32], count: u32) -> (Undo, String) {
    let is_round = |n: u32| n > 0 && table.iter().zip((0..n).cycle()).all(|(queue, want)| *queue == want);
    if is_round(count) {
        return (Undo::Table(Vec::new()), format!("ethtool -X {interface} default"));
    }
    let queues = table.iter().max().map_or(0, |most| most.saturating_add(1));
    let by_hand = if is_round(queues) {
        format!("ethtool -X {interface} equal {queues}")
    } else if table.is_sorted() {
        // ethtool spreads weights that add up to the length of the table in one run each.
        let entries = |queue| table.iter().filter(|q| **q == queue).count().to_string();
        let weights: Vec<_> = (0..queues).map(entries).collect();
        format!("ethtool -X {interface} weight {}", weights.join(" "))
    } else {
        let entries: Vec<_> = table.iter().map(u32::to_string).collect();
        format!("no command of ethtool gives this RSS table: {}", entries.join(" "))
    };
    (Undo::Table(table.to_vec()), by_hand)
}

#[cfg(test)]
mod tests;
