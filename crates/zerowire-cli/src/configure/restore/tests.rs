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
            return Err(NetlinkError::System { what: "a test", cause: io::Error::from_raw_os_error(*errno) });
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
    let mut steps: Vec<_> = undo.iter().map(|u| UndoStep { undo: u.clone(), back: String::new() }).collect();
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
