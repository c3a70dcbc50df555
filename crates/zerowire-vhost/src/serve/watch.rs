//! What another process needs to go on with a session if this one dies without a word.
//!
//! ```text
//! no message to read ──▶ busy ──▶ messages are read, carried out, answered ──▶ settled ──▶ …
//!   a death here:          └─ what was read is lost: nobody goes on ─┘    the image holds
//! ```
//! A message that arrives while nothing is read stays in the front end's socket, which is in the
//! image. So each message is either carried out and answered, or still to be read. Between `busy`
//! and `settled` it may be neither, and a session that is cut off there ends with its connection.
//!
//! Rings move meanwhile, and the image does not follow them. Where they go on stands in guest
//! memory and in the in-flight region.

use std::fmt::Debug;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire_vhost_user::MessageSocket;

use crate::session::{Session, SessionImage};

/// Keeps the image of a session for the process that goes on if this one dies.
pub trait SessionWatch: Debug + Send + Sync {
    /// Messages are about to be read: the image before holds no more.
    ///
    /// # Errors
    /// Whoever keeps the image does not hear of it. The session ends then, and its messages stay
    /// unread.
    fn busy(&self) -> io::Result<()>;

    /// All messages that were read are carried out and answered. With this image another process
    /// can go on, or it can't for this reason.
    fn settled(&self, image: Result<SessionImage, String>);

    /// The session has ended.
    fn ended(&self);
}

/// What the watch has heard last of a session.
#[derive(Debug, PartialEq, Eq)]
enum LastWord {
    /// Nothing of this process. It may have the image of another one.
    Nothing,
    Busy,
    Settled,
}

/// The watch over one session.
pub(super) struct WatchedSession<'a> {
    watch: Option<&'a dyn SessionWatch>,
    heard: LastWord,
}

impl<'a> WatchedSession<'a> {
    /// Over a session that begins here.
    pub(super) fn new(watch: Option<&'a dyn SessionWatch>) -> Self {
        Self { watch, heard: LastWord::Nothing }
    }

    /// Whether to read now. False: there is nothing to read yet.
    pub(super) fn may_read(&mut self, connection: &MessageSocket) -> io::Result<bool> {
        let Some(watch) = self.watch.filter(|_| self.heard != LastWord::Busy) else { return Ok(true) };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..)) {
            return Ok(false);
        }
        watch.busy()?;
        self.heard = LastWord::Busy;
        Ok(true)
    }

    /// All that could be read was read.
    pub(super) fn settle(&mut self, session: &Session<'_>, connection: &MessageSocket) {
        if let Some(watch) = self.watch
            && self.heard != LastWord::Settled
        {
            watch.settled(session.snapshot(connection));
            self.heard = LastWord::Settled;
        }
    }
}

impl Drop for WatchedSession<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            watch.ended();
        }
    }
}

#[cfg(test)]
mod tests;
