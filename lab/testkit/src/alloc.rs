//! An allocator that counts allocations, for test programs that make it their global one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static OF_THREAD: Cell<u64> = const { Cell::new(0) });

/// The system's allocator, counted.
pub struct Counting;

impl Counting {
    /// Allocations of this thread so far.
    pub fn of_thread() -> u64 {
        OF_THREAD.get()
    }
}

// SAFETY: hands all calls on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OF_THREAD.set(OF_THREAD.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(at, layout) }
    }
}
