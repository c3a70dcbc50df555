//! An allocator that counts what the device does. It runs in the test's own thread, without one of
//! its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands all calls on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            LIVE.set(LIVE.get() + layout.size() as isize);
        }
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if COUNTS.get() {
            LIVE.set(LIVE.get() - layout.size() as isize);
        }
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does something whose allocations count.
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    COUNTS.set(true);
    let result = work();
    COUNTS.set(false);
    result
}

/// Bytes that were allocated so and are not free.
pub fn live() -> isize {
    LIVE.get()
}

/// Allocations so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
