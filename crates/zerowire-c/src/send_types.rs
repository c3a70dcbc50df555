//! The types of the senders' interface.

use std::time::Duration;

use zerowire::ledger::Totals;
use zerowire::send::{Notifications, SendBackend, SendMode, SendOptions};

use crate::area::SendArea;
use crate::failure::{Failure, wrong};

/// A mode: measured for each socket and length, the cheaper way serves (docs/send.md).
pub const ZW_MODE_AUTO: u32 = 0u32;
/// A mode: the kernel copies; memory is free when the call returns.
pub const ZW_MODE_COPY: u32 = 1u32;
/// A mode: lent always. A limit that forbids it is an error (-ENOBUFS).
pub const ZW_MODE_ZEROCOPY: u32 = 2u32;

/// A back end: io_uring if areas are given and it is allowed, else socket calls, and on AF_VSOCK
/// always these. zw_sender_path says which and why.
pub const ZW_BACKEND_AUTO: u32 = 0u32;
/// A back end: send, sendmsg, sendmmsg, with MSG_ZEROCOPY.
pub const ZW_BACKEND_SOCKET: u32 = 1u32;
/// A back end: io_uring's SEND_ZC and SENDMSG_ZC; -EOPNOTSUPP where io_uring is not allowed. On
/// AF_VSOCK it only copies.
pub const ZW_BACKEND_URING: u32 = 2u32;

/// Notifications are read several at a time.
pub const ZW_NOTIFY_BATCHED: u32 = 0u32;
/// zw_sender_send, _sendv and _send_lease wait for each payload's notification, at most for
/// timeout_ms. Slow. 0 says that the payload was taken, and its memory may still be lent: don't
/// reuse it before zw_sender_wait returns 0 for its ticket.
pub const ZW_NOTIFY_EACH_ONE: u32 = 1u32;

/// A flag of zw_sender_options: memory is checked, see zw_sender_send. Always so if the library is
/// a debug build.
pub const ZW_CHECKED: u32 = 1u32;

/// zw_sender_close: sends what waits, and waits for what is lent.
pub const ZW_CLOSE_DRAIN: u32 = 0u32;
/// zw_sender_close: at once; a TCP connection with payloads that are lent or wait is reset.
pub const ZW_CLOSE_ABORT: u32 = 1u32;

/// How a sender works. Set size, and leave at 0 what you don't want to choose: 0 is the default of
/// each field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SenderOptions {
    /// sizeof(struct zw_sender_options). Later versions append fields.
    pub size: libc::size_t,
    /// ZW_MODE_...
    pub mode: u32,
    /// ZW_BACKEND_...
    pub backend: u32,
    /// Bytes that may be lent at a time; one payload may always be, however long. 0: 16 MiB.
    pub max_lent_bytes: libc::size_t,
    /// Payloads that may be lent at a time. 0: 1024.
    pub max_lent: libc::size_t,
    /// UDP: payloads are cut into datagrams of this many bytes, 1 to 65535 (UDP_SEGMENT);
    /// zw_longest_segment says what the path takes. 0: not cut.
    pub segment_bytes: u32,
    /// ZW_NOTIFY_...
    pub notifications: u32,
    /// Milliseconds that a send waits for room, and with ZW_NOTIFY_EACH_ONE once more for the
    /// notification. 0: as long as it takes.
    pub timeout_ms: u32,
    /// ZW_CHECKED.
    pub flags: u32,
    /// Areas whose buffers will be sent: with io_uring they are registered once. They stay yours.
    /// NULL: none.
    pub areas: *const *const SendArea,
    /// Number of areas.
    pub area_count: libc::size_t,
}

/// Tickets whose memory is back: all from first to last, both included. Tickets wrap around at
/// 2^32.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCompletion {
    /// sizeof(struct zw_completion), set by you: no more is written. Later versions append fields.
    pub size: libc::size_t,
    /// First ticket.
    pub first: u32,
    /// Last ticket.
    pub last: u32,
    /// 1: the bytes were copied, by the sender or by the kernel; 0: they were not.
    pub copied: u32,
    /// 0.
    pub reserved: u32,
}

/// What went how. Lent bytes are counted when they come back: only then it is known whether the
/// kernel copied them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendLedger {
    /// sizeof(struct zw_ledger), set by you: no more is written. Later versions append fields.
    pub size: libc::size_t,
    /// Payloads sent.
    pub payloads: u64,
    /// Bytes, zero-copied and copied.
    pub bytes: u64,
    /// Payloads of which nobody copied a byte.
    pub zero_copied_payloads: u64,
    /// Bytes that nobody copied.
    pub zero_copied_bytes: u64,
    /// Bytes that were copied; zw_sender_copied says why.
    pub copied_bytes: u64,
    /// System calls that sent.
    pub system_calls: u64,
}

impl From<&Totals> for SendLedger {
    fn from(t: &Totals) -> Self {
        Self {
            size: size_of::<Self>(),
            payloads: t.frames,
            bytes: t.bytes,
            zero_copied_payloads: t.zero_copied_frames,
            zero_copied_bytes: t.zero_copied_bytes,
            copied_bytes: t.copied_total(),
            system_calls: t.system_calls,
        }
    }
}

/// What a sender left behind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendClosed {
    /// sizeof(struct zw_closed), set by you: no more is written. Later versions append fields.
    pub size: libc::size_t,
    /// Payloads that were not back in time.
    pub aborted: libc::size_t,
    /// Their bytes.
    pub aborted_bytes: libc::size_t,
    /// Of these, payloads that the kernel still holds.
    pub kept: libc::size_t,
}

/// 0: payloads are not cut.
pub(crate) fn segment_bytes(bytes: u32) -> Result<Option<u16>, Failure> {
    match u16::try_from(bytes) {
        Ok(n) => Ok((n > 0).then_some(n)),
        Err(_) => wrong(format!("segment_bytes {bytes}: at most 65535")),
    }
}

/// What the options mean: the library's options, and whether memory is checked.
pub(crate) fn options(given: Option<&SenderOptions>) -> Result<(SendOptions, bool), Failure> {
    let mut options = SendOptions::default();
    let mut checked = cfg!(debug_assertions);
    let Some(o) = given else { return Ok((options, checked)) };
    options.mode = match o.mode {
        ZW_MODE_AUTO => SendMode::Auto,
        ZW_MODE_COPY => SendMode::Copy,
        ZW_MODE_ZEROCOPY => SendMode::ZeroCopy,
        n => return wrong(format!("mode {n}: use ZW_MODE_AUTO, ZW_MODE_COPY or ZW_MODE_ZEROCOPY")),
    };
    options.backend = match o.backend {
        ZW_BACKEND_AUTO => SendBackend::Auto,
        ZW_BACKEND_SOCKET => SendBackend::Socket,
        ZW_BACKEND_URING => SendBackend::Uring,
        n => {
            return wrong(format!("backend {n}: use ZW_BACKEND_AUTO, ZW_BACKEND_SOCKET or ZW_BACKEND_URING"));
        }
    };
    options.notifications = match o.notifications {
        ZW_NOTIFY_BATCHED => Notifications::Batched,
        ZW_NOTIFY_EACH_ONE => Notifications::EachOne,
        n => return wrong(format!("notifications {n}: use ZW_NOTIFY_BATCHED or ZW_NOTIFY_EACH_ONE")),
    };
    options.segment_bytes = segment_bytes(o.segment_bytes)?;
    if o.flags & !ZW_CHECKED != 0 {
        return wrong(format!("flags {:#x}: the only one is ZW_CHECKED, 1", o.flags));
    }
    checked |= o.flags & ZW_CHECKED != 0;
    if o.max_lent_bytes != 0 {
        options.max_lent_bytes = o.max_lent_bytes;
    }
    if o.max_lent != 0 {
        options.max_lent = o.max_lent;
    }
    options.timeout = (o.timeout_ms != 0).then(|| Duration::from_millis(o.timeout_ms.into()));
    if o.area_count != 0 && o.areas.is_null() {
        return wrong(format!("area_count is {} and areas is NULL", o.area_count));
    }
    Ok((options, checked))
}
