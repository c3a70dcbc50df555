//! What a sender tells, for C: completions, totals, and why.

use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use zerowire::ledger::{CopyReason, Counters};

use crate::arguments::{Out, exported};
use crate::arrays::TextRoom;
use crate::failure::Failure;
use crate::send::Sender;
use crate::send_types::{SendCompletion, SendLedger};

exported! {
/// The next range of tickets that are done: 1, or 0 if there is none. In the order in which they
/// came back. It reads nothing by itself: call zw_sender_poll before. The last 65536 ranges are
/// kept.
///
/// On AF_VSOCK the kernel's notifications can't be told apart by payload: all that is lent comes
/// back together, when the last of it does, and counts as copied when the kernel copied any of it.
fn zw_sender_next_completion(sender: *mut Sender, completion: *mut SendCompletion) -> c_int
    = next_completion(sender, completion);

/// Payloads that are lent or wait to be sent; 0 for NULL.
fn zw_sender_outstanding(sender: *const Sender) -> libc::size_t
    = (|s: Option<&Sender>| Ok(s.map_or(0, |s| s.sender.outstanding())))(sender);

/// Their bytes; 0 for NULL.
fn zw_sender_outstanding_bytes(sender: *const Sender) -> libc::size_t
    = (|s: Option<&Sender>| Ok(s.map_or(0, |s| s.sender.outstanding_bytes())))(sender);

/// The totals up to now, up to ledger.size bytes of them.
fn zw_sender_ledger(sender: *const Sender, ledger: *mut SendLedger) -> c_int = ledger(sender, ledger);

/// Bytes copied for a reason, and its name ("kernel", "small"...: docs/ledger.md). Reasons are
/// numbered from 0 on: returns 1, or 0 behind the last one. The name is the library's, and stays.
/// NULL is allowed for both results.
fn zw_sender_copied(sender: *const Sender, reason: u32, name: *mut *const c_char, bytes: *mut u64) -> c_int
    = (|s: &Sender, n: u32, name: NamePlace<'_>, bytes: BytesPlace<'_>| {
        Ok(self::reason(&s.sender.counters(), n, name, bytes))
    })(sender, reason, name, bytes);

/// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
/// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
fn zw_sender_path(sender: *const Sender, text: *mut c_char, size: libc::size_t) -> c_int
    = (|s: &Sender, text: TextRoom<'_>| Ok(text.print(&s.sender.path())))(sender, [text, size]);

/// ZW_MODE_AUTO: what was chosen for each class of lengths and why, for people, a line each, into
/// your buffer as zw_sender_path does. Empty in other modes.
fn zw_sender_choices(sender: *const Sender, text: *mut c_char, size: libc::size_t) -> c_int
    = choices(sender, [text, size]);
}

fn next_completion(sender: &mut Sender, completion: Out<'_, SendCompletion>) -> Result<c_int, Failure> {
    let Some(c) = sender.sender.next_completion() else { return Ok(0) };
    completion.write(&SendCompletion {
        size: size_of::<SendCompletion>(),
        first: c.first.number(),
        last: c.last.number(),
        copied: u32::from(c.copied),
        reserved: 0,
    });
    Ok(1)
}

fn ledger(sender: &Sender, ledger: Out<'_, SendLedger>) -> Result<c_int, Failure> {
    ledger.write(&SendLedger::from(&sender.sender.counters().snapshot()));
    Ok(0)
}

/// The names of the reasons, as C strings.
fn names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    NAMES.get_or_init(|| CopyReason::ALL.iter().map(|r| CString::new(r.name()).unwrap_or_default()).collect())
}

/// Where C wants a name; NULL is allowed.
pub(crate) type NamePlace<'call> = Option<&'call mut MaybeUninit<*const c_char>>;
/// The same for a count of bytes.
pub(crate) type BytesPlace<'call> = Option<&'call mut MaybeUninit<u64>>;

/// Fills in what was copied for a reason, and its name: 1, or 0 behind the last one.
pub(crate) fn reason(counters: &Counters, reason: u32, name: NamePlace<'_>, bytes: BytesPlace<'_>) -> c_int {
    let reason = reason as usize;
    let (Some(text), Some(known)) = (names().get(reason), CopyReason::ALL.get(reason)) else { return 0 };
    name.map(|name| name.write(text.as_ptr()));
    bytes.map(|bytes| {
        let copied = counters.snapshot().copied_bytes;
        bytes.write(copied.get(known.name()).copied().unwrap_or(0))
    });
    1
}

fn choices(sender: &Sender, text: TextRoom<'_>) -> Result<c_int, Failure> {
    let lines: String = sender.sender.choices().iter().map(|c| format!("{c}\n")).collect();
    Ok(text.print(&lines))
}
