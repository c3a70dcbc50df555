//! Structures and numbers of zero-copy receive (include/uapi/linux/io_uring/zcrx.h and query.h of
//! Linux 7.3), which are part of the kernel's interface.

use crate::plain::plain;

/// `IORING_REGISTER_ZCRX_IFQ`.
pub(super) const REGISTER_ZCRX_IFQ: u32 = 32;
/// `IORING_REGISTER_ZCRX_CTRL` (Linux 7.0).
pub(super) const REGISTER_ZCRX_CTRL: u32 = 36;

/// `ZCRX_REG_IMPORT` (Linux 7.0): `if_idx` is a descriptor of a registration of another ring.
pub(super) const REG_IMPORT: u32 = 1;
/// `ZCRX_REG_NODEV` (Linux 7.1): no interface; the kernel copies everything.
pub const REG_NODEV: u32 = 2;
/// `IORING_ZCRX_AREA_DMABUF` (Linux 6.16).
pub(super) const AREA_DMABUF: u32 = 1;
/// `ZCRX_FEATURE_RX_PAGE_SIZE` (Linux 7.0): a registration may set `rx_buf_len`.
pub const FEATURE_RX_PAGE_SIZE: u32 = 1;

pub(super) const CTRL_FLUSH_RQ: u32 = 0;
pub(super) const CTRL_EXPORT: u32 = 1;
pub(super) const CTRL_ARM_EVENT: u32 = 2;
/// `ZCRX_CTRL_ADD_AREA` (Linux 7.3).
pub(super) const CTRL_ADD_AREA: u32 = 3;
/// `ZCRX_EVENT_DESC_FLAG_STATS`.
pub(super) const EVENT_DESC_FLAG_STATS: u32 = 1;
/// `IO_URING_QUERY_ZCRX` (Linux 7.0).
pub(super) const QUERY_ZCRX: u32 = 1;

/// `IORING_ZCRX_AREA_SHIFT`: above this bit an offset holds the area's number.
pub const AREA_SHIFT: u32 = 48;
/// `IO_RQ_MAX_ENTRIES` (io_uring/zcrx.c).
pub const MOST_ENTRIES: u32 = 32768;

plain! {
    /// `struct io_uring_zcrx_rqe`.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Rqe {
        /// Offset in the area, with the area's number above.
        pub off: u64,
        /// Bytes of the piece.
        pub len: u32,
        /// 0.
        pub pad: u32,
    }

    /// `struct io_uring_zcrx_offsets`.
    pub(super) struct Offsets {
        pub(super) head: u32,
        pub(super) tail: u32,
        pub(super) rqes: u32,
        pub(super) resv2: u32,
        pub(super) resv: [u64; 2],
    }

    /// `struct io_uring_zcrx_area_reg`.
    pub(super) struct AreaReg {
        pub(super) addr: u64,
        pub(super) len: u64,
        pub(super) rq_area_token: u64,
        pub(super) flags: u32,
        pub(super) dmabuf_fd: u32,
        pub(super) resv2: [u64; 2],
    }

    /// `struct zcrx_event_desc`.
    pub(super) struct EventDesc {
        pub(super) user_data: u64,
        pub(super) type_mask: u32,
        pub(super) flags: u32,
        pub(super) stats_offset: u64,
        pub(super) resv2: [u64; 9],
    }

    /// `struct io_uring_zcrx_ifq_reg`.
    pub(super) struct IfqReg {
        pub(super) if_idx: u32,
        pub(super) if_rxq: u32,
        pub(super) rq_entries: u32,
        pub(super) flags: u32,
        pub(super) area_ptr: u64,
        pub(super) region_ptr: u64,
        pub(super) offsets: Offsets,
        pub(super) zcrx_id: u32,
        pub(super) rx_buf_len: u32,
        pub(super) event_desc: u64,
        pub(super) resv: [u64; 2],
    }

    /// `struct zcrx_ctrl`; of the union the first word, which is all that most operations use of
    /// it.
    pub(super) struct Ctrl {
        pub(super) zcrx_id: u32,
        pub(super) op: u32,
        pub(super) resv: [u64; 2],
        pub(super) argument: u32,
        pub(super) rest: [u32; 11],
    }

    /// `struct zcrx_ctrl` with the member `zc_area` of the union.
    pub(super) struct CtrlAddArea {
        pub(super) zcrx_id: u32,
        pub(super) op: u32,
        pub(super) resv: [u64; 2],
        pub(super) area_ptr: u64,
        pub(super) rest: [u64; 5],
    }

    /// `struct io_uring_query_zcrx`.
    pub(super) struct QueryZcrx {
        pub(super) register_flags: u64,
        pub(super) area_flags: u64,
        pub(super) controls: u32,
        pub(super) features: u32,
        pub(super) header_bytes: u32,
        pub(super) header_align: u32,
        pub(super) resv: u64,
    }
}

/// `struct zcrx_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Pieces that the kernel copied into the area.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Rqe>() == 16 && size_of::<Offsets>() == 32);
const _: () = assert!(size_of::<AreaReg>() == 48 && size_of::<EventDesc>() == 96);
const _: () = assert!(size_of::<IfqReg>() == 96 && std::mem::offset_of!(IfqReg, zcrx_id) == 64);
const _: () = assert!(std::mem::offset_of!(IfqReg, event_desc) == 72);
const _: () = assert!(size_of::<Ctrl>() == 72 && std::mem::offset_of!(Ctrl, argument) == 24);
const _: () = assert!(size_of::<CtrlAddArea>() == 72 && std::mem::offset_of!(CtrlAddArea, area_ptr) == 24);
const _: () = assert!(size_of::<QueryZcrx>() == 40);
const _: () = assert!(size_of::<CopyStats>() == 16);
