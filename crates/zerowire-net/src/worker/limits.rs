//! How a queue pair keeps to the limits of its VM.
//!
//! Frames from the guest are counted as they are taken from the ring, and those beyond the limit
//! stay there. The length of a frame to the guest is known only when it was read. So the receive
//! side gets a number of frames that it may read, and their bytes are counted behind the turn.

use std::time::Instant;

use zerowire::ledger::Counters;
use zerowire_vhost::limit::{Allowance, LimitPace, Limiter, Meter};

use crate::receive::Inlet;
use crate::transmit::Outlet;
use crate::{MAX_FRAME_BYTES, Receive, Transmit};

/// How a queue pair keeps to the limits of its VM.
#[derive(Debug, Default)]
pub(super) struct PairLimits {
    pub(super) transmit: LimitPace,
    pub(super) receive: LimitPace,
    /// Bytes of a frame to the guest, of the last that came from the port.
    likely_bytes: u64,
    /// Frames and bytes that were delivered when this was looked at last; None without a limit.
    delivered: Option<(u64, u64)>,
}

impl PairLimits {
    /// A turn of the transmit side begins.
    #[inline]
    pub(super) fn begin_transmit<O: Outlet>(&mut self, limiter: &Limiter, side: &mut Transmit<O>) {
        if let Some(allowed) = self.transmit.begin(limiter, Instant::now) {
            side.meter = Meter::new(allowed);
        }
    }

    /// It has ended.
    #[inline]
    pub(super) fn end_transmit<O: Outlet>(&mut self, limiter: &Limiter, side: &Transmit<O>) {
        if !self.transmit.is_on() {
            return;
        }
        self.transmit.passed(limiter, side.meter.passed(), Instant::now);
        if side.meter.is_cut() {
            self.transmit.hold(limiter);
        }
    }

    /// A turn of the receive side begins. Returns false if it may take nothing: frames wait in the
    /// port.
    #[inline]
    pub(super) fn begin_receive<I: Inlet>(
        &mut self,
        limiter: &Limiter,
        side: &mut Receive<I>,
        counters: &Counters,
    ) -> bool {
        let Some(allowed) = self.receive.begin(limiter, Instant::now) else { return true };
        if allowed == Allowance::ALL {
            self.delivered = None;
            side.limit(usize::MAX);
            return true;
        }
        // What came between two turns is this process's own, such as answers of the metadata
        // service. It has gone, and says nothing of the frames that wait in the port.
        match self.delivered {
            Some(_) => _ = self.pay(limiter, side.header_len(), counters),
            None => self.delivered = Some(counters.delivered()),
        }
        let frames = allowed.blind(self.likely_bytes, MAX_FRAME_BYTES as u64);
        side.limit(frames);
        if frames == 0 {
            self.receive.hold(limiter);
        }
        frames > 0
    }

    /// It has ended.
    #[inline]
    pub(super) fn end_receive(&mut self, limiter: &Limiter, header_len: usize, counters: &Counters) {
        let (frames, bytes) = self.pay(limiter, header_len, counters);
        if let Some(likely) = bytes.checked_div(frames) {
            self.likely_bytes = likely;
        }
    }

    /// Takes tokens for what was delivered since the last call. Returns frames and their bytes.
    fn pay(&mut self, limiter: &Limiter, header_len: usize, counters: &Counters) -> (u64, u64) {
        let Some((frames_before, bytes_before)) = self.delivered else { return (0, 0) };
        let (frames, bytes) = counters.delivered();
        self.delivered = Some((frames, bytes));
        let frames = frames.saturating_sub(frames_before);
        let headers = frames.saturating_mul(header_len as u64);
        let passed = (frames, bytes.saturating_sub(bytes_before).saturating_sub(headers));
        self.receive.passed(limiter, passed, Instant::now);
        passed
    }
}

#[cfg(test)]
mod tests;
