//! Whole messages over a Unix stream socket.
//!
//! The kernel delivers descriptors (SCM_RIGHTS) with the first byte that they
//! were sent with, and a read ends where descriptors of another send begin
//! (net/unix/af_unix.c). A read here never asks for more than the rest of one
//! message, so descriptors can't slip into the next message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::{
    FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, MAX_BODY, MAX_FDS, Message, Request, VERSION, WireError,
    retry_while_crowded,
};

/// How long a sender waits for a peer that reads nothing. Messages are a few
/// hundred bytes and the socket's buffer holds hundreds of them.
const SEND_PATIENCE: Duration = Duration::from_secs(5);

/// How long a sender of descriptors waits while its user has too many under way
/// in sockets: more than RLIMIT_NOFILE, of all its processes.
const CROWD_PATIENCE: Duration = Duration::from_secs(1);

/// One end of a vhost-user socket. Owns the socket and what has arrived of an
/// unfinished message.
#[derive(Debug)]
pub struct MessageSocket {
    stream: UnixStream,
    header: [u8; HEADER_LEN],
    body: Vec<u8>,
    parsed: Option<Header>,
    /// Bytes received of the part under way: the header, or the body once
    /// `parsed` is set.
    got: usize,
    fds: Vec<OwnedFd>,
}

impl MessageSocket {
    /// Uses `stream`. Blocking, time limits and polling are the caller's
    /// choice, by [`MessageSocket::stream`].
    pub fn new(stream: UnixStream) -> MessageSocket {
        MessageSocket {
            stream,
            header: [0; HEADER_LEN],
            body: Vec::new(),
            parsed: None,
            got: 0,
            fds: Vec::new(),
        }
    }

    /// Goes on where [`MessageSocket::unfinished`] left off, on the same
    /// connection.
    ///
    /// # Errors
    /// Those of the header ([`Header::decode`]); [`WireError::TooManyFds`];
    /// [`WireError::BadSize`] where the bytes are more than one message.
    pub fn resume(stream: UnixStream, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<MessageSocket, WireError> {
        if fds.len() > MAX_FDS {
            return Err(WireError::TooManyFds);
        }
        let mut socket = MessageSocket { fds, ..MessageSocket::new(stream) };
        let Some((header, body)) = bytes.split_first_chunk() else {
            socket.header[..bytes.len()].copy_from_slice(bytes);
            socket.got = bytes.len();
            return Ok(socket);
        };
        let parsed = Header::decode(header)?;
        let size = parsed.size as usize;
        if body.len() > size {
            let rule = "at most what its header announces";
            return Err(WireError::BadSize { request: parsed.request, got: body.len(), rule });
        }
        socket.header = *header;
        socket.got = body.len();
        socket.body = body.to_vec();
        socket.body.resize(size, 0);
        socket.parsed = Some(parsed);
        Ok(socket)
    }

    /// What has arrived of an unfinished message: its bytes, and the
    /// descriptors that came with them. Another process can go on from there
    /// ([`MessageSocket::resume`]).
    pub fn unfinished(&self) -> (Vec<u8>, &[OwnedFd]) {
        let (header, body) = match self.parsed {
            Some(_) => (&self.header[..], &self.body[..self.got]),
            None => (&self.header[..self.got], &[][..]),
        };
        ([header, body].concat(), &self.fds)
    }

    /// Connects to a listening socket.
    ///
    /// # Errors
    /// What connect(2) returns.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<MessageSocket> {
        UnixStream::connect(path).map(MessageSocket::new)
    }

    /// The socket, for polling and time limits.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Receives one message. `None` means that the peer closed the socket
    /// between two messages (a reset counts as that, too).
    ///
    /// On a socket that does not block, [`WireError::WouldBlock`] keeps what
    /// came so far, and the next call goes on from there.
    ///
    /// # Errors
    /// Those of the header ([`Header::decode`]), [`WireError::CutOff`],
    /// [`WireError::TooManyFds`], [`WireError::Io`]. All descriptors of the
    /// message are closed then, and the connection is of no more use.
    pub fn recv(&mut self) -> Result<Option<Message>, WireError> {
        self.recv_replacing(|_, _| {})
    }

    /// The same. `replace` sees the descriptors that have come, also of an
    /// unfinished message, before any of them is closed. It gets the socket, too.
    ///
    /// # Errors
    /// As [`MessageSocket::recv`].
    pub fn recv_replacing(
        &mut self,
        replace: impl FnOnce(&mut [OwnedFd], &UnixStream),
    ) -> Result<Option<Message>, WireError> {
        let mut result = self.recv_parts();
        let descriptors = match &mut result {
            Ok(Some(message)) => message.descriptors_mut(),
            _ => &mut self.fds,
        };
        replace(descriptors, &self.stream);
        if !matches!(result, Ok(Some(_)) | Err(WireError::WouldBlock)) {
            self.forget();
        }
        result
    }

    /// Sends a message with any number, flags and payload; the version is
    /// not added. All bytes go out, or an error comes back.
    ///
    /// # Errors
    /// [`WireError::TooLong`] and [`WireError::TooManyFds`] before anything is
    /// sent; [`WireError::Stalled`] when the peer doesn't read;
    /// [`WireError::Io`].
    pub fn send(
        &mut self,
        request: u32,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), WireError> {
        if body.len() > MAX_BODY {
            return Err(WireError::TooLong { request, got: body.len() as u64 });
        }
        let header = Header { request, flags, size: body.len() as u32 };
        self.send_bytes(&header.encode(), body, fds)
    }

    /// Sends a request, with NEED_REPLY if `need_reply`.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn send_request(
        &mut self,
        request: Request,
        need_reply: bool,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), WireError> {
        let flags = VERSION | if need_reply { FLAG_NEED_REPLY } else { 0 };
        self.send(request.number(), flags, body, fds)
    }

    /// Answers `to`.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn send_reply(&mut self, to: &Message, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        self.send(to.header().request, VERSION | FLAG_REPLY, body, fds)
    }

    /// Receives the reply to `request`.
    ///
    /// # Errors
    /// As [`MessageSocket::recv`]; [`WireError::CutOff`] at the end of the
    /// stream; [`WireError::UnexpectedReply`].
    pub fn recv_reply(&mut self, request: Request) -> Result<Message, WireError> {
        let reply = self.recv()?.ok_or(WireError::CutOff { got: 0, wanted: HEADER_LEN })?;
        if reply.header().request != request.number() || !reply.is_reply() {
            return Err(WireError::UnexpectedReply {
                wanted: request.number(),
                got: reply.header().request,
                flags: reply.header().flags,
            });
        }
        Ok(reply)
    }

    /// Receives the acknowledgement that NEED_REPLY asked for.
    ///
    /// # Errors
    /// As [`MessageSocket::recv_reply`]; [`WireError::Refused`] when the code is
    /// not 0.
    pub fn recv_ack(&mut self, request: Request) -> Result<(), WireError> {
        match self.recv_reply(request)?.u64()? {
            0 => Ok(()),
            code => Err(WireError::Refused { request: request.number(), code }),
        }
    }

    /// Sends bytes as they are, in one piece with `fds`: for tests of a
    /// peer's behaviour on broken messages.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        self.send_bytes(bytes, &[], fds)
    }

    fn forget(&mut self) {
        self.parsed = None;
        self.got = 0;
        self.fds.clear();
        self.body = Vec::new();
    }

    fn recv_parts(&mut self) -> Result<Option<Message>, WireError> {
        let header = match self.parsed {
            Some(header) => header,
            None => {
                while self.got < HEADER_LEN {
                    match read_some(&self.stream, &mut self.header[self.got..], &mut self.fds)? {
                        0 if self.got == 0 => return Ok(None),
                        0 => return Err(WireError::CutOff { got: self.got, wanted: HEADER_LEN }),
                        count => self.got += count,
                    }
                }
                let header = Header::decode(&self.header)?;
                self.body = vec![0; header.size as usize];
                self.got = 0;
                self.parsed = Some(header);
                header
            }
        };
        while self.got < self.body.len() {
            match read_some(&self.stream, &mut self.body[self.got..], &mut self.fds)? {
                0 => {
                    let (got, wanted) = (HEADER_LEN + self.got, HEADER_LEN + self.body.len());
                    return Err(WireError::CutOff { got, wanted });
                }
                count => self.got += count,
            }
        }
        self.parsed = None;
        self.got = 0;
        let body = std::mem::take(&mut self.body);
        let fds = std::mem::take(&mut self.fds);
        Ok(Some(Message::new(header, body, fds)))
    }

    fn send_bytes(&mut self, first: &[u8], second: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        if fds.len() > MAX_SENT_FDS {
            return Err(WireError::TooManyFds);
        }
        let total = first.len() + second.len();
        let (deadline, mut sent) = (Instant::now() + CROWD_PATIENCE, 0);
        while sent < total {
            let iov = [
                IoSlice::new(first.get(sent..).unwrap_or_default()),
                IoSlice::new(&second[sent.saturating_sub(first.len())..]),
            ];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SENT_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // The descriptors go with the first byte only. The space fits
            // MAX_SENT_FDS, so the push can't fail.
            if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(WireError::TooManyFds);
            }
            let send = || sendmsg(&self.stream, &iov, &mut control, SendFlags::NOSIGNAL);
            match retry_while_crowded(deadline, send) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_writable(total - sent)?,
                Err(Errno::TOOMANYREFS) => return Err(WireError::Crowded),
                Err(error) => return Err(WireError::Io(error.into())),
            }
        }
        Ok(())
    }

    fn wait_writable(&self, left: usize) -> Result<(), WireError> {
        let stalled = WireError::Stalled { left, seconds: SEND_PATIENCE.as_secs() };
        let limit = Timespec { tv_sec: SEND_PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => Err(stalled),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(WireError::Io(error.into())),
        }
    }
}

/// As many descriptors as the kernel passes at once (`SCM_MAX_FD`).
const PASSED_FDS: usize = 253;

/// The most descriptors that [`MessageSocket::send_raw`] and
/// [`MessageSocket::send`] attach; more than [`MAX_FDS`], so that tests can send
/// too many.
const MAX_SENT_FDS: usize = 64;

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads up to `buffer.len()` bytes (not 0) and appends descriptors to `fds`. Returns how many
/// bytes came: 0 at the end of the stream.
fn read_some(stream: &UnixStream, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, WireError> {
    loop {
        // What has no room the kernel closes here and now.
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PASSED_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(buffer)];
        let result = match recvmsg(stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Err(WireError::WouldBlock),
            Err(Errno::CONNRESET) => return Ok(0),
            Err(error) => return Err(WireError::Io(error.into())),
            Ok(result) => result,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if result.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(WireError::TooManyFds);
        }
        return Ok(result.bytes);
    }
}
