//! Where a follower knows an interface's state from: it looks, or another process tells it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use zerowire_sys::lock;
use zerowire_sys::xdp::Interface;

use super::LinkState;
use crate::port::{LinkWatch, WatchedLinks};

/// Looks at one interface; readable when there may be something new.
#[derive(Debug)]
pub struct LinkObserver {
    interface: String,
    /// The interface that was up last: it may bear another name by now.
    held: Option<Interface>,
    watch: LinkWatch,
}

impl LinkObserver {
    /// Looks at `interface` in this thread's network namespace, which must be that of the thread
    /// that uses the value as well.
    ///
    /// # Errors
    /// No socket for link events can be had.
    pub fn new(interface: &str) -> io::Result<Self> {
        Ok(Self { interface: interface.to_owned(), held: None, watch: LinkWatch::new(WatchedLinks::Any)? })
    }

    /// Whether the interface can carry frames.
    pub fn look(&mut self) -> LinkState {
        self.watch.drain();
        // One that was renamed while it carried frames goes on to do so.
        let of = |held: &Option<_>| held.as_ref().map_or(LinkState::Gone, LinkState::of);
        let mut state = of(&self.held);
        if state == LinkState::Gone {
            self.held = Interface::open(&self.interface).ok();
            state = of(&self.held);
        }
        if state != LinkState::Up {
            // Ports look for it by name when a front end comes.
            self.held = None;
        }
        state
    }
}

impl AsFd for LinkObserver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// The state of an interface as another process has told it last; readable when it was told since
/// somebody looked.
#[derive(Debug)]
pub struct ToldLink {
    state: Mutex<LinkState>,
    wake: OwnedFd,
}

impl ToldLink {
    /// With a state that was told.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(state: LinkState) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::new(state), wake })
    }

    /// Another state was told.
    pub fn tell(&self, state: LinkState) {
        *lock(&self.state) = state;
        // One that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn look(&self) -> LinkState {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8][..]);
        *lock(&self.state)
    }
}

/// By which a follower knows the state.
pub(crate) enum LinkEyes {
    Own(LinkObserver),
    Told(Arc<ToldLink>),
}

impl LinkEyes {
    /// Those of another process if it tells, else this process's own.
    pub(crate) fn new(interface: &str, told: Option<Arc<ToldLink>>) -> io::Result<Self> {
        Ok(match told {
            Some(told) => Self::Told(told),
            None => Self::Own(LinkObserver::new(interface)?),
        })
    }

    pub(super) fn look(&mut self) -> LinkState {
        match self {
            Self::Own(observer) => observer.look(),
            Self::Told(told) => told.look(),
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(observer) => observer.as_fd(),
            Self::Told(told) => told.wake.as_fd(),
        }
    }
}
