//! Messages between the supervisor and a child: JSON, with descriptors, on a socket that keeps
//! their bounds.
//!
//! Neither side trusts the other to read: a message that the socket has no room for is an error.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerowire_confine::ChildProcess;
use zerowire_vhost_user::retry_while_crowded;

use super::lock;
use super::pace::{HearingPace, thread_cpu_time};

/// Bytes of a message at most. Statistics of 128 queue pairs have some 6 KB.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Descriptors of a message at most: what the kernel takes (SCM_MAX_FD).
pub(crate) const DESCRIPTORS: usize = 253;

/// How long the supervisor tries to send descriptors to a child that it waits for.
pub(crate) const SEND_PATIENCE: Duration = Duration::from_secs(2);

/// How long a child tries to send descriptors while its user has too many under way.
pub(crate) const CROWD_PATIENCE: Duration = Duration::from_millis(200);

/// How long what a child has said is read behind its death.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One end.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Some: the other end is a child's.
    hearing: Option<Mutex<Hearing>>,
}

/// How a child is heard. It tries to keep its supervisor busy, or to be heard behind its death.
#[derive(Debug, Default)]
struct Hearing {
    pace: HearingPace,
    /// The child's process id.
    id: Option<Pid>,
    /// The child's process.
    process: Option<OwnedFd>,
    /// Its death was seen. Others may have its end, and go on talking.
    is_dead: bool,
    /// Nothing is heard from then on.
    until: Option<Instant>,
}

impl Hearing {
    /// Waits for a message on this socket, or for the child's death. False: nothing comes any more.
    fn awaits(&mut self, socket: &OwnedFd) -> bool {
        let wait = self.pace.heard(Instant::now(), thread_cpu_time());
        std::thread::sleep(wait);
        loop {
            let left = self.until.map(|until| until.checked_duration_since(Instant::now()));
            let timeout = match left {
                Some(None) => return false,
                // Behind its death it only matters what is there already.
                Some(_) if self.is_dead => Some(Timespec::default()),
                Some(Some(left)) => Some(timespec(left)),
                None => None,
            };
            let process = self.process.as_ref().filter(|_| !self.is_dead);
            let socket = PollFd::new(socket, PollFlags::IN);
            let mut fds: Vec<_> =
                [socket].into_iter().chain(process.map(|p| PollFd::new(p, PollFlags::IN))).collect();
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => {
                    // First: others may have its end, and keep it full.
                    if fds.get(1).is_some_and(|process| !process.revents().is_empty()) {
                        (self.is_dead, self.until) = (true, Some(Instant::now() + LAST_WORDS));
                    }
                    if !fds[0].revents().is_empty() {
                        return true;
                    }
                }
                Err(_) => {}
            }
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Why descriptors can't be sent. All processes of a user together may have as many under way in
/// sockets as one may have open (RLIMIT_NOFILE), but for those with CAP_SYS_RESOURCE.
fn crowded() -> io::Error {
    let text = "too many descriptors of this user wait in sockets until somebody receives them: raise the limit of \
                open files ('ulimit -n', or LimitNOFILE= in a unit), or grant CAP_SYS_RESOURCE";
    io::Error::new(io::ErrorKind::QuotaExceeded, text)
}

/// Whether descriptors could not be sent since too many are under way: later they may.
pub(crate) fn is_crowded(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::QuotaExceeded
}

/// A descriptor that shows when a child has ended.
///
/// # Errors
/// Those of pidfd_open(2).
pub(super) fn watch(child: &ChildProcess) -> io::Result<OwnedFd> {
    Ok(pidfd_open(child.pid(), PidfdFlags::empty())?)
}

/// Waits until the process of this descriptor has ended, for this long at most.
pub(super) fn died_within(process: &OwnedFd, patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        let timeout = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

impl Channel {
    /// Both ends; the second one is for a child.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self { socket: ours, hearing: Some(Mutex::default()) }, theirs))
    }

    /// Hears this child until it dies, whoever has its end by then.
    ///
    /// # Errors
    /// Those of pidfd_open(2).
    pub(crate) fn hear_until_death(&self, child: &ChildProcess) -> io::Result<()> {
        let process = watch(child);
        if let Some(hearing) = &self.hearing {
            let mut hearing = lock(hearing);
            hearing.id = Some(child.pid());
            hearing.process = Some(process?);
        }
        Ok(())
    }

    /// The process id of the child that is heard. It has not been waited for.
    pub(crate) fn child_id(&self) -> Option<Pid> {
        self.hearing.as_ref().and_then(|hearing| lock(hearing).id)
    }

    /// The end that a child got.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self { socket, hearing: None }
    }

    /// Sends a message with descriptors, without waiting.
    ///
    /// # Errors
    /// The other side reads nothing, or is gone; the message is too long; [`is_crowded`].
    pub(crate) fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let now = Instant::now();
        self.send_bytes(&serde_json::to_vec(message)?, fds, now, now)
    }

    /// Sends as [`Self::send`] does, and waits until `deadline` while too many descriptors are
    /// under way.
    pub(crate) fn send_when_few(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        self.send_bytes(&serde_json::to_vec(message)?, fds, Instant::now(), deadline)
    }

    /// The same, and waits until `deadline` while the socket has no room, but no longer than
    /// [`SEND_PATIENCE`] for descriptors to arrive.
    pub(crate) fn send_until(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        let few = deadline.min(Instant::now() + SEND_PATIENCE);
        self.send_bytes(&serde_json::to_vec(message)?, fds, deadline, few)
    }

    /// Waits until `room` for room in the socket, and until `few` for descriptors to arrive.
    fn send_bytes(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        room: Instant,
        mut few: Instant,
    ) -> io::Result<()> {
        if bytes.len() > MESSAGE_BYTES || fds.len() > DESCRIPTORS {
            return Err(Errno::MSGSIZE.into());
        }
        // Another child of a child's user may keep descriptors under way for good.
        if self.hearing.is_none() {
            few = few.min(Instant::now() + CROWD_PATIENCE);
        }
        loop {
            match retry_while_crowded(few, || self.try_send(bytes, fds)) {
                Err(Errno::AGAIN) if Instant::now() < room => {
                    let left = timespec(room.saturating_duration_since(Instant::now()));
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&left));
                }
                Err(Errno::TOOMANYREFS) => return Err(crowded()),
                sent => return Ok(sent?),
            }
        }
    }

    fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::MSGSIZE);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
    }

    /// Waits for a message and its descriptors, all of them or none. None: the other side is gone.
    /// Who hears a child waits longer where that talks all the time.
    ///
    /// # Errors
    /// What came is another message, or none.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((bytes, fds)) = self.receive_bytes()? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&bytes)?, fds)))
    }

    fn receive_bytes(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        if self.hearing.as_ref().is_some_and(|hearing| !lock(hearing).awaits(&self.socket)) {
            return Ok(None);
        }
        // While it waits it has no memory for a message: there are many that wait.
        let mut bytes = vec![0; self.next_len()];
        loop {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let got = match recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
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
            bytes.truncate(got.bytes);
            return Ok(Some((bytes, fds)));
        }
    }

    /// Waits for a message, and returns how much room it takes, bytes.
    fn next_len(&self) -> usize {
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
        loop {
            match recvmsg(&self.socket, &mut [], &mut RecvAncillaryBuffer::default(), flags) {
                // The other side has left messages unread: that is said once, and first.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                // The end has no message: what is wrong is found when that is read.
                Err(_) => return 1,
                Ok(got) => return got.bytes.clamp(1, MESSAGE_BYTES),
            }
        }
    }

    /// Whether nothing more comes from the other end.
    pub(crate) fn is_left(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut ends, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Lets the other end see that nothing more comes. What it says is heard for `patience` at
    /// most.
    pub(crate) fn send_no_more(&self, patience: Duration) {
        if let Some(hearing) = &self.hearing {
            lock(hearing).until = Some(Instant::now() + patience);
        }
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Both sides find the other one gone.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;

    use zerowire_testkit::own_process;
    use zerowire_testkit::process::{become_ordinary, limit};

    use super::*;

    /// Sends descriptors until the kernel takes no further one. They are under way as long as the
    /// other end is there, which this returns.
    pub(crate) fn crowd() -> Channel {
        let null = File::open("/dev/null").expect("it is there");
        let (other, unread) = Channel::pair().expect("a pair");
        while other.send(&"", &[null.as_fd(); 60]).is_ok() {}
        Channel::of(unread)
    }

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
        let late = ours.send_until(&text, &[], Instant::now() + Duration::from_millis(20));
        assert_eq!(late.expect_err("it is full").kind(), io::ErrorKind::WouldBlock);
    }

    /// It has handed its end on, and whoever has that talks on.
    #[test]
    fn a_child_is_heard_until_it_dies() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        let child = std::process::Command::new("sleep").arg("100").spawn().expect("a process");
        let mut child = ChildProcess::from(child);
        ours.hear_until_death(&child).expect("watched");
        theirs.send(&"alive", &[]).expect("room");
        assert_eq!(ours.receive::<String>().expect("a message").expect("not the end").0, "alive");
        theirs.send(&"last", &[]).expect("room");
        child.kill().expect("killed");
        child.wait().expect("it ends");
        assert_eq!(ours.receive::<String>().expect("a message").expect("not the end").0, "last");
        assert!(ours.receive::<String>().expect("the end").is_none());
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| while theirs.send_until(&"more", &[], deadline).is_ok() {});
            while ours.receive::<String>().expect("a message").is_some() {
                assert!(Instant::now() < deadline, "it is heard on");
            }
            ours.close();
        });
    }

    #[test]
    fn a_child_that_talks_all_the_time_takes_a_part_of_a_cpu() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        let text = "x".repeat(MESSAGE_BYTES / 2);
        let (cpu, time) = std::thread::scope(|scope| {
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(600);
                while theirs.send_until(&text, &[], deadline).is_ok() {}
            });
            let (begin, before) = (Instant::now(), thread_cpu_time());
            while begin.elapsed() < Duration::from_secs(2) {
                ours.receive::<String>().expect("a message");
            }
            let used = (thread_cpu_time() - before, begin.elapsed());
            ours.close();
            used
        });
        assert!(cpu < time / 2, "{cpu:?} of {time:?}");
    }

    /// A user without rights may have as many descriptors under way as one of its processes may
    /// open.
    #[test]
    fn descriptors_wait_until_others_have_arrived() {
        own_process!();
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        limit(libc::RLIMIT_NOFILE, 32, 32).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        let fds = [ours.as_fd(); 4];
        let sent = (0..100).take_while(|_| ours.send(&"early", &fds).is_ok()).count();
        let refused = ours.send(&"early", &fds).expect_err("too many");
        assert!(is_crowded(&refused) && refused.to_string().contains("'ulimit -n'"), "{refused}");
        // Nobody waits for good where another child may keep them under way.
        let late = theirs.send_when_few(&"late", &fds, Instant::now() + Duration::from_secs(600));
        assert!(is_crowded(&late.expect_err("too many")));
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let got = || theirs.receive::<String>().expect("a message").expect("not the end");
                (0..sent).for_each(|_| assert_eq!(got().1.len(), 4));
                got()
            });
            ours.send_when_few(&"late", &fds, Instant::now() + Duration::from_secs(60))
                .expect("they are few");
            let (text, fds) = reads.join().expect("no panic");
            assert_eq!((text.as_str(), fds.len()), ("late", 4));
        });
    }

    #[test]
    fn who_may_wait_waits_for_room() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel::of(theirs);
        let text = "x".repeat(MESSAGE_BYTES / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| drop(theirs.receive::<String>())));
            let deadline = Instant::now() + Duration::from_secs(10);
            for _ in 0..50 {
                ours.send_until(&text, &[], deadline).expect("room");
            }
        });
    }
}
