//! An image through a unix stream socket.
//!
//! ```text
//! count of descriptors u32 | length u32 | the image's bytes | a byte for each 253 descriptors
//! ```
//! Numbers are little-endian. The kernel takes at most 253 descriptors in one message (SCM_MAX_FD),
//! so the descriptors go with one byte each time. A read ends where descriptors end, so the reader
//! gets them as they were sent.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerowire_vhost_user::{MAX_FDS, retry_while_crowded};

use super::{ImageError, MAX_RINGS, SessionImage, at_most, check_length};
use crate::memory::MAX_REGIONS;

/// Descriptors of a message at most.
const PART: usize = 253;

/// How long descriptors wait while too many others are under way.
const CROWD_PATIENCE: Duration = Duration::from_secs(1);

/// Descriptors of an image at most: eight stand once in it, and each ring has three.
const MAX_FILES: usize = 8 + MAX_FDS + MAX_REGIONS + 3 * MAX_RINGS;

impl SessionImage {
    /// Sends the image. The socket's own time limit bounds how long that takes, and 1 s for each
    /// 253 descriptors where too many are under way.
    ///
    /// # Errors
    /// Those of [`Self::encode`], and [`ImageError::System`] with what the socket says.
    pub fn send(self, mut socket: &UnixStream) -> Result<(), ImageError> {
        let (bytes, files) = self.encode()?;
        let failed = |e: io::Error| ImageError::system("sending it", e);
        let head = [files.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
        socket.write_all(&head).map_err(failed)?;
        socket.write_all(&bytes).map_err(failed)?;
        for part in files.chunks(PART) {
            let part: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
            send_part(socket, &part).map_err(failed)?;
        }
        Ok(())
    }

    /// Receives an image. The socket's own time limit bounds how long that takes.
    ///
    /// # Errors
    /// Those of [`Self::decode`], and [`ImageError::System`] with what the socket says. The
    /// socket's position is unknown then.
    pub fn receive(mut socket: &UnixStream) -> Result<Self, ImageError> {
        let failed = |e: io::Error| ImageError::system("receiving it", e);
        let mut head = [0; 8];
        socket.read_exact(&mut head).map_err(failed)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (count, len) = (number(0) as usize, number(4) as usize);
        at_most("descriptors", count, MAX_FILES)?;
        check_length(len)?;
        let mut bytes = vec![0; len];
        socket.read_exact(&mut bytes).map_err(failed)?;
        let mut files = Vec::with_capacity(count);
        while files.len() < count {
            let got = receive_part(socket, &mut files).map_err(failed)?;
            if got == 0 || files.len() > count {
                return Err(ImageError::Descriptors { got: files.len(), named: count });
            }
        }
        Self::decode(&bytes, files)
    }
}

fn send_part(socket: &UnixStream, part: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PART))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space fits a part, so the push can't fail.
    if !control.push(SendAncillaryMessage::ScmRights(part)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let byte = [IoSlice::new(&[0])];
    let mut send = || sendmsg(socket, &byte, &mut control, SendFlags::NOSIGNAL);
    retry_while_crowded(Instant::now() + CROWD_PATIENCE, || retry_on_intr(&mut send))?;
    Ok(())
}

/// Returns how many descriptors came.
fn receive_part(socket: &UnixStream, files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PART))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut iov = [IoSliceMut::new(&mut byte)];
    let result = retry_on_intr(|| recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let before = files.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    if result.flags.contains(ReturnFlags::CTRUNC) {
        // This process has no room for them: a part fits the space.
        return Err(rustix::io::Errno::MFILE.into());
    }
    if result.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(files.len() - before)
}
