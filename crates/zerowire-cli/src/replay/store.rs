//! Frames in memory: what was read of a capture, ready to be sent.

use zerowire::packet::VnetHeader;

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct ReplayFrame<'a> {
    /// Its place among the frames of the capture, from 0. Packets that are left out have none.
    pub index: usize,
    /// When it is due in its pass, nanoseconds.
    pub due: u64,
    /// Offload.
    pub header: VnetHeader,
    /// Its bytes.
    pub len: usize,
    /// The bytes themselves; empty where the port has them already.
    pub bytes: &'a [u8],
}

/// A frame of the store.
#[derive(Clone, Copy, Debug)]
struct StoredFrame {
    at: usize,
    due: u64,
    number: u64,
    len: u32,
    header: VnetHeader,
}

/// Frames in memory, in the order of the capture.
#[derive(Debug, Default)]
pub struct Store {
    entries: Vec<StoredFrame>,
    bytes: Vec<u8>,
}

impl Store {
    /// Memory that a frame of `len` bytes takes.
    pub fn cost(len: usize) -> usize {
        len + size_of::<StoredFrame>()
    }

    /// Memory of all frames.
    pub fn used(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<StoredFrame>()
    }

    /// Adds a frame, of packet `number`.
    pub fn add(&mut self, number: u64, due: u64, header: VnetHeader, frame: &[u8]) {
        let (at, len) = (self.bytes.len(), frame.len() as u32);
        self.entries.push(StoredFrame { at, due, number, len, header });
        self.bytes.extend_from_slice(frame);
    }

    /// Frames.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Frame `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<ReplayFrame<'_>> {
        let e = self.entries.get(index)?;
        let len = e.len as usize;
        let bytes = self.bytes.get(e.at..e.at + len).unwrap_or_default();
        Some(ReplayFrame { index, due: e.due, header: e.header, len, bytes })
    }

    /// Bytes of `count` frames from `first` on, all of which are there, and when the last of them
    /// is due.
    pub fn row(&self, first: usize, count: usize) -> (u64, u64) {
        let ends = self.entries.get(first).zip(self.entries.get((first + count).wrapping_sub(1)));
        // The frames' bytes lie one behind the other.
        ends.map_or((0, 0), |(a, b)| ((b.at + b.len as usize).saturating_sub(a.at) as u64, b.due))
    }

    /// The packet that frame `index` was.
    pub fn packet(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(|e| e.number)
    }

    /// Gives the frames' bytes back: a port holds them now.
    pub fn forget_bytes(&mut self) {
        self.bytes = Vec::new();
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
