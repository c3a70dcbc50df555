//! For measuring, what a lease and its refill cost, without a socket; and for fuzzing.

use super::core::{Connection, Core, Kind, State};
use super::receiver::new_core;
use super::{Arrival, ConnectionId, Options, RecvError};

/// The receiver's own part: buffers are lent, dropped by whoever took them, and collected, with no kernel involved.
pub struct Cycle {
    core: Core,
}

impl Cycle {
    /// With the area and the book of a receiver of these options.
    ///
    /// # Errors
    /// As [`Receiver::new`](super::Receiver::new).
    pub fn new(options: &Options) -> Result<Self, RecvError> {
        let mut core = new_core(options)?;
        let id = ConnectionId { place: 0, generation: 0 };
        let kind = Kind::Stream;
        core.connections.push(Connection {
            id,
            socket: None,
            kind,
            state: State::Open,
            limit: None,
            paused: false,
        });
        core.holdings.grow(1);
        Ok(Self { core })
    }

    /// Lends up to `count` buffers of one byte each; returns how many.
    pub fn lend(&mut self, count: usize, out: &mut Vec<Arrival>) -> usize {
        let before = out.len();
        for _ in 0..count {
            let Some(slot) = self.core.holdings.take() else { break };
            // SAFETY: the slot was just taken, and no kernel knows of this memory.
            unsafe { self.core.deliver_buffer(out, 0, slot, 1) };
        }
        out.len() - before
    }

    /// Takes back what was dropped; returns the buffers that are free.
    pub fn collect(&mut self) -> usize {
        self.core.collect(|_| {});
        self.core.eased.clear();
        self.core.holdings.free()
    }
}

/// Plays completions to the state machine of multishot receive, as `script` says: those of a kernel, and, if its first byte is
/// odd, those that no kernel sends.
///
/// # Panics
/// When a buffer is lent twice or lost, or a lease lies outside its buffer.
pub fn play_multishot(script: &[u8]) {
    super::multishot::play::play(script);
}

/// The same for the state machine of zero-copy receive (zcrx).
///
/// # Panics
/// When a piece of the area is lent twice or lost, or a lease lies outside the area.
pub fn play_zcrx(script: &[u8]) {
    super::zcrx::play::play(script);
}
