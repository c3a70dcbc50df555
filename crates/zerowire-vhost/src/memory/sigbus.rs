//! What happens when a front end truncates the file behind guest memory, or when the file system of
//! a sparse file is full.
//!
//! Touching a page that the file no longer has, or that finds no room (ENOSPC), raises SIGBUS. By
//! default that ends the process, and with it every VM that it serves. This handler replaces the
//! mapping by zeroed memory, from the lost page to the end, by one mmap(2). That VM reads zeros and
//! harms only itself. However many pages are lost, a mapping splits at most once, so that no front
//! end uses up the process's mappings (vm.max_map_count).
//!
//! Two faults are no business of a front end's. A page with a hardware error keeps its fault: zeros
//! in its place would go out as data. A fault outside guest memory ends the process. For both the
//! handler leaves the signal blocked: the kernel ends the process when the fault comes again.
//!
//! The handler runs in signal context: it uses atomics, and functions of rustix and zerowire-sys
//! that make system calls and nothing else. It writes its line itself, for the thread that it runs
//! on can be anywhere. It waits for no reader of standard error, and writes one line a second at
//! most.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::time::{ClockId, clock_gettime};
use zerowire_sys::map::{Mapping, replace_by_zeros};
use zerowire_sys::signal::on_bus_error;

use super::region_pool::{OWN_REGIONS, SHARED_REGIONS};

/// Mappings at a time: the most regions of the most VMs. For each VM come its in-flight region and
/// its dirty log, the old and the new. So there is always room.
const SLOTS: usize = 256 * (OWN_REGIONS + 3) + SHARED_REGIONS;

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
/// When the last line about a lost page was written, seconds of CLOCK_MONOTONIC.
static TOLD_AT: AtomicI64 = AtomicI64::new(i64::MIN);

/// A line of the handler in each [`LineFormat`]. The text has no character that JSON escapes.
macro_rules! in_each_format {
    ($level:literal, $priority:literal, $text:literal) => {
        [
            concat!("zerowire: ", $text, "\n"),
            concat!("{\"level\":\"", $level, "\",\"message\":\"", $text, "\"}\n"),
            concat!("<", $priority, ">zerowire: ", $text, "\n"),
        ]
    };
}

static LOST: [&str; 3] = in_each_format!(
    "warn",
    4,
    "a front end truncated the file behind its guest's memory, or the file system of that file is full (ENOSPC); \
     from the first lost page on it reads as zeros from now on"
);
static HARDWARE: [&str; 3] = in_each_format!(
    "error",
    3,
    "a page of guest memory has a hardware error (see the kernel's log): \
     its content is lost and this process ends"
);

/// How the handler writes its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LineFormat {
    /// For people.
    Text = 0,
    /// JSON objects.
    Json = 1,
    /// Behind a priority of sd-daemon(3).
    Journal = 2,
}

/// The [`LineFormat`].
static FORMAT: AtomicUsize = AtomicUsize::new(LineFormat::Text as usize);

/// Has the handler write its lines in this format from now on.
pub fn write_lines_as(format: LineFormat) {
    FORMAT.store(format as usize, Ordering::Relaxed);
}

/// A mapping that is known to the handler, as long as this value lives.
#[derive(Debug)]
pub struct Guarded {
    map: Mapping,
    slot: Option<usize>,
}

impl Guarded {
    /// Takes a mapping of guest memory whose file has pages of `page` bytes, a power of two.
    pub fn new(map: Mapping, page: usize) -> Self {
        catch_lost_pages();
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

    /// The mapping.
    #[inline]
    pub fn mapping(&self) -> &Mapping {
        &self.map
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

/// Installs the handler, once. A process that may not do so later does it before it is confined.
pub fn catch_lost_pages() {
    INSTALL.call_once(install);
}

fn install() {
    // SAFETY: the handler keeps to what is allowed in signal context (see the module's head).
    if let Err(e) = unsafe { on_bus_error(handle) } {
        tracing::warn!(
            "no SIGBUS handler ({e}): a front end that truncates its memory file ends this process"
        );
    }
}

/// What to do about a SIGBUS.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// The file lost these addresses: put zeros there.
    Replace(Range<usize>),
    /// A page has a hardware error, and nothing has read it yet: go on. Reading it raises
    /// [`Self::End`].
    GoOn,
    /// The page that the process needs has a hardware error: end the process, and say so.
    End,
    /// No guest memory: end the process.
    Default,
}

/// `code` is the signal's si_code, `at` the address of the fault, `mapping` the guarded one around
/// it and its page size.
fn action(code: libc::c_int, at: usize, mapping: Option<(Range<usize>, usize)>) -> Action {
    // Of any memory: nothing repeats an access.
    if code == libc::BUS_MCEERR_AO {
        return Action::GoOn;
    }
    let Some((mapping, page)) = mapping else { return Action::Default };
    match code {
        libc::BUS_MCEERR_AR => Action::End,
        _ => {
            let first = at & !(page - 1);
            if first < mapping.start { Action::Default } else { Action::Replace(first..mapping.end) }
        }
    }
}

fn handle(code: libc::c_int, at: usize) -> bool {
    let range = |s: &Slot| s.start.load(Ordering::Acquire)..s.end.load(Ordering::Acquire);
    let slot = TABLE.iter().find(|s| {
        let range = range(s);
        range.start != 0 && range.contains(&at)
    });
    match action(code, at, slot.map(|s| (range(s), s.page.load(Ordering::Relaxed)))) {
        Action::Replace(lost) => {
            let start = std::ptr::with_exposed_provenance_mut(lost.start);
            // SAFETY: whole pages at the end of a mapping of guest memory, to which nobody holds a
            // reference.
            let replaced = unsafe { replace_by_zeros(start, lost.len()) }.is_ok();
            let is_first = slot.is_some_and(|s| !s.lost.swap(true, Ordering::Relaxed));
            if replaced && is_first && is_due(&TOLD_AT, clock_gettime(ClockId::Monotonic).tv_sec) {
                say(&LOST);
            }
            replaced
        }
        Action::GoOn => true,
        Action::End => {
            say(&HARDWARE);
            false
        }
        Action::Default => false,
    }
}

/// Whether no line was written in this second yet.
fn is_due(told_at: &AtomicI64, now: i64) -> bool {
    told_at.swap(now, Ordering::Relaxed) != now
}

/// Writes a line if standard error takes it at once. A terminal can't be written to by the first
/// call, and a pipe can become full between the second and the third.
fn say(lines: &'static [&'static str; 3]) {
    let line = lines[FORMAT.load(Ordering::Relaxed)].as_bytes();
    let stderr = std::io::stderr();
    if pwritev2(&stderr, &[IoSlice::new(line)], u64::MAX, ReadWriteFlags::NOWAIT).is_ok() {
        return;
    }
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(&stderr, line);
    }
}

#[cfg(test)]
impl Guarded {
    /// Mappings that the addresses of this one consist of now.
    pub fn parts(&self) -> usize {
        let start = self.as_ptr().addr();
        let ours = start..start + self.map.len();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        let bounds = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
        let bounds = bounds.filter_map(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        bounds.filter(|(start, end)| *start < ours.end && ours.start < *end).count()
    }
}

#[cfg(test)]
mod tests;
