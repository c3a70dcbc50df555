//! The types of the interface.

use std::ffi::c_void;

use zerowire::recv::vsock::{MappedConnection, MappedKind, MappedListener, MappedOptions, WindowLease};
use zerowire_wire::mapped::MapOptions;

use crate::failure::{Failure, wrong};

/// A kind: bytes in order, as SOCK_STREAM.
pub const ZW_STREAM: u32 = 1u32;
/// A kind: messages in order, each whole, as SOCK_SEQPACKET.
pub const ZW_SEQPACKET: u32 = 2u32;

/// A flag of options: each packet of a stream begins a page. Without it small ones share pages.
pub const ZW_UNPACKED: u32 = 4u32;
/// A flag of options: payload stays in guest memory. -EPERM if the daemon has no
/// --share-guest-memory.
pub const ZW_DIRECT: u32 = 2u32;

/// A connection.
#[derive(Debug)]
pub struct VsockConnection(pub(crate) MappedConnection);

/// A port of the host.
#[derive(Debug)]
pub struct VsockListener(pub(crate) MappedListener);

/// A window that is held.
#[derive(Debug)]
pub struct WindowHandle {
    pub(crate) lease: WindowLease,
    pub(crate) next: usize,
}

/// Fixed when a connection is made. Set size, and leave at 0 what you don't want to choose: 0 is
/// the default of each field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VsockOptions {
    /// sizeof(struct zw_vsock_options). Later versions append fields.
    pub size: libc::size_t,
    /// ZW_STREAM or ZW_SEQPACKET. 0: ZW_STREAM.
    pub kind: u32,
    /// Windows in the ring: 2 to 64. 0: 4.
    pub windows: u32,
    /// Header pages of a window: 1 to 16. 0: 1.
    pub header_pages: u32,
    /// Data pages of a window: 1 to 4096. 0: 128.
    pub data_pages: u32,
    /// Bytes that make a window published. 0: 1.
    pub lowat: u32,
    /// Bytes that the guest may send ahead. 0: what the daemon gives.
    pub credit: u32,
    /// ZW_UNPACKED, ZW_DIRECT.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// Payload in a window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VsockPacket {
    /// sizeof(struct zw_packet), set by you: no more is written. Later versions append fields.
    pub size: libc::size_t,
    /// Valid until the window is released. Nobody writes it, but for ZW_ENTRY_DIRECT: the guest
    /// may.
    pub data: *const c_void,
    /// Bytes, at least 1.
    pub length: libc::size_t,
    /// ZW_ENTRY_EOM, ZW_ENTRY_EOR, ZW_ENTRY_DIRECT.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

impl Default for VsockOptions {
    fn default() -> Self {
        Self::of(MappedKind::Stream, &MapOptions::default())
    }
}

impl VsockOptions {
    /// As C has them.
    pub(crate) fn of(kind: MappedKind, o: &MapOptions) -> Self {
        let unpacked = if o.packed { 0 } else { ZW_UNPACKED };
        let direct = if o.direct { ZW_DIRECT } else { 0 };
        Self {
            size: size_of::<Self>(),
            kind: kind.number().into(),
            windows: o.windows,
            header_pages: o.header_pages,
            data_pages: o.data_pages,
            lowat: o.lowat,
            credit: o.credit,
            flags: unpacked | direct,
            reserved: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<MappedOptions, Failure> {
        let kind = match self.kind {
            0 | ZW_STREAM => MappedKind::Stream,
            ZW_SEQPACKET => MappedKind::SeqPacket,
            n => return wrong(format!("kind {n}: ZW_STREAM is 1, ZW_SEQPACKET is 2")),
        };
        if self.flags & !(ZW_UNPACKED | ZW_DIRECT) != 0 {
            return wrong(format!("flags {:#x}: ZW_UNPACKED is 4, ZW_DIRECT is 2", self.flags));
        }
        if self.reserved != 0 {
            return wrong(format!("reserved is {}: it must be 0, zero the struct first", self.reserved));
        }
        let default = MapOptions::default();
        let or = |n: u32, default: u32| if n == 0 { default } else { n };
        let map = MapOptions::default()
            .windows(or(self.windows, default.windows))
            .header_pages(or(self.header_pages, default.header_pages))
            .data_pages(or(self.data_pages, default.data_pages))
            .packed(self.flags & ZW_UNPACKED == 0)
            .lowat(or(self.lowat, default.lowat))
            .credit(self.credit)
            .direct(self.flags & ZW_DIRECT != 0);
        Ok(MappedOptions::from(map).kind(kind))
    }
}
