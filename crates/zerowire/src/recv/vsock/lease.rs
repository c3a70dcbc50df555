//! A window that the program holds, and the packets in it.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::core::View;
use zerowire_sys::volatile::{ByteRoom, VolatileSlice};
use zerowire_wire::mapped::{ENTRY_EOM, ENTRY_EOR};

/// A packet of a window, checked: its bytes are in bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketRange {
    pub(super) place: PayloadSpan,
    pub(super) len: usize,
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PayloadSpan {
    /// Where it is in the mapping.
    Data(usize),
    Direct {
        region: usize,
        /// Where it is in the region.
        at: usize,
    },
}

/// A published window. It is the program's until this is dropped; then the daemon may write it
/// again.
///
/// Several can be held at once, and dropped in any order and by any thread. A lease keeps the
/// memory mapped, also when the connection is unmapped or dropped.
#[derive(Debug)]
#[must_use = "dropping the lease gives the window back"]
pub struct WindowLease {
    view: Arc<View>,
    window: u32,
    entries: Vec<PacketRange>,
    bytes: u64,
}

impl WindowLease {
    /// The window is published, and no other lease of it exists.
    pub(super) fn new(view: Arc<View>, window: u32, entries: Vec<PacketRange>, bytes: u64) -> Self {
        Self { view, window, entries, bytes }
    }

    /// Its number in the ring.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Bytes of payload, of all packets.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether the window has no payload.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many packets there are.
    pub fn packet_count(&self) -> usize {
        self.entries.len()
    }

    /// A packet by its number.
    pub fn packet(&self, index: usize) -> Option<WindowPacket<'_>> {
        self.entries.get(index).map(|entry| WindowPacket { view: &self.view, entry })
    }

    /// The packets, in the order of the stream.
    pub fn packets(&self) -> Packets<'_> {
        Packets { view: &self.view, entries: self.entries.iter() }
    }
}

impl<'a> IntoIterator for &'a WindowLease {
    type Item = WindowPacket<'a>;
    type IntoIter = Packets<'a>;

    fn into_iter(self) -> Packets<'a> {
        self.packets()
    }
}

impl Drop for WindowLease {
    fn drop(&mut self) {
        // Under the slot's lock, so that nobody finds the window both published and not held.
        let mut slot = self.view.core.slot(self.window);
        slot.entries = std::mem::take(&mut self.entries);
        slot.held = false;
        self.view.release(self.window);
    }
}

/// Iterates over a window's packets.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    view: &'a View,
    entries: std::slice::Iter<'a, PacketRange>,
}

impl<'a> Iterator for Packets<'a> {
    type Item = WindowPacket<'a>;

    #[inline]
    fn next(&mut self) -> Option<WindowPacket<'a>> {
        self.entries.next().map(|entry| WindowPacket { view: self.view, entry })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In the window's data pages, one behind the other: nobody writes them while the window is
    /// held.
    Window(&'a [u8]),
    /// In the guest's memory, which the guest can change.
    Guest(VolatileSlice<'a>),
}

/// A packet: a piece of the stream, or a message, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct WindowPacket<'a> {
    view: &'a View,
    entry: &'a PacketRange,
}

impl<'a> WindowPacket<'a> {
    /// Its payload.
    #[inline]
    pub fn payload(&self) -> Payload<'a> {
        match self.entry.place {
            // SAFETY: the place was checked when the window was dequeued, and its file is sealed
            // against shrinking. Only the daemon can write it, and does not as long as the lease
            // that `'a` borrows from exists.
            PayloadSpan::Data(at) => Payload::Window(unsafe { self.view.memory.bytes(at, self.entry.len) }),
            PayloadSpan::Direct { region, at } => {
                Payload::Guest(self.view.regions[region].volatile(at, self.entry.len))
            }
        }
    }

    /// The payload, if it is in the window; None if it is in the guest's memory, which happens only
    /// on connections with [`super::MappedOptions::direct`].
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.payload() {
            Payload::Window(bytes) => Some(bytes),
            Payload::Guest(_) => None,
        }
    }

    /// Copies the payload from its byte `skip` on, as many bytes as fit, and returns their number.
    pub fn copy_to(&self, skip: usize, to: &mut [u8]) -> usize {
        self.copy_into(skip, &mut to.into())
    }

    /// As [`Self::copy_to`], to memory that may not have been written yet.
    pub fn copy_to_uninit(&self, skip: usize, to: &mut [MaybeUninit<u8>]) -> usize {
        self.copy_into(skip, &mut to.into())
    }

    pub(super) fn copy_into(&self, skip: usize, to: &mut ByteRoom<'_>) -> usize {
        match self.payload() {
            Payload::Window(bytes) => to.put(bytes.get(skip..).unwrap_or_default()),
            Payload::Guest(bytes) => bytes.skip(skip).copy_into(to),
        }
    }

    /// Bytes of payload, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub fn len(&self) -> usize {
        self.entry.len
    }

    /// The last part of a message (virtio 1.3 §5.10.6.7, VIRTIO_VSOCK_SEQ_EOM).
    pub fn end_of_message(&self) -> bool {
        self.entry.flags & ENTRY_EOM != 0
    }

    /// The last part of a record (VIRTIO_VSOCK_SEQ_EOR; MSG_EOR of the guest's send).
    pub fn end_of_record(&self) -> bool {
        self.entry.flags & ENTRY_EOR != 0
    }

    /// The flags as the window has them: 1 end of message, 2 end of record.
    pub fn flags(&self) -> u32 {
        self.entry.flags
    }
}
