//! The areas that are registered with a ring as fixed buffers.

use super::error::EngineError;
use crate::area::Area;
use crate::memlock::locked_limit;
use std::io;
use zerowire_sys::uring::ring::SendRing;

/// Places in the ring's table of buffers: as many as one ring's areas may need, at 8 bytes a place.
const PLACES: u32 = 256;
/// The longest range that one place takes (io_uring/rsrc.c, `io_buffer_validate`).
const MAX_PLACE_BYTES: usize = 1 << 30;

#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    len: usize,
}

impl Range {
    fn holds(&self, piece: &libc::iovec) -> bool {
        let at = (piece.iov_base as usize).wrapping_sub(self.start);
        at < self.len && piece.iov_len <= self.len - at
    }
}

/// Registered memory. It keeps the areas mapped until the ring is gone.
#[derive(Debug, Default)]
pub(super) struct Areas {
    ranges: Vec<Range>,
    /// Registered wholly.
    areas: Vec<Area>,
    /// Registered wholly or in part: all that must stay mapped.
    parts: Vec<Area>,
    /// Why areas are not registered.
    pub(super) refusal: Option<String>,
}

impl Areas {
    /// Registers `area`, all of it or nothing that matters: a part that was registered before a
    /// failure stays pinned, and is of use.
    pub(super) fn register(&mut self, ring: &SendRing, area: &Area) -> Result<(), EngineError> {
        if self.areas.iter().any(|a| a.id() == area.id()) {
            return Ok(());
        }
        if self.parts.is_empty() && self.ranges.is_empty() {
            match ring.prepare_buffers(PLACES) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
                Err(cause) => return Err(EngineError::Register { len: area.len(), cause }),
            }
        }
        let len = area.len();
        let places = len.div_ceil(MAX_PLACE_BYTES);
        if self.ranges.len() + places > PLACES as usize {
            return Err(EngineError::TooManyAreas { places: PLACES as usize, len });
        }
        if !self.parts.iter().any(|a| a.id() == area.id()) {
            self.parts.push(area.clone());
        }
        for k in 0..places {
            let start = area.base().wrapping_add(k * MAX_PLACE_BYTES);
            let part = (len - k * MAX_PLACE_BYTES).min(MAX_PLACE_BYTES);
            if self.ranges.iter().any(|r| r.start == start as usize) {
                // From an attempt that failed further on.
                continue;
            }
            if let Err(cause) = ring.register_buffer(self.ranges.len() as u16, start, part) {
                return Err(refused(len, cause));
            }
            self.ranges.push(Range { start: start as usize, len: part });
        }
        self.areas.push(area.clone());
        Ok(())
    }

    /// Registers the same areas with the ring that takes the place of the first one.
    pub(super) fn register_again(&mut self, ring: &SendRing) {
        self.ranges.clear();
        let areas = std::mem::take(&mut self.areas);
        // The ring before no longer needs its parts: its pages are its own.
        self.parts.clear();
        for area in areas {
            if let Err(e) = self.register(ring, &area) {
                tracing::warn!("{e}");
                self.refusal = Some(e.to_string());
            }
        }
    }

    /// The place that all pieces lie in.
    pub(super) fn place_of(&self, pieces: &[libc::iovec]) -> Option<u16> {
        let first = pieces.first()?;
        let place = self.ranges.iter().position(|r| r.holds(first))?;
        pieces.iter().all(|p| self.ranges[place].holds(p)).then_some(place as u16)
    }

    /// Registered bytes.
    pub(super) fn bytes(&self) -> usize {
        self.ranges.iter().map(|r| r.len).sum()
    }
}

fn refused(len: usize, cause: io::Error) -> EngineError {
    if cause.raw_os_error() != Some(libc::ENOMEM) {
        return EngineError::Register { len, cause };
    }
    EngineError::Memlock { len, limit: locked_limit() }
}
