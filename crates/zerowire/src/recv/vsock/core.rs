//! What a connection, its mappings and its leases share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::mm::{MapFlags, ProtFlags};
use zerowire_sys::map::{Mapping, READ_WRITE};

use super::error::{Error, system};
use super::lease::PacketRange;
use zerowire_sys::lock;
use zerowire_wire::mapped::{MapOptions, PAGE};

/// Guest memory that was lent to the connection.
#[derive(Debug)]
pub(super) struct RegionFile {
    pub(super) file: OwnedFd,
    /// Where the region begins in the file; a multiple of the page size.
    pub(super) offset: u64,
    /// Bytes, not 0.
    pub(super) len: usize,
}

/// A window of the ring, on the program's side.
#[derive(Debug, Default)]
pub(super) struct WindowSlot {
    /// A lease of it exists.
    pub(super) held: bool,
    /// Its entries, while no lease has them: the allocation is used again.
    pub(super) entries: Vec<PacketRange>,
}

/// Files and windows of a connection.
#[derive(Debug)]
pub(super) struct MappedState {
    pub(super) options: MapOptions,
    pub(super) headers: OwnedFd,
    pub(super) data: OwnedFd,
    pub(super) regions: Vec<RegionFile>,
    /// Written when the daemon waits for a release.
    pub(super) released: OwnedFd,
    /// One for each window.
    pub(super) slots: Box<[Mutex<WindowSlot>]>,
}

impl MappedState {
    pub(super) fn slot(&self, window: u32) -> MutexGuard<'_, WindowSlot> {
        lock(&self.slots[window as usize])
    }
}

/// A mapping of all windows. Leases keep it alive.
///
/// Header pages are shared with the daemon, and both sides write them: they are accessed by atomics
/// only. Data pages are written by the daemon alone, while it owns the window; a slice of them
/// exists only while the program owns it ([`super::window`]). Guest memory can change at any time
/// and is read by volatile loads only ([`zerowire_sys::volatile`]).
#[derive(Debug)]
pub(super) struct View {
    pub(super) core: Arc<MappedState>,
    /// The control page, then each window: its header pages, then its data pages.
    pub(super) memory: Mapping,
    /// Guest memory, in the order of `core.regions`.
    pub(super) regions: Vec<Mapping>,
}

impl View {
    pub(super) fn new(core: Arc<MappedState>) -> Result<Self, Error> {
        let o = &core.options;
        let reserve = system("mmap (a reservation for the windows)");
        let mut memory = Mapping::reserve(PAGE + o.windows as usize * window_len(o)).map_err(reserve)?;
        let header_len = o.header_pages as usize * PAGE;
        let (headers, data) = (core.headers.as_fd(), core.data.as_fd());
        let mut place = |at: usize, len: usize, file: BorrowedFd<'_>, offset: usize, write: bool| {
            let access = if write { READ_WRITE } else { ProtFlags::READ };
            memory
                .place(at, len, (file, offset as u64), access, MapFlags::empty())
                .map_err(system("mmap (a window)"))
        };
        place(0, PAGE, headers, 0, true)?;
        for w in 0..o.windows {
            let at = PAGE + w as usize * window_len(o);
            place(at, header_len, headers, o.header_at(w), true)?;
            place(at + header_len, o.window_data_len(), data, o.data_at(w), false)?;
        }
        let mut regions = Vec::with_capacity(core.regions.len());
        for r in &core.regions {
            let whole = r.len.next_multiple_of(PAGE);
            let mut m = Mapping::reserve(whole).map_err(system("mmap (a reservation for guest memory)"))?;
            m.place(0, whole, (&r.file, r.offset), ProtFlags::READ, MapFlags::empty())
                .map_err(system("mmap (guest memory)"))?;
            regions.push(m);
        }
        Ok(Self { core, memory, regions })
    }

    /// Where a window's header pages begin.
    pub(super) fn header_at(&self, window: u32) -> usize {
        PAGE + window as usize * window_len(&self.core.options)
    }

    /// Where a window's data pages begin.
    pub(super) fn data_at(&self, window: u32) -> usize {
        self.header_at(window) + self.core.options.header_pages as usize * PAGE
    }
}

/// Bytes of a window in a mapping.
fn window_len(o: &MapOptions) -> usize {
    o.header_pages as usize * PAGE + o.window_data_len()
}
