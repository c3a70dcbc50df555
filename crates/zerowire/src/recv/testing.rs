//! For measuring, what a lease and its refill cost, without a socket; and for fuzzing.

use super::core::{Placed, RecvConnection, RecvState, SocketShape};
use super::lease::Filled;
use super::receiver::new_core;
use super::{Arrival, ConnectionId, RecvError, RecvOptions, multishot, zcrx};

pub use super::refill::{Back, Returns, Word};

/// A connection without a socket.
pub(super) fn connect(core: &mut RecvState) {
    let id = ConnectionId { place: 0, generation: 0 };
    core.connections.push(RecvConnection::new(id, SocketShape::Stream));
    core.holdings.grow(1);
}

/// The receiver's own part: buffers are lent, dropped by whoever took them, and collected, with no
/// kernel involved.
pub struct Cycle {
    core: RecvState,
}

impl Cycle {
    /// With the area and the book of a receiver of these options.
    ///
    /// # Errors
    /// As [`Receiver::new`](super::Receiver::new).
    pub fn new(options: &RecvOptions) -> Result<Self, RecvError> {
        let mut core = new_core(options)?;
        connect(&mut core);
        Ok(Self { core })
    }

    /// Lends up to `count` buffers of one byte each; returns how many.
    pub fn lend(&mut self, count: usize, out: &mut Vec<Arrival>) -> usize {
        for _ in 0..count {
            let Some(slot) = self.core.holdings.take() else { break };
            // SAFETY: the slot was just taken, and no kernel knows of this memory.
            let filled = unsafe { Filled::buffer(slot, 1, self.core.buffer_bytes) };
            self.core.deliver(0, filled, Placed::ByKernel);
        }
        self.core.take_arrivals(out)
    }

    /// Takes back what was dropped; returns the buffers that are free.
    pub fn collect(&mut self) -> usize {
        self.core.collect(|_| {});
        self.core.eased.clear();
        self.core.holdings.free()
    }
}

/// All that a lease and its refill cost the program's side. A completion is taken, its buffers are
/// lent, dropped by whoever took them, collected, and handed to the kernel, which is not there.
pub struct Refill(Way);

enum Way {
    Multishot(Box<multishot::testing::cycle::Cycle>),
    Zcrx(Box<zcrx::testing::cycle::Cycle>),
}

impl Refill {
    /// By the ring of provided buffers (`multishot`), whatever back end the options name.
    ///
    /// # Errors
    /// As [`Receiver::new`](super::Receiver::new).
    pub fn multishot(options: &RecvOptions) -> Result<Self, RecvError> {
        Ok(Self(Way::Multishot(Box::new(multishot::testing::cycle::Cycle::new(options)?))))
    }

    /// By the refill ring of zero-copy receive (`nodev`, `queue`); the options name one of them.
    ///
    /// # Errors
    /// As [`Receiver::new`](super::Receiver::new).
    pub fn zcrx(options: &RecvOptions) -> Result<Self, RecvError> {
        Ok(Self(Way::Zcrx(Box::new(zcrx::testing::cycle::Cycle::new(options)?))))
    }

    /// Lends up to `count` full buffers.
    pub fn lend(&mut self, count: usize, out: &mut Vec<Arrival>) {
        match &mut self.0 {
            Way::Multishot(cycle) => cycle.lend(count, out),
            Way::Zcrx(cycle) => cycle.lend(count, out),
        }
    }

    /// Collects what was dropped and hands it over. Also to be called before the first lease.
    pub fn refill(&mut self) {
        match &mut self.0 {
            Way::Multishot(cycle) => cycle.refill(),
            Way::Zcrx(cycle) => cycle.refill(),
        }
    }
}

/// Plays completions to the state machine of multishot receive, as `script` says. They are those of
/// a kernel, and, if its first byte is odd, also those that no kernel sends.
///
/// # Panics
/// When a buffer is lent twice or lost, or a lease lies outside its buffer.
pub fn play_multishot(script: &[u8]) {
    super::multishot::testing::play::play(script);
}

/// The same for the state machine of zero-copy receive (zcrx).
///
/// # Panics
/// When a piece of the area is lent twice or lost, or a lease lies outside the area.
pub fn play_zcrx(script: &[u8]) {
    super::zcrx::testing::play::play(script);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recv::{RecvBackend, What};

    /// What is measured is what happens: each buffer is lent in turn, and again when it has come
    /// back.
    #[test]
    fn buffers_go_round() {
        let options =
            RecvOptions { buffer_bytes: 4096, buffers: 64, share: Some(64), ..RecvOptions::default() };
        let nodev = RecvOptions { backend: RecvBackend::NoDevice, ..options.clone() };
        for mut refill in [Refill::multishot(&options).unwrap(), Refill::zcrx(&nodev).unwrap()] {
            let mut out = Vec::new();
            for round in 0..100 {
                refill.refill();
                refill.lend(8, &mut out);
                assert_eq!(out.len(), 8, "round {round}");
                for arrival in out.drain(..) {
                    assert!(matches!(&arrival.what, What::Data(lease) if lease.len() == 4096), "{arrival:?}");
                }
            }
        }
    }
}
