//! What children count of a VM: as it is sent, with bounds of what a child makes up, and summed up
//! over the children that a VM has had.

use serde::{Deserialize, Serialize};
use zerowire::ledger::{CopyReason, DropReason, Totals};
use zerowire_vhost::host::KickHistogram;

use super::message::{counted, seconds};

/// What a child counts of a VM. A direction is from the guest or, behind that, to it.
pub(crate) trait Figures: Clone + Default {
    /// How many of [`Self::numbers`], the first ones, are levels of now. The others grow as long as
    /// the VM is served.
    const LEVELS: usize;

    /// Makes room for all numbers that `other` has.
    fn fit(&mut self, _other: &Self) {}

    /// All numbers, each reason's included.
    fn numbers(&mut self) -> Vec<&mut u64>;

    /// How long the limits have held each direction up, seconds.
    fn waited(&mut self) -> [&mut f64; 2];

    /// How long kicks of each direction took.
    fn kicks(&mut self) -> [&mut KickHistogram; 2];

    /// CPU time of the child, seconds, if it is this VM's alone.
    fn cpu_seconds(&self) -> f64 {
        0.0
    }

    /// What each direction has moved.
    fn moved(&mut self) -> [&mut Totals; 2];

    /// Leaves out reasons that never were one.
    fn forget_unused(&mut self) {
        for moved in self.moved() {
            moved.copied_bytes.retain(|_, n| *n > 0);
            moved.dropped_frames.retain(|_, n| *n > 0);
        }
    }
}

/// Figures as they are sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SentFigures {
    pub numbers: Vec<u64>,
    pub waited: [f64; 2],
    pub kicks: [KickHistogram; 2],
}

impl SentFigures {
    pub(crate) fn of(figures: &mut impl Figures) -> Self {
        Self {
            numbers: figures.numbers().into_iter().map(|n| *n).collect(),
            waited: figures.waited().map(|time| *time),
            kicks: figures.kicks().map(|kicks| kicks.clone()),
        }
    }

    /// Enters them, with bounds as one may show them.
    pub(crate) fn enter(self, into: &mut impl Figures) {
        into.numbers().into_iter().zip(self.numbers).for_each(|(n, told)| *n = counted(told));
        into.waited().into_iter().zip(self.waited).for_each(|(time, told)| *time = seconds(told));
        into.kicks().into_iter().zip(&self.kicks).for_each(|(kicks, told)| *kicks = bounded(told));
    }
}

/// Counters that are lower than before stay as they were, whatever a child says and whichever
/// answer comes late.
pub(crate) fn keep_counters<F: Figures>(now: &mut F, before: &mut F) {
    now.fit(before);
    before.fit(now);
    for (now, before) in now.numbers().into_iter().zip(before.numbers()).skip(F::LEVELS) {
        *now = (*now).max(*before);
    }
    now.waited().into_iter().zip(before.waited()).for_each(|(now, before)| *now = now.max(*before));
    for (now, before) in now.kicks().into_iter().zip(before.kicks()) {
        now.sum = now.sum.max(before.sum);
        now.buckets.iter_mut().zip(before.buckets).for_each(|(now, before)| *now = (*now).max(before));
    }
}

/// Adds counters up; the levels are those of `more`. A sum has the bounds of what one child tells,
/// so the next one does not overflow.
pub(crate) fn add<F: Figures>(sum: &mut F, mut more: F) {
    sum.fit(&more);
    more.fit(sum);
    for (i, (sum, n)) in sum.numbers().into_iter().zip(more.numbers()).enumerate() {
        *sum = if i < F::LEVELS { *n } else { counted(*sum + *n) };
    }
    sum.waited().into_iter().zip(more.waited()).for_each(|(sum, time)| *sum = seconds(*sum + *time));
    for (sum, kicks) in sum.kicks().into_iter().zip(more.kicks()) {
        sum.add(kicks);
        *sum = bounded(sum);
    }
}

fn bounded(kicks: &KickHistogram) -> KickHistogram {
    KickHistogram { sum: seconds(kicks.sum), buckets: kicks.buckets.map(counted) }
}

/// The numbers of one direction, each reason's included.
pub(crate) fn numbers_of(moved: &mut Totals) -> Vec<&mut u64> {
    for reason in CopyReason::ALL {
        moved.copied_bytes.entry(reason.name()).or_default();
    }
    for reason in DropReason::ALL {
        moved.dropped_frames.entry(reason.name()).or_default();
    }
    let mut all = vec![
        &mut moved.frames,
        &mut moved.bytes,
        &mut moved.zero_copied_frames,
        &mut moved.zero_copied_bytes,
        &mut moved.system_calls,
        &mut moved.kicks,
        &mut moved.calls,
    ];
    all.extend(moved.copied_bytes.values_mut().chain(moved.dropped_frames.values_mut()));
    all
}
