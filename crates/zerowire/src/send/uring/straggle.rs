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
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// A queue that takes no more, as a stand-in for a full buffer.
    fn full() -> (OwnedFd, UnixDatagram) {
        let (a, b) = UnixDatagram::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        while a.send(b"before").is_ok() {}
        (a.into(), b)
    }

    fn batch() -> (Vec<Payload>, Vec<Accepted>) {
        let took = Accepted { bytes: 2, id: Some(0), refused: None };
        let lost = Accepted::lost;
        let sent = vec![lost(libc::EAGAIN), took, lost(libc::EPERM), lost(libc::EAGAIN), took];
        let payloads = (0u8..5).map(|i| Payload::from(vec![b'0' + i; 2])).collect();
        (payloads, sent)
    }

    #[test]
    fn those_without_room_are_sent_when_there_is_some() {
        let (a, b) = full();
        let (payloads, mut sent) = batch();
        let reader = std::thread::spawn(move || {
            let mut got = [0; 100];
            let mut all = Vec::new();
            while all.len() < 2 {
                let n = b.recv(&mut got).unwrap();
                if &got[..n] != b"before" {
                    all.push(got[..n].to_vec());
                }
            }
            all
        });
        Stragglers::new(Duration::from_secs(20)).send(&a, &payloads, &mut sent);
        assert_eq!(reader.join().unwrap(), [b"00", b"33"], "and no other");
        let late = Accepted { bytes: 2, id: None, refused: Some(libc::EAGAIN) };
        let (_, before) = batch();
        assert_eq!(sent, [late, before[1], before[2], late, before[4]]);
    }

    #[test]
    fn those_that_never_have_room_stay_lost() {
        let (a, _b) = full();
        let (payloads, mut sent) = batch();
        let mut stragglers = Stragglers::new(Duration::from_millis(5));
        stragglers.send(&a, &payloads, &mut sent);
        assert_eq!(sent, batch().1);
        let end = stragglers.end.expect("the deadline began with the first");
        stragglers.send(&a, &payloads, &mut sent);
        assert_eq!(stragglers.end, Some(end), "one deadline for all");
    }

    #[test]
    fn one_that_is_refused_for_good_says_why() {
        let (a, b) = full();
        drop(b);
        let (payloads, mut sent) = batch();
        Stragglers::new(Duration::from_secs(20)).send(&a, &payloads, &mut sent);
        let why = (sent[0].refused, sent[3].refused);
        // The first call forgets the peer.
        assert_eq!(why, (Some(libc::ECONNREFUSED), Some(libc::ENOTCONN)));
        assert!(sent[0].is_lost() && sent[3].is_lost());
    }
}
