//! One class of lengths: its trials and runs.

use super::{
    ALWAYS_COPIED_BELOW, BLOCK, BLOCKS, Because, CLASSES, COPIED_IN_A_ROW, Choice, Decision, FIRST_RUN,
    KNOCK, LONGEST_RUN, SendWay, WARM_UP,
};
use crate::ledger::CopyReason;

/// Blocks of each kind after which a trial may end early, and by how many hundredths one way must
/// then be dearer. What is far apart is dear to try and needs few samples; what is close is the
/// reverse.
const EARLY_ENDS: [(usize, u64); 2] = [(4, 40), (8, 12)];
/// How much cheaper (in hundredths) the other way must be to replace the way that serves.
const HYSTERESIS_PERCENT: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum TrialState {
    /// Blocks take turns; `left` sends of the present block remain.
    Trial { way: SendWay, left: u32 },
    /// A few lent sends, after the kernel had copied what was lent: only if it lends this one a
    /// whole trial follows. `waited`: sends since the block's end, while its notifications are out;
    /// `read_at`: of those, after which they are read next.
    Knock { left: u32, waited: u32, read_at: u32 },
    /// `way` serves for `left` more sends.
    Run { way: SendWay, left: u32 },
}

#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) state: TrialState,
    pub(super) choice: Choice,
    /// Nanoseconds of the block that runs, and how many of its sends were measured.
    block_ns: u64,
    block_sends: u32,
    copy: Samples,
    lend: Samples,
    run: u32,
    copied_in_a_row: u32,
    /// Of the present trial or knock: notifications that said lent.
    seen_lent: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    values: [u64; BLOCKS],
    n: usize,
}

impl Samples {
    fn push(&mut self, value: u64) {
        if let Some(slot) = self.values.get_mut(self.n) {
            *slot = value;
            self.n += 1;
        }
    }

    /// Not the median: what disturbs a block makes it dearer, and a hot copy dearer than a loan,
    /// which touches less memory.
    fn lower_quartile(&mut self) -> u64 {
        let values = &mut self.values[..self.n];
        values.sort_unstable();
        values.get(values.len() / 4).copied().unwrap_or(0)
    }
}

impl Class {
    /// The class of lengths from 2 to the power of `number` on.
    pub(super) fn new(number: usize) -> Self {
        let is_short = (2usize << number) <= ALWAYS_COPIED_BELOW;
        let choice = Choice {
            from_bytes: if number == 0 { 0 } else { 1 << number },
            to_bytes: if number + 1 == CLASSES { usize::MAX } else { (2 << number) - 1 },
            way: SendWay::Copy,
            because: if is_short { Because::Short } else { Because::Trial },
            copy_ns: 0,
            lend_ns: 0,
            sends: 0,
            trials: 0,
        };
        Self {
            state: TrialState::Trial { way: SendWay::Copy, left: BLOCK },
            choice,
            block_ns: 0,
            block_sends: 0,
            copy: Samples::default(),
            lend: Samples::default(),
            run: FIRST_RUN,
            copied_in_a_row: 0,
            seen_lent: 0,
        }
    }

    fn begin_trial(&mut self) {
        self.state = TrialState::Trial { way: SendWay::Copy, left: BLOCK };
        self.copy.n = 0;
        self.lend.n = 0;
        self.block_ns = 0;
        self.block_sends = 0;
        self.seen_lent = 0;
        self.copied_in_a_row = 0;
    }

    pub(super) fn begin_run(&mut self, way: SendWay, because: Because) {
        self.choice.way = way;
        self.choice.because = because;
        self.state = TrialState::Run { way, left: self.run };
        self.run = self.run.saturating_mul(2).min(LONGEST_RUN);
        self.copied_in_a_row = 0;
    }

    pub(super) fn decide(&mut self) -> Decision {
        self.choice.sends += 1;
        // Outside a trial. What was refused or copied by the kernel was not measured.
        let reason = match self.choice.because {
            Because::Short => CopyReason::Small,
            Because::Trial => CopyReason::Trial,
            Because::Measured => CopyReason::Cheaper,
            Because::KernelCopied => CopyReason::KernelCopies,
            Because::Refused => CopyReason::Memlock,
        };
        match &mut self.state {
            TrialState::Run { way, left } => {
                let turn = Decision { way: *way, measure: false, reason };
                *left -= 1;
                if *left == 0 {
                    if matches!(self.choice.because, Because::KernelCopied | Because::Refused) {
                        self.state = TrialState::Knock { left: KNOCK, waited: 0, read_at: 0 };
                        self.seen_lent = 0;
                        self.copied_in_a_row = 0;
                    } else {
                        self.begin_trial();
                    }
                }
                turn
            }
            TrialState::Trial { way, left } => {
                *left = left.saturating_sub(1);
                Decision { way: *way, measure: *left < BLOCK - WARM_UP, reason: CopyReason::Trial }
            }
            TrialState::Knock { left, waited, .. } => {
                if *left > 0 {
                    *left -= 1;
                    return Decision { way: SendWay::Lend, measure: false, reason };
                }
                // Its notifications are still out: copying goes on meanwhile. Some never say
                // anything here (payloads that had to be gathered, a receiver that stands still),
                // so there is another knock after a while.
                *waited += 1;
                if *waited >= FIRST_RUN {
                    let because = self.choice.because;
                    self.begin_run(SendWay::Copy, because);
                }
                Decision { way: SendWay::Copy, measure: false, reason }
            }
        }
    }

    /// Whether the notifications of a knock should be read now: copying reads none by itself. Ever
    /// more seldom while none say anything.
    pub(super) fn awaits_answer(&mut self) -> bool {
        let TrialState::Knock { left: 0, waited, read_at } = &mut self.state else { return false };
        let is_due = waited >= read_at;
        if is_due {
            *read_at = (*waited * 2).max(1);
        }
        is_due
    }

    pub(super) fn measured(&mut self, way: SendWay, ns: u64, notification_ns: u64) {
        let TrialState::Trial { way: current, left } = self.state else { return };
        if way == current {
            self.block_ns += ns;
            self.block_sends += 1;
        }
        if left > 0 || self.block_sends == 0 {
            return;
        }
        let each = self.block_ns / u64::from(self.block_sends);
        match current {
            SendWay::Copy => self.copy.push(each),
            SendWay::Lend => self.lend.push(each),
        }
        self.block_ns = 0;
        self.block_sends = 0;
        let (copy_ns, lend_ns) = (self.copy.lower_quartile(), self.lend.lower_quartile() + notification_ns);
        let (dear, cheap) = (copy_ns.max(lend_ns), copy_ns.min(lend_ns));
        let is_clear = |percent: u64| dear.saturating_mul(100) > cheap.saturating_mul(100 + percent);
        let early = EARLY_ENDS.iter().find(|(_, percent)| is_clear(*percent));
        let enough = early.map_or(BLOCKS, |(blocks, _)| *blocks);
        if self.copy.n < enough || self.lend.n < enough {
            let way = if self.lend.n < BLOCKS { current.other() } else { SendWay::Copy };
            self.state = TrialState::Trial { way, left: BLOCK };
            return;
        }
        (self.choice.copy_ns, self.choice.lend_ns) = (copy_ns, lend_ns);
        self.choice.trials += 1;
        let (serving, challenger) = match self.choice.way {
            SendWay::Copy => (self.choice.copy_ns, self.choice.lend_ns),
            SendWay::Lend => (self.choice.lend_ns, self.choice.copy_ns),
        };
        let replaced = challenger * 100 < serving * (100 - HYSTERESIS_PERCENT);
        let way = if replaced { self.choice.way.other() } else { self.choice.way };
        if self.choice.trials > 1 && replaced {
            // What was true has changed: look again soon.
            self.run = FIRST_RUN;
        }
        self.begin_run(way, Because::Measured);
    }

    pub(super) fn notified(&mut self, copied: bool) {
        if copied {
            self.copied_in_a_row = self.copied_in_a_row.saturating_add(1);
        } else {
            self.copied_in_a_row = 0;
            self.seen_lent += 1;
        }
        match self.state {
            TrialState::Knock { .. } if self.seen_lent > 0 => {
                self.run = FIRST_RUN;
                self.begin_trial();
            }
            TrialState::Knock { left: 0, .. } if self.copied_in_a_row >= KNOCK => {
                self.begin_run(SendWay::Copy, Because::KernelCopied);
            }
            // Also in the middle of a trial: what lending costs when the kernel copies needs no
            // measuring.
            TrialState::Trial { .. } if self.copied_in_a_row >= COPIED_IN_A_ROW && self.seen_lent == 0 => {
                self.begin_run(SendWay::Copy, Because::KernelCopied);
            }
            TrialState::Run { way: SendWay::Lend, .. } if self.copied_in_a_row >= COPIED_IN_A_ROW => {
                self.begin_run(SendWay::Copy, Because::KernelCopied);
            }
            _ => {}
        }
    }
}
