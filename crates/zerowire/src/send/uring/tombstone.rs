//! When a ring is gone for good.
//!
//! A ring that is closed while memory is lent lives on in the kernel until the last notification,
//! and tells nobody. But it keeps its registered files that long (io_uring/io_uring.c,
//! `io_ring_exit_work`, then `io_ring_ctx_free`). So the write end of a pipe is registered with
//! each ring and closed here. The read end sees the end of the pipe when the ring is gone. Any
//! thread can look, which matters for rings that only their own thread may enter.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use zerowire_sys::uring::ring::SendRing;

/// Places of a ring's table of files: this one's, and [`SOCKET_PLACE`].
const PLACES: u32 = 2;
/// The place for the socket of a ring that serves only one.
pub(super) const SOCKET_PLACE: u32 = 1;

/// The read end of the pipe.
#[derive(Debug)]
pub(super) struct Tombstone(OwnedFd);

impl Tombstone {
    /// Buries the write end in `ring`: makes its table of files, and takes place 0.
    pub(super) fn new(ring: &SendRing) -> io::Result<Self> {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        ring.prepare_files(PLACES)?;
        ring.register_file(0, write.as_raw_fd())?;
        Ok(Self(read))
    }

    /// Adds it to an epoll instance: ready when the ring has been freed.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> io::Result<()> {
        use rustix::event::epoll;
        epoll::add(epoll, &self.0, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(Into::into)
    }

    /// Whether the ring has been freed, with all that it held.
    pub(super) fn is_gone(&self) -> bool {
        let mut byte = [0u8; 1];
        matches!(rustix::io::read(&self.0, &mut byte), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use zerowire_sys::uring::ring::Threads;

    #[test]
    fn a_closed_ring_is_gone_soon_and_an_open_one_is_not() {
        let ring = SendRing::new(4, 8, Threads::One).expect("io_uring is needed for this test");
        let stone = Tombstone::new(&ring).unwrap();
        assert!(!stone.is_gone());
        drop(ring);
        let end = Instant::now() + Duration::from_secs(20);
        while !stone.is_gone() {
            assert!(Instant::now() < end, "the kernel kept a ring without requests");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
