//! What happens when a front end truncates the file behind guest memory.
//!
//! Touching a page that the file no longer has raises SIGBUS, which would end the process and with it every VM that it
//! serves. The handler here puts zeroed private memory in the place of the lost page, if it lies in guest memory; that VM
//! reads zeros and harms only itself. A SIGBUS anywhere else ends the process as always.
//!
//! The handler runs in signal context: it uses atomics, `mmap`, `write` and nothing else.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{MAX_REGIONS, map::Mapping};

/// Mappings at a time: the most regions of the most VMs, and for each its in-flight region and its dirty log, the old and the
/// new, so that there is always room.
const SLOTS: usize = 256 * (MAX_REGIONS + 3);

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; SLOTS];
static INSTALL: Once = Once::new();

const MESSAGE: &[u8] =
    b"zerowire: a front end truncated the file behind its guest's memory; the lost pages read as zeros from now on\n";

/// A mapping that is known to the handler, as long as this value lives.
#[derive(Debug)]
pub struct Guarded {
    map: Mapping,
    slot: Option<usize>,
}

impl Guarded {
    /// Takes a mapping of guest memory whose file has pages of `page` bytes, a power of two.
    pub fn new(map: Mapping, page: usize) -> Self {
        INSTALL.call_once(install);
        let start = map.as_ptr().addr();
        let slot = TABLE
            .iter()
            .position(|s| s.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if let Some(i) = slot {
            TABLE[i].lost.store(false, Ordering::Relaxed);
            TABLE[i].page.store(page, Ordering::Relaxed);
            TABLE[i].end.store(start + map.len(), Ordering::Release);
        }
        Self { map, slot }
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(i) = self.slot {
            TABLE[i].end.store(0, Ordering::Release);
            TABLE[i].start.store(0, Ordering::Release);
        }
    }
}

fn install() {
    // SAFETY: an all-zero sigaction is valid; its fields are set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler keeps to what is allowed in signal context (see the module's head).
    let r = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if r < 0 {
        let e = std::io::Error::last_os_error();
        tracing::warn!(
            "no SIGBUS handler ({e}): a front end that truncates its memory file ends this process"
        );
    }
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, whose address field is set for SIGBUS.
    let at = unsafe { (*info).si_addr() }.addr();
    let found = TABLE.iter().find(|s| {
        let start = s.start.load(Ordering::Acquire);
        start != 0 && start <= at && at < s.end.load(Ordering::Acquire)
    });
    let replaced = found.is_some_and(|slot| {
        let page = slot.page.load(Ordering::Relaxed);
        let first = at & !(page - 1);
        // Only whole pages of the mapping itself.
        let inside =
            slot.start.load(Ordering::Acquire) <= first && first + page <= slot.end.load(Ordering::Acquire);
        inside && replace(first, page)
    });
    match found {
        Some(slot) if replaced => {
            if !slot.lost.swap(true, Ordering::Relaxed) {
                // SAFETY: write(2) of a static buffer.
                unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
            }
        }
        _ => {
            // SAFETY: the default action takes over when the access is tried again.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
    }
}

/// Puts zeroed memory in the place of the page of `size` bytes at `page`.
fn replace(page: usize, size: usize) -> bool {
    // SAFETY: the page lies in a mapping of guest memory (the caller looked it up), to which nobody holds a reference.
    let r = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(page),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    r != libc::MAP_FAILED
}
