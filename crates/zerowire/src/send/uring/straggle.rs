//! Datagrams of a batch that had no room in the socket's buffer when those behind them had.
//!
//! There was room for the whole batch when it was begun ([`send_room`]), so this needs another user
//! of the same socket. They are sent by plain calls, which copy: a ring that other senders use,
//! too, is neither needed nor kept meanwhile.
//!
//! [`send_room`]: crate::send::socket::connection::send_room

use crate::send::Payload;
use crate::send::backend::Accepted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The time that the stragglers of one call have, all together. It begins with the first.
pub(super) struct Stragglers {
    patience: Duration,
    end: Option<Instant>,
}

impl Stragglers {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, end: None }
    }

    /// Sends those of `payloads` that are lost because the socket had no room, each once at least,
    /// and enters the results into `sent`.
    pub(super) fn send(&mut self, socket: &OwnedFd, payloads: &[Payload], sent: &mut [Accepted]) {
        for (payload, sent) in payloads.iter().zip(sent) {
            if sent.is_lost() && sent.refused == Some(libc::EAGAIN) {
                self.send_one(socket, payload, sent);
            }
        }
    }

    #[cold]
    fn send_one(&mut self, socket: &OwnedFd, payload: &Payload, sent: &mut Accepted) {
        let end = *self.end.get_or_insert_with(|| Instant::now() + self.patience);
        // A file that can't be read any more: it stays lost.
        let Ok(bytes) = payload.gather(0) else { return };
        loop {
            match send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(bytes) => {
                    *sent = Accepted { bytes, id: None, refused: sent.refused };
                    return;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = end.saturating_duration_since(Instant::now());
                    let Ok(left) = Timespec::try_from(left) else { return };
                    if left.tv_sec == 0 && left.tv_nsec == 0 {
                        return;
                    }
                    // The next attempt returns an error of the socket.
                    let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&left));
                }
                Err(e) => {
                    *sent = Accepted::lost(e.raw_os_error());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
