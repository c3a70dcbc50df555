//! Closes descriptors of a front end that may never close.
//!
//! close(2) of a file on FUSE waits for the process that serves it, and nothing interrupts that.
//! That of a TCP socket waits as long as its SO_LINGER says. A front end can send such descriptors
//! with any message, and they have to be closed. So those that come together are closed by a thread
//! of their own. A duplicate of the connection stands in the place of each: that is neither memory
//! nor an eventfd, and is refused as the file would be. The control thread goes on, also to its
//! end.
//!
//! While some are being closed a message with others ends the connection, and no next front end is
//! taken. So a VM takes a few threads of this process, and as many descriptors as come with a few
//! messages.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::memory::closes_at_once;

/// How long closing may take where a file system answers.
const PATIENCE: Duration = Duration::from_millis(200);

/// Stack of a thread that closes a descriptor, bytes.
const STACK_BYTES: usize = 16 * 1024;

/// What was taken of a message's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenFiles {
    Nothing,
    Some,
    /// Some, while others can't be closed.
    Busy,
}

/// Descriptors of a VM's front ends that are being closed.
#[derive(Debug, Default)]
pub(super) struct Closer {
    threads: Vec<JoinHandle<()>>,
}

impl Closer {
    /// Takes the descriptors that may not close at once, and puts duplicates of `connection` in
    /// their place.
    pub(super) fn take(&mut self, descriptors: &mut [OwnedFd], connection: impl AsFd) -> TakenFiles {
        let mut foreign = descriptors.iter_mut().filter(|fd| !closes_at_once(fd)).peekable();
        if foreign.peek().is_none() {
            return TakenFiles::Nothing;
        }
        let was_idle = self.becomes_idle();
        // Without a duplicate a descriptor stays, and this thread closes it.
        let duplicate = || connection.as_fd().try_clone_to_owned().ok();
        let taken: Vec<_> = foreign.map_while(|fd| Some(std::mem::replace(fd, duplicate()?))).collect();
        let thread = std::thread::Builder::new().name("close".to_owned()).stack_size(STACK_BYTES);
        // Without a thread they are closed here.
        self.threads.extend(thread.spawn(move || drop(taken)));
        if was_idle { TakenFiles::Some } else { TakenFiles::Busy }
    }

    /// Whether all is closed, now or in a moment.
    pub(super) fn becomes_idle(&mut self) -> bool {
        let begin = Instant::now();
        loop {
            self.threads.retain(|thread| !thread.is_finished());
            if self.threads.is_empty() || begin.elapsed() > PATIENCE {
                return self.threads.is_empty();
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
