//! When each frame is due. Plain code, without a clock.
//!
//! All times are nanoseconds since the first frame. Each is worked out from the beginning, never
//! from the time of the frame before. So a late frame doesn't move the ones behind it, and no error
//! adds up.

use std::time::Duration;

use clap::ValueEnum;

use super::capture::CapturedPacket;

/// What to do where a packet's time is before that of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backwards {
    /// Refuse the capture.
    Fail,
    /// Send it right after its predecessor.
    Send,
}

/// A time that can't be kept, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The packet has none.
    #[error(
        "packet {0} has no time (a simple packet block): the recorded speed can't be kept; give --pps, --mbps or \
         --topspeed"
    )]
    None(u64),
    /// It goes back.
    #[error(
        "packet {number} was recorded {nanoseconds} ns before its predecessor: the recorded speed can't be kept; \
         --backwards send sends such packets right after their predecessors, 'reordercap IN OUT' sorts a capture, and \
         --pps, --mbps and --topspeed need no times"
    )]
    Backwards { number: u64, nanoseconds: u128 },
}

/// Turns the times of a capture into nanoseconds since its first packet.
#[derive(Clone, Debug)]
pub struct Timeline {
    used: bool,
    backwards: Backwards,
    max_gap: u64,
    last: Option<i128>,
    due: u64,
}

impl Timeline {
    /// At the beginning of a capture. With a pace that doesn't need times all are 0. `max_gap`
    /// shortens longer pauses.
    pub fn new(pace: &ReplayPace, backwards: Backwards, max_gap: Option<Duration>) -> Self {
        let max_gap = max_gap.map_or(u64::MAX, |g| u64::try_from(g.as_nanos()).unwrap_or(u64::MAX));
        Self { used: matches!(pace, ReplayPace::Recorded { .. }), backwards, max_gap, last: None, due: 0 }
    }

    /// When the next packet is due.
    pub fn due(&mut self, packet: &CapturedPacket<'_>) -> Result<u64, TimeError> {
        if !self.used {
            return Ok(0);
        }
        let time = packet.time.ok_or(TimeError::None(packet.number))?;
        let gap = time - self.last.unwrap_or(time);
        if gap < 0 {
            // The latest time stays the measure, so that what follows keeps its distance to it.
            return match self.backwards {
                Backwards::Send => Ok(self.due),
                Backwards::Fail => {
                    Err(TimeError::Backwards { number: packet.number, nanoseconds: gap.unsigned_abs() })
                }
            };
        }
        self.last = Some(time);
        self.due = self.due.saturating_add(u64::try_from(gap).unwrap_or(u64::MAX).min(self.max_gap));
        Ok(self.due)
    }
}

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplayPace {
    /// As recorded, `speed` times as fast.
    Recorded {
        /// 1 for the recorded speed.
        speed: f64,
    },
    /// Frames a second.
    Pps(f64),
    /// 10⁶ bits a second: bytes of the frames, Ethernet header included, without preamble, check
    /// sequence and gap.
    Mbps(f64),
    /// As fast as they go.
    Top,
}

impl ReplayPace {
    /// When a frame is due: `frame_due` in its pass, which begins at `pass_begin` (both in recorded
    /// time), after `frames` frames and `bytes` bytes in all.
    #[inline]
    pub fn due(&self, frame_due: u64, pass_begin: u64, frames: u64, bytes: u64) -> u64 {
        match *self {
            Self::Top => 0,
            Self::Recorded { speed } => {
                let recorded = pass_begin.saturating_add(frame_due);
                if speed == 1.0 { recorded } else { (recorded as f64 / speed) as u64 }
            }
            // Exact to a nanosecond for 104 days (2^53 ns).
            Self::Pps(rate) => (frames as f64 * 1e9 / rate) as u64,
            Self::Mbps(rate) => (bytes as f64 * 8e3 / rate) as u64,
        }
    }

    /// Hours of a pass that is recorded over `span` nanoseconds, if they are one or more. A damaged
    /// time in a capture can make it years.
    pub fn hours(&self, span: u64) -> Option<f64> {
        let Self::Recorded { speed } = *self else { return None };
        let hours = span as f64 / speed / 3.6e12;
        (hours >= 1.0).then_some(hours)
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::Recorded { speed: 1.0 } => "recorded speed".to_owned(),
            Self::Recorded { speed } => format!("{speed} times the recorded speed"),
            Self::Pps(n) => format!("{n} frames/s"),
            Self::Mbps(n) => format!("{n} Mbit/s"),
            Self::Top => "top speed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
