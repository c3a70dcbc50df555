//! The packet ring (PACKET_TX_RING).

use std::time::Duration;

use zerowire::ledger::Totals;
use zerowire::packet::{OpenError, PacketOptions, PacketRing, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender as _};

use super::super::store::{ReplayFrame, Store};
use super::{NotResident, Outside, ReplayPort, sends_by};

/// Places of a ring, if the capture doesn't ask for more: enough that the kernel always has some
/// while others are filled.
const SLOTS: usize = 1024;

/// Bytes that a ring of [`SLOTS`] places may take at most; with long frames it has fewer places.
const RING_BYTES: usize = 64 << 20;

/// Frames through a ring.
pub struct RingPort {
    ring: PacketRing,
    resident: bool,
    outside: Outside,
}

impl RingPort {
    /// A ring that frames are copied into as they come, up to `longest` bytes each.
    pub fn open(interface: &str, options: &PacketOptions) -> Result<Self, OpenError> {
        let slots = slots(options);
        let ring = PacketRing::open(interface, &options.clone().slots(slots))?;
        Ok(Self { ring, resident: false, outside: Outside::default() })
    }

    /// A ring that holds all frames of `store`, a small capture several times over. It takes
    /// `memory` bytes at most.
    pub fn resident(
        interface: &str,
        options: &PacketOptions,
        store: &Store,
        memory: usize,
    ) -> Result<Self, NotResident> {
        let frames = store.len().max(1);
        let copies = (slots(options) / frames).max(1);
        let slots = frames * copies;
        let options = &options.clone().slots(slots);
        let bytes = options.ring_bytes().map_err(|e| NotResident::Room(e.to_string()))?;
        if bytes > memory {
            return Err(NotResident::Room(format!(
                "{bytes} bytes of ring ({slots} places) are more than --max-memory"
            )));
        }
        let ring = PacketRing::open(interface, options);
        let mut ring = ring.map_err(|e| match e {
            OpenError::Slots { .. } | OpenError::RingBytes { .. } | OpenError::NoMemory { .. } => {
                NotResident::Room(e.to_string())
            }
            e => NotResident::Failed(e.into()),
        })?;
        for slot in 0..slots {
            if let Some(f) = store.get(slot % frames) {
                ring.load(slot, &f.header, f.bytes).map_err(|e| NotResident::Failed(e.into()))?;
            }
        }
        Ok(Self { ring, resident: true, outside: Outside::default() })
    }
}

/// Bytes of a place, about: the ring rounds up to a power of two, or to pages.
fn slot_bytes(options: &PacketOptions) -> usize {
    let bytes = options.frame_bytes.unwrap_or(zerowire::packet::MAX_FRAME_BYTES) + 64;
    if bytes <= 4096 { bytes.next_power_of_two() } else { bytes.next_multiple_of(4096) }
}

fn slots(options: &PacketOptions) -> usize {
    SLOTS.min(RING_BYTES / slot_bytes(options)).max(16)
}

impl ReplayPort for RingPort {
    sends_by!(ring);

    #[inline]
    fn push(&mut self, frame: &ReplayFrame<'_>) -> Result<bool, FrameError> {
        if self.resident {
            return Ok(self.ring.send_loaded(1)? == 1);
        }
        if frame.header == VnetHeader::NONE {
            return self.ring.push_copy(frame.bytes);
        }
        let pushed =
            self.ring.push_offload(&frame.header, frame.len, &mut |to| to.copy_from_slice(frame.bytes))?;
        if pushed {
            self.outside.count(frame.len);
        }
        Ok(pushed)
    }

    fn push_row(&mut self, count: usize) -> Option<Result<usize, FrameError>> {
        self.resident.then(|| self.ring.send_loaded(count))
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        self.ring.wait(timeout)
    }

    fn totals(&self) -> Totals {
        self.outside.correct(self.ring.counters().snapshot())
    }
}
