//! Windows in mapped memory: looking for one, checking what its headers say, giving it back.

use std::sync::atomic::{AtomicU32, Ordering};

use super::core::View;
use super::error::Error;
use super::lease::{PacketRange, PayloadSpan};
use zerowire_wire::doorbell::wake_if_wanted;
use zerowire_wire::mapped::{
    DAEMON_WAITS_AT, END_CUT_SHORT, ENTRIES_AT, ENTRY_DIRECT, ENTRY_EOM, ENTRY_EOR, ENTRY_LEN, PAGE,
    POLL_NOTHING, PROGRAM_SLEEPS_AT, REGION_SHIFT,
};

impl View {
    /// A window's state. Acquire: what the daemon wrote before it published is visible behind this.
    #[inline]
    pub(super) fn poll_value(&self, window: u32) -> u32 {
        self.memory.word(self.header_at(window)).load(Ordering::Acquire)
    }

    /// Whether the data that ended in this window is not whole.
    pub(super) fn is_cut_short(&self, window: u32) -> bool {
        let flags = self.header_at(window) + ENTRIES_AT + 4;
        self.memory.word(flags).load(Ordering::Relaxed) & END_CUT_SHORT != 0
    }

    /// Raised by the program before it sleeps.
    pub(super) fn program_sleeps(&self) -> &AtomicU32 {
        self.memory.word(PROGRAM_SLEEPS_AT)
    }

    /// Gives a window back.
    pub(super) fn release(&self, window: u32) {
        self.memory.word(self.header_at(window)).store(POLL_NOTHING, Ordering::Release);
        if wake_if_wanted(self.memory.word(DAEMON_WAITS_AT), window) {
            // The only error is a full counter, which wakes the daemon as well.
            let _ = rustix::io::write(&self.core.released, &1u64.to_ne_bytes());
        }
    }

    /// Reads a published window's entries, each word once, and checks them. Returns the bytes of
    /// payload.
    pub(super) fn entries(&self, window: u32, entries: &mut Vec<PacketRange>) -> Result<u64, Error> {
        entries.clear();
        let options = &self.core.options;
        let header = self.header_at(window);
        let load = |at: usize| self.memory.word(at).load(Ordering::Relaxed);
        let broken = |what: String| Error::BrokenWindow { window, what };
        let max = options.max_entries();
        let mut pages = 0usize;
        let mut total = 0u64;
        let mut index = 0;
        loop {
            // Word pairs up to `max` lie in the header pages, the ending one included.
            let at = header + ENTRIES_AT + index * ENTRY_LEN;
            let len = load(at) as usize;
            if len == 0 {
                break;
            }
            if index >= max {
                return Err(broken(format!("no end within {max} entries")));
            }
            let flags = load(at + 4);
            index += 1;
            let place = if flags & ENTRY_DIRECT != 0 {
                if index >= max {
                    return Err(broken(format!("the direct entry {index} has no second half")));
                }
                let at = at + ENTRY_LEN;
                index += 1;
                let offset = u64::from(load(at)) | u64::from(load(at + 4)) << 32;
                self.direct(flags >> REGION_SHIFT, offset, len).map_err(broken)?
            } else {
                let at = pages * PAGE;
                pages += len.div_ceil(PAGE);
                if pages > options.data_pages as usize {
                    return Err(broken(format!(
                        "the packet of {len} bytes at data page {} goes beyond {} pages",
                        at / PAGE,
                        options.data_pages
                    )));
                }
                PayloadSpan::Data(self.data_at(window) + at)
            };
            let marks = if flags & ENTRY_DIRECT != 0 { (1 << REGION_SHIFT) - 1 } else { u32::MAX };
            if flags & marks & !(ENTRY_EOM | ENTRY_EOR | ENTRY_DIRECT) != 0 {
                return Err(broken(format!("unknown flags {flags:#x}")));
            }
            total += len as u64;
            entries.push(PacketRange { place, len, flags: flags & (ENTRY_EOM | ENTRY_EOR) });
        }
        let said = load(header + 4) as usize;
        if said != pages {
            return Err(broken(format!("hdr_num is {said}, and the entries fill {pages} data pages")));
        }
        Ok(total)
    }

    fn direct(&self, region: u32, offset: u64, len: usize) -> Result<PayloadSpan, String> {
        let Some(known) = self.core.regions.get(region as usize) else {
            return Err(format!("memory region {region} of {}", self.core.regions.len()));
        };
        if offset.checked_add(len as u64).is_none_or(|end| end > known.len as u64) {
            return Err(format!(
                "{len} bytes at {offset:#x} go beyond memory region {region} of {:#x} bytes",
                known.len
            ));
        }
        Ok(PayloadSpan::Direct { region: region as usize, at: offset as usize })
    }
}
