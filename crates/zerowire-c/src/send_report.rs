//! What a sender tells, for C: completions, totals, and why.
//!
//! SAFETY, for all functions: as src/handle.rs says; a sender is used by one thread at a time.
#![allow(clippy::missing_safety_doc, reason = "the contract is the one above, and the header's")]

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use zerowire::ledger::{CopyReason, Counters};

use crate::guard::guard_int;
use crate::handle::{Out, get, get_mut, print};
use crate::send::Sender;
use crate::send_types::{SendCompletion, SendLedger};

/// The next range of tickets that are done: 1, or 0 if there is none. In the order in which they
/// came back. It reads nothing by itself: call zw_sender_poll before. The last 65536 ranges are
/// kept.
///
/// On AF_VSOCK the kernel's notifications can't be told apart by payload: all that is lent comes
/// back together, when the last of it does, and counts as copied when the kernel copied any of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_next_completion(
    sender: *mut Sender,
    completion: *mut SendCompletion,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(completion, "completion", "zw_completion") }?;
        // SAFETY: by the module's contract.
        let Some(c) = unsafe { get_mut(sender, "sender") }?.sender.next_completion() else { return Ok(0) };
        out.write(&SendCompletion {
            size: size_of::<SendCompletion>(),
            first: c.first.number(),
            last: c.last.number(),
            copied: u32::from(c.copied),
            reserved: 0,
        });
        Ok(1)
    })
}

/// Payloads that are lent or wait to be sent; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_outstanding(sender: *const Sender) -> libc::size_t {
    // SAFETY: by the module's contract.
    unsafe { sender.as_ref() }.map_or(0, |s| s.sender.outstanding())
}

/// Their bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_outstanding_bytes(sender: *const Sender) -> libc::size_t {
    // SAFETY: by the module's contract.
    unsafe { sender.as_ref() }.map_or(0, |s| s.sender.outstanding_bytes())
}

/// The totals up to now, up to ledger.size bytes of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_ledger(sender: *const Sender, ledger: *mut SendLedger) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(ledger, "ledger", "zw_ledger") }?;
        // SAFETY: by the module's contract.
        let t = unsafe { get(sender, "sender") }?.sender.counters().snapshot();
        out.write(&SendLedger::from(&t));
        Ok(0)
    })
}

/// The names of the reasons, as C strings.
fn names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    NAMES.get_or_init(|| CopyReason::ALL.iter().map(|r| CString::new(r.name()).unwrap_or_default()).collect())
}

/// Fills in what was copied for a reason, and its name: 1, or 0 behind the last one.
///
/// # Safety
/// The results are NULL or valid for writes.
pub(crate) unsafe fn reason(
    counters: &Counters,
    reason: u32,
    name: *mut *const c_char,
    bytes: *mut u64,
) -> i32 {
    let reason = reason as usize;
    let (Some(text), Some(known)) = (names().get(reason), CopyReason::ALL.get(reason)) else { return 0 };
    if !name.is_null() {
        // SAFETY: not NULL, and by this function's contract.
        unsafe { name.write(text.as_ptr()) };
    }
    if !bytes.is_null() {
        let copied = counters.snapshot().copied_bytes;
        // SAFETY: as above.
        unsafe { bytes.write(copied.get(known.name()).copied().unwrap_or(0)) };
    }
    1
}

/// Bytes copied for a reason, and its name ("kernel", "small"...: docs/ledger.md). Reasons are
/// numbered from 0 on: returns 1, or 0 behind the last one. The name is the library's, and stays.
/// NULL is allowed for both results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_copied(
    sender: *const Sender,
    reason: u32,
    name: *mut *const c_char,
    bytes: *mut u64,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let counters = unsafe { get(sender, "sender") }?.sender.counters();
        // SAFETY: by the module's contract.
        Ok(unsafe { self::reason(&counters, reason, name, bytes) })
    })
}

/// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
/// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_path(
    sender: *const Sender,
    text: *mut c_char,
    size: libc::size_t,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { print(&get(sender, "sender")?.sender.path(), text, size) }))
}

/// ZW_MODE_AUTO: what was chosen for each class of lengths and why, for people, a line each, into
/// your buffer as zw_sender_path does. Empty in other modes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_choices(
    sender: *const Sender,
    text: *mut c_char,
    size: libc::size_t,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let choices = unsafe { get(sender, "sender") }?.sender.choices();
        let lines: String = choices.iter().map(|c| format!("{c}\n")).collect();
        // SAFETY: by the module's contract.
        Ok(unsafe { print(&lines, text, size) })
    })
}
