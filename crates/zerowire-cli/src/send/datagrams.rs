//! How long datagrams are, and who cuts what was read into them.

use std::num::NonZeroU16;
use std::os::fd::AsFd;

use anyhow::{Result, bail};
use serde::Serialize;
use zerowire::send::{SendError, longest_segment};

/// Payload of a datagram without --datagram, if the path takes as much in one packet.
const USUAL_BYTES: usize = 1400;
/// What a segmented UDP send carries at most: 65 507 bytes fit an IPv4 datagram, and 64 segments is
/// what all kernels take.
const MAX_BYTES: usize = 65_507;
const MAX_SEGMENTS: usize = 64;

/// The datagrams of one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Datagrams {
    /// Payload of each, but for the last of what was read.
    pub bytes: usize,
    /// Several go in one call, and the kernel or the NIC cuts them.
    pub segmented: bool,
    /// Why not, where several were to.
    pub unsegmented_because: Option<String>,
    /// As many as are read and handed over together.
    #[serde(skip)]
    together: usize,
}

impl Datagrams {
    /// What goes to `socket` when datagrams of `asked` bytes were asked for.
    pub fn plan(asked: Option<usize>, socket: impl AsFd, is_unix: bool) -> Result<Self> {
        check(asked)?;
        let longest = longest_segment(socket).map(usize::from).filter(|n| *n > 0);
        Ok(Self::of(asked, longest, is_unix))
    }

    fn of(asked: Option<usize>, longest: Option<usize>, is_unix: bool) -> Self {
        let bytes = asked.unwrap_or_else(|| longest.map_or(USUAL_BYTES, |longest| longest.min(USUAL_BYTES)));
        let together = if is_unix { 1 } else { (MAX_BYTES / bytes).min(MAX_SEGMENTS) };
        let fits = u16::try_from(bytes).is_ok() && longest.is_none_or(|longest| bytes <= longest);
        let why = |longest| {
            format!(
                "{bytes} bytes are longer than the {longest} that the path takes in one packet, and the kernel cuts no fragments"
            )
        };
        Self {
            bytes,
            segmented: together > 1 && fits,
            unsegmented_because: longest.filter(|_| together > 1 && !fits).map(why),
            together,
        }
    }

    /// Bytes that are read and handed over together.
    pub fn chunk(&self) -> usize {
        self.together * self.bytes
    }

    /// The length at which the kernel cuts.
    pub fn segment(&self) -> Option<NonZeroU16> {
        u16::try_from(self.bytes).ok().and_then(NonZeroU16::new).filter(|_| self.segmented)
    }

    /// Whether to cut what was read before it is sent.
    pub fn cut_here(&self) -> bool {
        !self.segmented && self.together > 1
    }

    /// After an error that says so nothing is cut by the kernel any more. False: it says something
    /// else.
    pub fn give_up_segments(&mut self, e: &SendError) -> bool {
        let is_of_segments =
            matches!(e, SendError::SegmentTooLong { .. } | SendError::SegmentsRefused { .. });
        if !is_of_segments || !self.segmented {
            return false;
        }
        self.segmented = false;
        self.unsegmented_because = Some(e.to_string());
        true
    }
}

/// Fails if datagrams can't have `asked` bytes.
pub fn check(asked: Option<usize>) -> Result<()> {
    match asked {
        Some(bytes) if !(1..=MAX_BYTES).contains(&bytes) => {
            bail!("--datagram {bytes} is not between 1 and {MAX_BYTES} bytes")
        }
        _ => Ok(()),
    }
}

impl std::fmt::Display for Datagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "datagrams of {} bytes, ", self.bytes)?;
        match (self.segmented, &self.unsegmented_because) {
            (true, _) => write!(f, "up to {} in one call (UDP_SEGMENT)", self.together),
            (false, None) => write!(f, "one in a call"),
            (false, Some(why)) => write!(f, "not segmented: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
