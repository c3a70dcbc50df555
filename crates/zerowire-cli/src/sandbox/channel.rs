//! Messages between the supervisor and a child: JSON, with descriptors, on a socket that keeps
//! their bounds.
//!
//! Neither side trusts the other to read: a message that the socket has no room for is an error.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a message at most. Statistics of 128 queue pairs have some 6 KB.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Descriptors of a message at most: what the kernel takes (SCM_MAX_FD).
pub(crate) const DESCRIPTORS: usize = 253;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Both ends; the second one is for a child.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that a child got.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends a message with descriptors, without waiting.
    ///
    /// # Errors
    /// The other side reads nothing, or is gone; the message is too long.
    pub(crate) fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MESSAGE_BYTES || fds.len() > DESCRIPTORS {
            return Err(Errno::MSGSIZE.into());
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::MSGSIZE.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Sends as [`Self::send`] does, and waits until `deadline` while the socket has no room.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn send_until(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.send(message, fds) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && !left.is_zero() => {
                    let left =
                        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                    let _ = poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&left));
                }
                other => return other,
            }
        }
    }

    /// Waits for a message and its descriptors, all of them or none. None: the other side is gone.
    ///
    /// # Errors
    /// What came is another message, or none.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        // While it waits it has no memory for a message: there are many that wait.
        let mut bytes = vec![0; self.next_len()];
        loop {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let got = match recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // The other side is gone and left messages unread. What it sent comes next.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                other => other?,
            };
            let mut fds = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            if got.bytes == 0 {
                return Ok(None);
            }
            if got.flags.contains(ReturnFlags::TRUNC) {
                return Err(Errno::MSGSIZE.into());
            }
            if got.flags.contains(ReturnFlags::CTRUNC) {
                // This process has no room for all of them.
                fds.clear();
            }
            return Ok(Some((serde_json::from_slice(&bytes[..got.bytes])?, fds)));
        }
    }

    /// Waits for a message, and returns how much room it takes, bytes.
    fn next_len(&self) -> usize {
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
        loop {
            match recvmsg(&self.0, &mut [], &mut RecvAncillaryBuffer::default(), flags) {
                // The other side has left messages unread: that is said once, and first.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                // The end has no message: what is wrong is found when that is read.
                Err(_) => return 1,
                Ok(got) => return got.bytes.clamp(1, MESSAGE_BYTES),
            }
        }
    }

    /// Both sides find the other one gone.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        ours.send(&"first", &[reader.as_fd(), writer.as_fd()]).expect("room");
        ours.send(&"second", &[]).expect("room");
        let (text, fds) = theirs.receive::<String>().expect("a message").expect("not the end");
        assert_eq!((text.as_str(), fds.len()), ("first", 2));
        let (text, fds) = theirs.receive::<String>().expect("a message").expect("not the end");
        assert_eq!((text.as_str(), fds.len()), ("second", 0));
        assert!(ours.send(&"x".repeat(MESSAGE_BYTES), &[]).is_err());
        assert!(ours.send(&[1], &[]).is_ok() && theirs.receive::<String>().is_err(), "no text");
        drop(ours);
        assert!(theirs.receive::<String>().expect("the end").is_none());
    }

    #[test]
    fn what_the_other_side_has_sent_comes_although_it_left_messages_unread() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        ours.send(&"unread", &[]).expect("room");
        theirs.send(&"last", &[]).expect("room");
        drop(theirs);
        assert_eq!(ours.receive::<String>().expect("a message").expect("not the end").0, "last");
        assert!(ours.receive::<String>().expect("the end").is_none());
    }

    /// A side that reads nothing holds the other one up nowhere.
    #[test]
    fn a_full_socket_is_an_error() {
        let (ours, _theirs) = Channel::pair().expect("a pair");
        let text = "x".repeat(MESSAGE_BYTES / 2);
        assert!((0..1000).any(|_| ours.send(&text, &[]).is_err()));
        let late = ours.send_until(&text, &[], Instant::now() + std::time::Duration::from_millis(20));
        assert_eq!(late.expect_err("it is full").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn who_may_wait_waits_for_room() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        let text = "x".repeat(MESSAGE_BYTES / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| drop(theirs.receive::<String>())));
            let deadline = Instant::now() + std::time::Duration::from_secs(10);
            for _ in 0..50 {
                ours.send_until(&text, &[], deadline).expect("room");
            }
        });
    }
}
