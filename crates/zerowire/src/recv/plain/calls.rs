//! The system calls of plain receiving.

use crate::recv::core::{Placed, RecvState};
use crate::recv::lease::Filled;
use rustix::io::Errno;
use rustix::net::SocketFlags;

/// Buffers a `recvmsg` at most.
pub(super) const PIECES: usize = 8;
/// Connections that are accepted from one socket at a time.
const ACCEPTS: usize = 64;

/// Accepts what waits at the listening socket `index`.
pub(super) fn accept(core: &mut RecvState, index: u32) {
    for _ in 0..ACCEPTS {
        let Some(fd) = core.listeners.fd(index).filter(|_| core.listeners.may_accept(index)) else { return };
        let accepted = rustix::net::accept_with(fd, SocketFlags::CLOEXEC);
        core.called();
        match accepted {
            Ok(socket) => core.listeners.accept(index, socket),
            Err(Errno::AGAIN) => return,
            Err(e) => core.listeners.refused(index, e.raw_os_error()),
        }
    }
}

/// One `recvmsg` that doesn't wait, of the connection at `place`, into up to `wanted` free buffers
/// and `limit` bytes at most. Delivers what came. Returns the bytes received, or the errno, and how
/// many bytes were asked for; `None` if no buffer is free.
pub(super) fn receive(
    core: &mut RecvState,
    place: u32,
    wanted: usize,
    limit: usize,
) -> Option<(Result<usize, i32>, usize)> {
    let buffer_bytes = core.buffer_bytes;
    let mut slots = [0; PIECES];
    let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    let (mut count, mut asked) = (0, 0);
    while count < wanted
        && let Some(slot) = core.holdings.take()
    {
        let len = buffer_bytes.min(limit - asked);
        slots[count] = slot;
        vector[count] = libc::iovec { iov_base: core.buffer(slot).cast(), iov_len: len };
        asked += len;
        count += 1;
    }
    if count == 0 {
        return None;
    }
    core.called();
    let result = match core.fd(place) {
        // SAFETY: each piece lies in a buffer that was just taken from the book: nobody else reads
        // or writes it.
        Some(fd) => unsafe { zerowire_sys::socket::receive(fd, &vector[..count]) },
        None => Err(libc::EBADF),
    };
    let result = result.map(|received| received.len);
    let got = *result.as_ref().unwrap_or(&0);
    let used = got.div_ceil(buffer_bytes).min(count);
    for slot in slots[used..count].iter().rev() {
        core.holdings.untake(*slot);
    }
    for (k, slot) in slots[..used].iter().enumerate() {
        let len = (got - k * buffer_bytes).min(buffer_bytes);
        // SAFETY: the call has returned, so the kernel has let go of the buffer.
        let filled = unsafe { Filled::buffer(*slot, len, buffer_bytes) };
        core.deliver(place, filled, Placed::ByKernel);
    }
    Some((result, asked))
}
