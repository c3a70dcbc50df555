//! The loop that sends: takes the frames that are due, hands them over in batches, waits for the
//! next.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use zerowire::send::frame::FrameError;

use super::clock::Clock;
use super::feed::{Feed, Peek};
use super::port::ReplayPort;
use super::timing::ReplayPace;
use crate::stop::TransferStop;

/// Frames handed over at once, at most. With this many, the system call costs little, and the
/// engine still looks often at signals, the clock and the ring's other end.
const BATCH: usize = 256;

/// If no frame at all comes back for this long, the queue is stuck.
pub const STUCK: Duration = Duration::from_secs(30);

/// The same after a signal: the user wants an end.
const STUCK_AFTER_SIGNAL: Duration = Duration::from_secs(2);

/// How often a wait is interrupted to look around.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// While frames may wait for room in the kernel: nanoseconds until they are offered again.
const OFFER_AGAIN: u64 = 1_000_000;

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct ReplayPlan {
    /// How fast.
    pub pace: ReplayPace,
    /// Passes through the capture; None until stopped.
    pub passes: Option<u64>,
    /// Frames in all.
    pub limit: Option<u64>,
    /// Time.
    pub duration: Option<Duration>,
}

/// Why sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// All passes are done.
    Done,
    /// --limit.
    Limit,
    /// --duration.
    Duration,
    /// A signal, by number.
    Signal(u8),
    /// An error.
    Failed,
}

/// What happened.
#[derive(Debug)]
pub struct ReplayOutcome {
    /// Why it ended.
    pub end: ReplayEnd,
    /// Passes that were completed.
    pub passes: u64,
    /// Frames given to the port.
    pub pushed: u64,
    /// From the first frame until the last one was back.
    pub took: Duration,
    /// How late the latest frame was given to the port, nanoseconds; 0 at top speed.
    pub latest: u64,
    /// What went wrong.
    pub error: Option<anyhow::Error>,
}

struct ReplayRun<'a> {
    feed: &'a mut dyn Feed,
    port: &'a mut dyn ReplayPort,
    plan: &'a ReplayPlan,
    clock: Clock,
    passes: u64,
    pushed: u64,
    bytes: u64,
    latest: u64,
    /// Recorded time at which this pass began, and of the latest frame in it.
    pass_begin: u64,
    last_due: u64,
    pass_frames: u64,
    /// The port may take frames in rows, which all are due.
    rows: bool,
}

/// What ended a batch.
enum BatchEnd {
    /// It is full: go on.
    More,
    /// The next frame is due then.
    Due(u64),
    /// The next frame is not read yet.
    Read,
    /// The port has no place.
    Full,
    End(ReplayEnd),
}

/// Sends. A signal of `stop` ends it; `tick` is called now and then with frames and bytes so far.
pub fn run(
    feed: &mut dyn Feed,
    port: &mut dyn ReplayPort,
    plan: &ReplayPlan,
    stop: &TransferStop,
    tick: &mut dyn FnMut(u64, u64),
) -> ReplayOutcome {
    let mut run = ReplayRun {
        feed,
        port,
        plan,
        clock: Clock::start(),
        passes: 0,
        pushed: 0,
        bytes: 0,
        latest: 0,
        pass_begin: 0,
        last_due: 0,
        pass_frames: 0,
        rows: plan.pace == ReplayPace::Top,
    };
    let result = run.send(stop, tick);
    let (end, mut error) = match result {
        Ok(end) => (end, None),
        Err(e) => (ReplayEnd::Failed, Some(e)),
    };
    // Also after an error: what was handed over may still go.
    let drained = run.drain(stop, if error.is_some() { Duration::ZERO } else { STUCK });
    let end = match (drained, stop.signal()) {
        // It came while the last frames were waited for.
        (Err(_), Some(signal)) if error.is_none() => ReplayEnd::Signal(signal),
        (Err(e), _) if error.is_none() => {
            error = Some(e);
            ReplayEnd::Failed
        }
        _ => end,
    };
    tick(run.pushed, run.bytes);
    ReplayOutcome {
        end,
        passes: run.passes,
        pushed: run.pushed,
        took: Duration::from_nanos(run.clock.now()),
        latest: run.latest,
        error,
    }
}

impl ReplayRun<'_> {
    fn send(&mut self, stop: &TransferStop, tick: &mut dyn FnMut(u64, u64)) -> Result<ReplayEnd> {
        let mut now = self.clock.now();
        let end_at = self.plan.duration.map_or(u64::MAX, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let mut moved_at = now;
        loop {
            if let Some(signal) = stop.signal() {
                return Ok(ReplayEnd::Signal(signal));
            }
            if now >= end_at {
                return Ok(ReplayEnd::Duration);
            }
            tick(self.pushed, self.bytes);
            let next = self.batch(now)?;
            self.port.flush().map_err(|e| self.explain(e))?;
            let back = self.port.reap();
            if back > 0 || self.port.outstanding() == 0 {
                moved_at = now;
            }
            now = match next {
                BatchEnd::More => self.clock.now(),
                // Places came back meanwhile.
                BatchEnd::Full if back > 0 => self.clock.now(),
                BatchEnd::End(end) => return Ok(end),
                BatchEnd::Due(due) => {
                    let mut until = due.min(end_at);
                    if self.port.outstanding() > 0 {
                        until = until.min(now + OFFER_AGAIN);
                    }
                    self.clock.wait(until)
                }
                BatchEnd::Read => {
                    let busy = self.port.outstanding() > 0;
                    self.feed.wait(if busy { Duration::from_nanos(OFFER_AGAIN) } else { LOOK_AROUND })?;
                    self.clock.now()
                }
                BatchEnd::Full => {
                    let room = self.port.wait(LOOK_AROUND).map_err(|e| self.explain(e))?;
                    let now = self.clock.now();
                    if room {
                        moved_at = now;
                    } else if now - moved_at > STUCK.as_nanos() as u64 {
                        let waited = Duration::from_nanos(now - moved_at);
                        self.port.drain(Duration::ZERO).map_err(|e| self.explain(stuck(e, waited)))?;
                    }
                    now
                }
            };
        }
    }

    /// Pushes what is due.
    fn batch(&mut self, now: u64) -> Result<BatchEnd> {
        let mut left = BATCH;
        while left > 0 {
            if self.plan.limit.is_some_and(|n| self.pushed >= n) {
                return Ok(BatchEnd::End(ReplayEnd::Limit));
            }
            match self.row(left)? {
                Some(0) => return Ok(BatchEnd::Full),
                Some(count) => {
                    left -= count;
                    continue;
                }
                None => left -= 1,
            }
            let frame = match self.feed.peek()? {
                Peek::Frame(frame) => frame,
                Peek::Wait => return Ok(BatchEnd::Read),
                Peek::End => {
                    if self.end_pass()? {
                        return Ok(BatchEnd::End(ReplayEnd::Done));
                    }
                    continue;
                }
            };
            let due = self.plan.pace.due(frame.due, self.pass_begin, self.pushed, self.bytes);
            if due > now {
                return Ok(BatchEnd::Due(due));
            }
            let (len, frame_due) = (frame.len as u64, frame.due);
            match self.port.push(&frame) {
                Ok(true) => {}
                Ok(false) => return Ok(BatchEnd::Full),
                Err(e) => return Err(self.explain(e)),
            }
            if self.plan.pace != ReplayPace::Top {
                self.latest = self.latest.max(now - due);
            }
            self.pushed += 1;
            self.bytes += len;
            self.pass_frames += 1;
            self.last_due = frame_due;
            self.feed.advance();
        }
        Ok(BatchEnd::More)
    }

    /// Pushes up to `max` frames at once, where they are there and the port can. How many; 0: it
    /// has no place.
    fn row(&mut self, max: usize) -> Result<Option<usize>> {
        if !self.rows {
            return Ok(None);
        }
        let limit = self.plan.limit.map_or(u64::MAX, |n| n - self.pushed);
        let count = self.feed.row(usize::try_from(limit).unwrap_or(usize::MAX).min(max));
        if count == 0 {
            return Ok(None);
        }
        let Some(pushed) = self.port.push_row(count) else {
            self.rows = false;
            return Ok(None);
        };
        let pushed = pushed.map_err(|e| self.explain(e))?;
        if pushed > 0 {
            let (bytes, due) = self.feed.skip(pushed);
            self.pushed += pushed as u64;
            self.bytes += bytes;
            self.pass_frames += pushed as u64;
            self.last_due = due;
        }
        Ok(Some(pushed))
    }

    /// Ends a pass; whether it was the last. The next one begins right after the last frame.
    fn end_pass(&mut self) -> Result<bool> {
        if self.pass_frames == 0 {
            bail!("the capture has no frames any more: the file changed while it was sent");
        }
        self.passes += 1;
        if self.plan.passes == Some(self.passes) {
            return Ok(true);
        }
        self.pass_begin = self.pass_begin.saturating_add(self.last_due);
        (self.last_due, self.pass_frames) = (0, 0);
        self.feed.rewind()?;
        Ok(false)
    }

    /// Waits until all frames are back, as long as some come back.
    fn drain(&mut self, stop: &TransferStop, patience: Duration) -> Result<()> {
        let mut left = self.port.outstanding();
        let mut moved_at = self.clock.now();
        loop {
            let error = match self.port.drain(LOOK_AROUND) {
                Ok(()) => return Ok(()),
                Err(e @ FrameError::Stuck { .. }) => e,
                Err(e) => return Err(self.explain(e)),
            };
            let now = self.clock.now();
            let waited = Duration::from_nanos(now - moved_at);
            if self.port.outstanding() < left {
                (left, moved_at) = (self.port.outstanding(), now);
            }
            let patience = match stop.signal() {
                None => patience,
                Some(_) => patience.min(STUCK_AFTER_SIGNAL),
            };
            if waited >= patience {
                return Err(self.explain(stuck(error, waited)));
            }
        }
    }

    /// Names the packet that an error speaks of, where that is known.
    fn explain(&self, e: FrameError) -> anyhow::Error {
        let number = match &e {
            FrameError::Refused { number, .. } | FrameError::LongerThanMtu { number, .. } => Some(*number),
            _ => None,
        };
        // Frames are numbered over all passes, which are equally long.
        let in_a_pass = (self.pushed - self.pass_frames).checked_div(self.passes).unwrap_or(u64::MAX);
        let packet = number.and_then(|n| self.feed.packet((n % in_a_pass.max(1)) as usize));
        let e = match e {
            FrameError::LongerThanMtu { .. } => {
                anyhow!("{e} ('--oversized gso'), or leave it out ('--oversized skip')")
            }
            e => e.into(),
        };
        match packet {
            Some(p) => e.context(format!("packet {p} of the capture")),
            None => e,
        }
    }
}

/// The error with the time since a frame came back last, in place of the time since the last look.
fn stuck(mut e: FrameError, since: Duration) -> FrameError {
    if let FrameError::Stuck { waited, .. } = &mut e {
        *waited = since;
    }
    e
}
