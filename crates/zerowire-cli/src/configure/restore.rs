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
mod tests {
    use super::*;
    use std::io;

    /// A stand-in for the kernel, which refuses what the test says, as often as it says.
    #[derive(Default)]
    struct Fake {
        /// What is refused, with which errno, how often.
        refusals: Vec<(Undo, i32, u32)>,
        done: Vec<Undo>,
    }

    impl Fake {
        fn ask(&mut self, undo: Undo) -> Result<(), NetlinkError> {
            let refusal = self.refusals.iter_mut().find(|(what, _, times)| *what == undo && *times > 0);
            if let Some((_, errno, times)) = refusal {
                *times -= 1;
                return Err(NetlinkError::System {
                    what: "a test",
                    cause: io::Error::from_raw_os_error(*errno),
                });
            }
            self.done.push(undo);
            Ok(())
        }
    }

    impl Settings for Fake {
        fn data_split(&mut self, _: u32, split: Option<DataSplit>) -> Result<(), NetlinkError> {
            self.ask(Undo::DataSplit(split))
        }
        fn hds_thresh(&mut self, _: u32, bytes: u32) -> Result<(), NetlinkError> {
            self.ask(Undo::Threshold(bytes))
        }
        fn rss_table(&mut self, _: u32, table: &[u32]) -> Result<(), NetlinkError> {
            self.ask(Undo::Table(table.to_vec()))
        }
    }

    const SPLIT: Undo = Undo::DataSplit(None);
    const OFF: Undo = Undo::DataSplit(Some(DataSplit::Off));
    const THRESHOLD: Undo = Undo::Threshold(512);

    /// Sets `undo` back with such refusals: the first errno, what is left, what was done, pauses.
    fn tried(undo: &[Undo], refusals: &[(Undo, i32, u32)]) -> (Option<i32>, Vec<Undo>, Vec<Undo>, u32) {
        let mut fake = Fake { refusals: refusals.to_vec(), ..Fake::default() };
        let mut steps: Vec<_> =
            undo.iter().map(|u| UndoStep { undo: u.clone(), back: String::new() }).collect();
        let mut pauses = 0;
        let result = set_back(&mut fake, 4, &mut steps, || pauses += 1);
        let left = steps.into_iter().map(|s| s.undo).collect();
        (result.err().and_then(|e| e.errno()), left, fake.done, pauses)
    }

    #[test]
    fn a_queue_that_is_given_back_late_is_waited_for() {
        for errno in [libc::EINVAL, libc::EBUSY] {
            let refusals = [(THRESHOLD, errno, 20), (SPLIT, errno, 3)];
            assert_eq!(tried(&[SPLIT, THRESHOLD], &refusals), (None, vec![], vec![THRESHOLD, SPLIT], 23));
        }
    }

    #[test]
    fn what_fails_is_kept_and_the_others_are_tried() {
        let never = u32::MAX;
        let table = Undo::Table(vec![0, 1]);
        let all = [SPLIT, THRESHOLD, table.clone()];
        let refusals = [(THRESHOLD, libc::EINVAL, never)];
        let (errno, left, done, pauses) = tried(&all, &refusals);
        assert_eq!(
            (errno, left, done, pauses),
            (Some(libc::EINVAL), vec![THRESHOLD], vec![table, SPLIT], PAUSES)
        );
        // Without a right to it waiting doesn't help. What is left is in the order of the changes.
        let refusals = [(THRESHOLD, libc::EPERM, never), (SPLIT, libc::EIO, never)];
        let (errno, left, _, pauses) = tried(&all, &refusals);
        assert_eq!((errno, left, pauses), (Some(libc::EPERM), vec![SPLIT, THRESHOLD], 0));
        assert_eq!(tried(&[SPLIT], &[(SPLIT, libc::ENODEV, 1)]), (None, vec![], vec![], 0), "it is gone");
    }

    #[test]
    fn a_driver_that_takes_no_off_gets_auto() {
        let refusals = [(OFF, libc::EINVAL, u32::MAX)];
        assert_eq!(tried(&[OFF], &refusals), (None, vec![], vec![SPLIT], PAUSES));
        let refusals = [(OFF, libc::EINVAL, u32::MAX), (SPLIT, libc::EINVAL, u32::MAX)];
        assert_eq!(tried(&[OFF], &refusals), (Some(libc::EINVAL), vec![OFF], vec![], PAUSES));
    }

    #[test]
    fn a_table_is_named_as_what_it_was() {
        let back = |table: &[u32], count| table_back("eth1", table, count);
        let own = |table: &[u32], command: &str| (Undo::Table(table.to_vec()), command.to_owned());
        let default = (Undo::Table(Vec::new()), "ethtool -X eth1 default".to_owned());
        assert_eq!(back(&[0, 1, 2, 0], 3), default);
        assert_eq!(back(&[0, 1, 0, 1], 4), own(&[0, 1, 0, 1], "ethtool -X eth1 equal 2"));
        assert_eq!(back(&[0, 0, 0, 2], 4), own(&[0, 0, 0, 2], "ethtool -X eth1 weight 3 0 1"));
        let (undo, text) = back(&[3, 0, 1, 0], 4);
        assert_eq!(undo, Undo::Table(vec![3, 0, 1, 0]));
        assert!(text.ends_with("3 0 1 0") && !text.contains("default"), "{text}");
    }
}
