//! A hook for tests that show which bytes really go out.

use super::super::Ticket;
use super::Sender;

/// Changes bytes of a payload that is lent, for tests that look at what arrives. False: not
/// lent any more, or not so long.
///
/// # Safety
/// The segment of the payload at `offset` must be memory that nobody else reads or writes
/// meanwhile but the kernel, and that is writable: an owned buffer or a lease.
pub unsafe fn scribble(sender: &mut Sender, ticket: Ticket, mut offset: usize, bytes: &[u8]) -> bool {
    let Some(payload) = sender.loans.window.payload(ticket) else { return false };
    for s in payload.segments() {
        if offset < s.len() {
            if s.len() - offset < bytes.len() {
                return false;
            }
            let to = s.as_ptr().cast_mut().wrapping_add(offset);
            // SAFETY: the segment has bytes.len() bytes behind offset; that they may be written
            // is the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            return true;
        }
        offset -= s.len();
    }
    false
}
