//! Chooses between copying and lending, by measurement. Plain code without a clock or a socket: the
//! sender measures and passes the figures in.
//!
//! Payloads fall into classes by the power of two of their length. A class begins with a *trial*:
//! blocks of sends that copy and blocks that lend take turns. The CPU time of each block is
//! measured, without its first sends. The lower quartiles decide, early if they are far apart. The
//! cost of reading notifications is measured apart and added to lending. The winner then serves,
//! unmeasured, until the next trial. Each run has twice as many sends as the one before, up to
//! [`LONGEST_RUN`]. When the kernel says of [`COPIED_IN_A_ROW`] lent payloads in a row that it
//! copied them, lending ends at once. The next attempt comes after the same growing runs: a few
//! sends, and if the kernel lent those, a whole trial.

mod class;

use self::class::{Class, TrialState};
use crate::ledger::CopyReason;
use serde::Serialize;

/// Payloads shorter than this are always copied: pinning a page and reading a notification cost
/// more than copying so few bytes on any machine.
pub const ALWAYS_COPIED_BELOW: usize = 256;
/// Sends in a block. Those that are measured cost two more system calls each, so there are not
/// many.
pub const BLOCK: u32 = 20;
/// The first sends of a block are not measured. The memory that copies go to has left the cache
/// while the block before it was lending (some 1000 ns at 10 000 bytes). A run of copies never sees
/// this again.
pub const WARM_UP: u32 = 8;
/// Most blocks of each kind in a trial.
pub const BLOCKS: usize = 16;
/// Lent sends of a knock.
pub const KNOCK: u32 = 8;
/// Sends between the first trial and the second.
pub const FIRST_RUN: u32 = 8192;
/// Sends between two trials at most.
pub const LONGEST_RUN: u32 = 1 << 18;
/// Lent payloads in a row that the kernel copied, after which lending ends.
pub const COPIED_IN_A_ROW: u32 = 16;
/// Lengths from 2^24 bytes on share the last class.
const CLASSES: usize = 25;

/// How a payload goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SendWay {
    /// The kernel copies it before the call returns.
    Copy,
    /// The kernel reads it where it lies until the notification.
    Lend,
}

impl SendWay {
    const fn other(self) -> Self {
        match self {
            Self::Copy => Self::Lend,
            Self::Lend => Self::Copy,
        }
    }
}

/// What to do with one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it goes out.
    pub way: SendWay,
    /// The caller takes the CPU time of this send and tells it by [`Auto::measured`].
    pub measure: bool,
    /// Why it is copied, where it is.
    pub reason: CopyReason,
}

/// Why a class is served as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Shorter than `ALWAYS_COPIED_BELOW`.
    Short,
    /// The trial is not over.
    Trial,
    /// The last trial says so.
    Measured,
    /// The kernel said that it copied what was lent.
    KernelCopied,
    /// Lent memory was refused: no lending on this socket, or a limit.
    Refused,
}

/// What serves a class of lengths, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Shortest length of the class, bytes.
    pub from_bytes: usize,
    /// Longest length of the class, bytes.
    pub to_bytes: usize,
    /// What serves it.
    pub way: SendWay,
    /// Why.
    pub because: Because,
    /// CPU nanoseconds of a copied send, the lower quartile of the last trial; 0 if there was none.
    pub copy_ns: u64,
    /// CPU nanoseconds of a lent send with its notification, the lower quartile of the last trial;
    /// 0 if there was none.
    pub lend_ns: u64,
    /// Payloads sent in this class.
    pub sends: u64,
    /// Trials that were finished.
    pub trials: u32,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {} bytes: ", self.from_bytes, self.to_bytes)?;
        let way = match self.way {
            SendWay::Copy => "copied",
            SendWay::Lend => "lent",
        };
        match self.because {
            Because::Short => write!(f, "copied, too short to lend"),
            Because::Trial => write!(f, "still being measured"),
            Because::Measured => {
                write!(f, "{way}: copying took {} ns of CPU a send, lending {}", self.copy_ns, self.lend_ns)
            }
            Because::KernelCopied => write!(f, "copied: the kernel copied what was lent"),
            Because::Refused => write!(f, "copied: lending was refused"),
        }
    }
}

/// The policy of one socket.
#[derive(Clone, Debug)]
pub struct Auto {
    classes: Box<[Class]>,
    notification_ns: u64,
    trials_running: bool,
    /// The class that knocked last, until it was heard.
    knocking: Option<usize>,
}

impl Auto {
    /// A policy that knows nothing yet.
    pub fn new() -> Self {
        Self {
            classes: (0..CLASSES).map(Class::new).collect(),
            notification_ns: 0,
            trials_running: true,
            knocking: None,
        }
    }

    fn class_of(len: usize) -> usize {
        (usize::BITS - 1 - len.max(1).leading_zeros()).min(CLASSES as u32 - 1) as usize
    }

    /// How a payload of `len` bytes goes out.
    #[inline]
    pub fn decide(&mut self, len: usize) -> Decision {
        let number = Self::class_of(len);
        let class = &mut self.classes[number];
        if len < ALWAYS_COPIED_BELOW {
            class.choice.sends += 1;
            return Decision { way: SendWay::Copy, measure: false, reason: CopyReason::Small };
        }
        let turn = class.decide();
        if matches!(class.state, TrialState::Knock { .. }) {
            self.knocking = Some(number);
        }
        turn
    }

    /// Whether the caller should read notifications after this send: those of a knock decide what
    /// serves, and while payloads are copied nothing else reads them.
    #[inline]
    pub fn awaits_answer(&mut self) -> bool {
        let Some(number) = self.knocking else { return false };
        let class = &mut self.classes[number];
        if !matches!(class.state, TrialState::Knock { .. }) {
            self.knocking = None;
        }
        class.awaits_answer()
    }

    /// A send with [`Decision::measure`] went `way` and took `ns` nanoseconds of this thread's CPU
    /// time. A caller that should lend but could not says so by [`refused`](Self::refused) instead.
    pub fn measured(&mut self, len: usize, way: SendWay, ns: u64) {
        let notification_ns = self.notification_ns;
        self.classes[Self::class_of(len)].measured(way, ns, notification_ns);
        self.trials_running =
            self.classes.iter().any(|c| c.choice.sends > 0 && matches!(c.state, TrialState::Trial { .. }));
    }

    /// The kernel gave a lent payload of `len` bytes back, and says whether it copied it.
    pub fn notified(&mut self, len: usize, copied: bool) {
        if len >= ALWAYS_COPIED_BELOW {
            self.classes[Self::class_of(len)].notified(copied);
        }
    }

    /// Whether the caller should measure what reading notifications costs now.
    pub fn wants_notification_cost(&self) -> bool {
        self.trials_running
    }

    /// Reading the notifications of `payloads` payloads took `ns` nanoseconds of this thread's CPU
    /// time.
    pub fn notifications_cost(&mut self, payloads: usize, ns: u64) {
        if payloads > 0 {
            let each = ns / payloads as u64;
            // A moving average over some eight readings.
            self.notification_ns =
                if self.notification_ns == 0 { each } else { (self.notification_ns * 7 + each) / 8 };
        }
    }

    /// Lending a payload of `len` bytes was refused; it was copied.
    pub fn refused(&mut self, len: usize) {
        let class = &mut self.classes[Self::class_of(len)];
        if !matches!(class.state, TrialState::Run { way: SendWay::Copy, .. }) {
            class.begin_run(SendWay::Copy, Because::Refused);
        }
    }

    /// What serves each class that was used, and why.
    pub fn choices(&self) -> Vec<Choice> {
        self.classes.iter().map(|class| &class.choice).filter(|choice| choice.sends > 0).cloned().collect()
    }
}

#[cfg(test)]
mod tests;
