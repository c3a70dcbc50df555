//! What an event loop sleeps on.

use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What an event loop sleeps on.
pub(super) struct EngineWatch {
    /// An epoll instance with the event and the stones of closed rings in it.
    pub(super) all: Arc<OwnedFd>,
    /// Signalled by the ring.
    pub(super) event: OwnedFd,
}

impl EngineWatch {
    pub(super) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&all, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { all: Arc::new(all), event })
    }

    /// An error (a counter that is full) leaves it readable, as it should be.
    pub(super) fn set(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8][..]);
    }
}
