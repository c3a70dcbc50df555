//! The memory that a program and the daemon share (docs/mapped-receive.md), for programs that read
//! it themselves.
//!
//! Constants and types are C's: zerowire.h is generated from them, which is why values are literals
//! here. That they are those of the Rust layout is checked below, when this is compiled.

use zerowire_wire::mapped;

/// Version of the memory and of the handshake.
pub const ZW_MEMORY_VERSION: u32 = 1u32;
/// Bytes of a page; windows are made of them.
pub const ZW_PAGE: u32 = 4096u32;

/// poll_value: the window is the daemon's.
pub const ZW_POLL_NOTHING: u32 = 0u32;
/// poll_value: the window has data, and is the program's until it stores ZW_POLL_NOTHING.
pub const ZW_POLL_DATA: u32 = 1u32;
/// poll_value: no more data will come.
pub const ZW_POLL_END: u32 = 0xffff_ffffu32;

/// Flag of entries and packets: the last part of a message.
pub const ZW_ENTRY_EOM: u32 = 1u32;
/// Flag of entries and packets: the last part of a record.
pub const ZW_ENTRY_EOR: u32 = 2u32;
/// Flag of entries and packets: the payload lies in guest memory, and the guest can change it.
pub const ZW_ENTRY_DIRECT: u32 = 4u32;
/// Where in an entry's flags the number of the guest memory region begins.
pub const ZW_REGION_SHIFT: u32 = 8u32;

/// The start of a window's header pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WindowHeader {
    /// ZW_POLL_...; atomic: load with acquire, store with release.
    pub poll_value: u32,
    /// Data pages with payload.
    pub hdr_num: u32,
}

/// An entry. They follow the header, and end with one of length 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedEntry {
    /// Bytes of payload.
    pub length: u32,
    /// ZW_ENTRY_...
    pub flags: u32,
}

/// What follows an entry with ZW_ENTRY_DIRECT: the payload's offset in guest memory region
/// (flags >> ZW_REGION_SHIFT).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EntryOffset {
    /// Its lower half.
    pub offset_low: u32,
    /// Its upper half.
    pub offset_high: u32,
}

/// The control page. Each word has a cache line of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedControl {
    /// Not 0: the program sleeps, or is about to.
    pub program_sleeps: u32,
    /// Nothing.
    pub reserved0: [u8; 60],
    /// What release the daemon wants to hear of: 0 none, 1 any, n + 2 that of window n.
    pub daemon_waits: u32,
    /// Nothing.
    pub reserved1: [u8; 60],
    /// ZW_MEMORY_VERSION.
    pub version: u32,
    /// Nothing.
    pub reserved2: [u8; 3964],
}

const _: () = {
    use std::mem::offset_of;

    assert!(ZW_MEMORY_VERSION == mapped::VERSION as u32);
    assert!(ZW_PAGE as usize == mapped::PAGE);
    assert!(ZW_POLL_NOTHING == mapped::POLL_NOTHING);
    assert!(ZW_POLL_DATA == mapped::POLL_DATA);
    assert!(ZW_POLL_END == mapped::POLL_END);
    assert!(ZW_ENTRY_EOM == mapped::ENTRY_EOM);
    assert!(ZW_ENTRY_EOR == mapped::ENTRY_EOR);
    assert!(ZW_ENTRY_DIRECT == mapped::ENTRY_DIRECT);
    assert!(ZW_REGION_SHIFT == mapped::REGION_SHIFT);
    assert!(size_of::<WindowHeader>() == mapped::ENTRIES_AT);
    assert!(size_of::<MappedEntry>() == mapped::ENTRY_LEN);
    assert!(size_of::<EntryOffset>() == mapped::ENTRY_LEN);
    assert!(size_of::<MappedControl>() == mapped::PAGE);
    assert!(offset_of!(MappedControl, program_sleeps) == mapped::PROGRAM_SLEEPS_AT);
    assert!(offset_of!(MappedControl, daemon_waits) == mapped::DAEMON_WAITS_AT);
    assert!(offset_of!(MappedControl, version) == mapped::VERSION_AT);
};
