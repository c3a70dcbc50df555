//! How an [`XdpSender`](super::XdpSender) is opened.

use std::time::Duration;
use zerowire_wire::setters;

use super::resident::Residents;
use crate::send::frame::ETHERNET_HEADER_BYTES;
use zerowire_sys::xdp::{MIN_CHUNK_BYTES, Mode, SAFE_PIECES, XdpError};
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;

/// More places than this are of no use: rings have fewer entries.
const MAX_FRAMES: u32 = 1 << 20;

/// How a sender is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SenderOptions {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: String,
    /// Number of its queue, from 0.
    pub queue: u32,
    /// Copy or not.
    pub mode: Mode,
    /// Frames that can be built or on their way at once, beside resident ones: 1 to 2^20.
    pub frames: u32,
    /// Bytes of the longest frame that can be built or loaded; 0 for what the MTU takes when the
    /// sender is opened.
    pub max_frame_bytes: usize,
    /// Bytes of memory for frames that are loaded once
    /// ([`XdpSender::load`](super::XdpSender::load)).
    pub resident_bytes: usize,
    /// Huge pages of 2 MiB for all of the memory.
    pub huge_pages: bool,
    /// Entries of the transmit and the completion ring, a power of two: pieces of frames that can
    /// be on their way at once.
    pub ring: u32,
    /// How long to wait for the kernel to let go of a queue whose socket was closed, or of locked
    /// memory.
    pub busy_timeout: Duration,
}

impl SenderOptions {
    /// Queue 0, mode auto, 2048 frames as long as the MTU takes, rings of 2048, nothing resident.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: 0,
            mode: Mode::Auto,
            frames: 2048,
            max_frame_bytes: 0,
            resident_bytes: 0,
            huge_pages: false,
            ring: 2048,
            busy_timeout: Duration::from_millis(500),
        }
    }

    setters! {
        queue: u32,
        mode: Mode,
        frames: u32,
        max_frame_bytes: usize,
        resident_bytes: usize,
        huge_pages: bool,
        ring: u32,
        busy_timeout: Duration,
    }
}

/// How the memory is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UmemCut {
    pub chunk: usize,
    /// Bytes from one place to the next: whole chunks.
    pub slot: usize,
    /// Bytes of all places.
    pub building: usize,
    /// Bytes for resident frames.
    pub resident: usize,
}

/// Half a page is enough for a frame of an MTU of 1500, and twice as many fit.
pub(super) fn chunk_bytes(max_frame: usize) -> usize {
    if max_frame <= MIN_CHUNK_BYTES as usize { MIN_CHUNK_BYTES as usize } else { 4096 }
}

impl UmemCut {
    pub(super) fn new(options: &SenderOptions, mtu: usize) -> Result<Self, XdpError> {
        let wrong = |name, value: usize, rule| Err(XdpError::Value { name, value: value as u64, rule });
        let max_frame = match options.max_frame_bytes {
            0 => mtu + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES,
            n => n,
        };
        let chunk = chunk_bytes(max_frame);
        let most = SAFE_PIECES * chunk;
        if max_frame < ETHERNET_HEADER_BYTES || max_frame > most {
            let rule = format!("take {ETHERNET_HEADER_BYTES} to {most} bytes");
            return wrong("the longest frame", max_frame, rule);
        }
        if options.frames == 0 || options.frames > MAX_FRAMES {
            return wrong("the number of frames", options.frames as usize, format!("take 1 to {MAX_FRAMES}"));
        }
        if (options.ring as usize) < max_frame.div_ceil(chunk) {
            let rule = format!("the pieces of one frame of {max_frame} bytes don't fit");
            return wrong("the transmit ring", options.ring as usize, rule);
        }
        let slot = max_frame.next_multiple_of(chunk);
        let too_much = || XdpError::NoMemory { need_bytes: u64::MAX };
        let building = slot.checked_mul(options.frames as usize).ok_or_else(too_much)?;
        let resident = options.resident_bytes.checked_next_multiple_of(chunk).ok_or_else(too_much)?;
        building.checked_add(resident).ok_or_else(too_much)?;
        Ok(Self { chunk, slot, building, resident })
    }
}

impl SenderOptions {
    /// Bytes of resident memory ([`resident_bytes`](Self::resident_bytes)) that frames of these
    /// lengths need, for a sender whose longest frame is `max_frame_bytes`. None if that is more
    /// than there are addresses.
    pub fn resident_bytes_for(
        max_frame_bytes: usize,
        frames: impl IntoIterator<Item = usize>,
    ) -> Option<usize> {
        Residents::needed(chunk_bytes(max_frame_bytes), frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_whole_chunks() {
        let options = SenderOptions { frames: 10, resident_bytes: 1, ..SenderOptions::new("x") };
        let cut = UmemCut::new(&options, 1500).expect("a cut");
        assert_eq!(cut, UmemCut { chunk: 2048, slot: 2048, building: 20480, resident: 2048 });
        let cut = UmemCut::new(&options, 9000).expect("a cut");
        assert_eq!((cut.chunk, cut.slot), (4096, 12288));
        let cut = UmemCut::new(&options, 65535).expect("a cut");
        assert_eq!(cut.slot, 17 * 4096);
    }

    #[test]
    fn values_out_of_bounds_are_named() {
        let good = SenderOptions::new("x");
        for (options, mtu, word) in [
            (SenderOptions { max_frame_bytes: 13, ..good.clone() }, 1500, "13"),
            (SenderOptions { max_frame_bytes: 17 * 4096 + 1, ..good.clone() }, 1500, "69633"),
            (SenderOptions { frames: 0, ..good.clone() }, 1500, "number of frames is 0"),
            (SenderOptions { ring: 2, ..good.clone() }, 9000, "transmit ring is 2"),
        ] {
            let text = UmemCut::new(&options, mtu).expect_err("refused").to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
