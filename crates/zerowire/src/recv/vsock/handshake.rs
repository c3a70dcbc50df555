//! The request on `UDS.map`, the answers, and the descriptors that come with them.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::core::{MappedState, RegionFile};
use super::error::{Error, system};
use super::options::MappedOptions;
use super::wait::poll_for;
use zerowire_wire::mapped::{
    DESCRIPTORS, MAGIC, MAX_REGIONS, MapOp, MapReply, MapRequest, PAGE, REPLY_LEN, VERSION,
};

/// The daemon gives a guest 10 s to answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(15);

/// Bytes of a region's line in the table: its offset in the file, and its length.
const REGION_LEN: usize = 16;

/// Connects to a unix socket.
pub(super) fn socket(path: &Path, kind: SocketType) -> Result<OwnedFd, Error> {
    let address = SocketAddrUnix::new(path).map_err(|errno| Error::Path { path: path.to_owned(), errno })?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(system("socket(AF_UNIX)"))?;
    rustix::net::connect(&socket, &address).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => Error::NotPermitted {
            path: path.to_owned(),
            what: format!("{errno}: only users who may enter its folder and write the socket can connect"),
        },
        errno => Error::NoDaemon { path: path.to_owned(), errno },
    })?;
    Ok(socket)
}

/// Connects, sends a request, and waits for the answer, which grants it.
pub(super) fn ask(
    path: &Path,
    op: MapOp,
    port: u32,
    options: &MappedOptions,
) -> Result<(OwnedFd, MapAnswer), Error> {
    let request = MapRequest { op, port, kind: options.kind.number(), options: options.map };
    request.options.check().map_err(|what| Error::InvalidOptions { what })?;
    if port == u32::MAX {
        return Err(Error::InvalidOptions {
            what: "port 4294967295 is VMADDR_PORT_ANY: name one".to_owned(),
        });
    }
    let socket = socket(path, SocketType::SEQPACKET)?;
    match rustix::net::send(&socket, &request.to_bytes(), SendFlags::NOSIGNAL) {
        // The daemon may have closed it already; its reason is the answer that waits.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(Error::System { call: "send (the request)", errno }),
    }
    let answer = answer(&socket, path, port, Some(ANSWER_TIME))?.ok_or_else(|| no_answer(path))?;
    Ok((socket, answer))
}

pub(super) fn no_answer(path: &Path) -> Error {
    Error::NoAnswer { path: path.to_owned(), seconds: ANSWER_TIME.as_secs() }
}

/// An answer and its descriptors.
pub(super) struct MapAnswer {
    pub(super) reply: MapReply,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Waits for an answer, and turns a refusal into an error. None if `timeout` passes without one.
pub(super) fn answer(
    socket: &OwnedFd,
    path: &Path,
    port: u32,
    timeout: Option<Duration>,
) -> Result<Option<MapAnswer>, Error> {
    let mut bytes = [0; REPLY_LEN];
    let Some((len, descriptors)) = receive(socket, path, &mut bytes, timeout)? else { return Ok(None) };
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    if len >= 6 && bytes[..4] == MAGIC.to_le_bytes() && word(4) != VERSION {
        return Err(Error::Version { path: path.to_owned(), theirs: word(4), ours: VERSION });
    }
    let reply = MapReply::from_bytes(&bytes[..len])
        .map_err(|what| Error::BrokenHandshake { path: path.to_owned(), what })?;
    Ok(Some(MapAnswer { reply: accepted(reply, path, port)?, descriptors }))
}

fn receive(
    socket: &OwnedFd,
    path: &Path,
    bytes: &mut [u8],
    timeout: Option<Duration>,
) -> Result<Option<(usize, Vec<OwnedFd>)>, Error> {
    let deadline = timeout.map(|t| Instant::now() + t);
    if !poll_for(&mut [PollFd::new(socket, PollFlags::IN)], deadline)? {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS + MAX_REGIONS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut was_reset = false;
    let got = loop {
        let mut iov = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            // The daemon closed it with the request unread. The news comes once, before an answer
            // that waits, a refusal say.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET) => return Err(Error::Disconnected { path: path.to_owned() }),
            Err(errno) => return Err(Error::System { call: "recvmsg (the answer)", errno }),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        // Either too many came, or this process may not open as many.
        return Err(Error::System { call: "recvmsg (the connection's descriptors)", errno: Errno::MFILE });
    }
    if got.bytes == 0 {
        return Err(Error::Disconnected { path: path.to_owned() });
    }
    Ok(Some((got.bytes, descriptors)))
}

/// Turns a refusal into an error.
fn accepted(reply: MapReply, path: &Path, port: u32) -> Result<MapReply, Error> {
    let path = path.to_owned();
    let what = reply.text;
    Err(match i32::from(reply.status) {
        0 => return Ok(MapReply { text: what, ..reply }),
        libc::EPERM | libc::EACCES => Error::NotPermitted { path, what },
        libc::ECONNREFUSED | libc::ECONNRESET => Error::Refused { port, what },
        libc::ETIMEDOUT => Error::TimedOut { port, what },
        libc::EINVAL => Error::InvalidOptions { what },
        libc::EADDRINUSE => Error::PortTaken { port, path },
        errno => Error::Status { errno, what },
    })
}

/// What came with a connection, checked.
pub(super) struct MapParts {
    pub(super) core: MappedState,
    pub(super) ready: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) host_port: u32,
    pub(super) guest_port: u32,
}

/// Takes a connection from an answer. The table of guest memory follows it on `socket`.
pub(super) fn parts(answer: MapAnswer, socket: &OwnedFd, path: &Path) -> Result<MapParts, Error> {
    let MapAnswer { reply, descriptors } = answer;
    let broken = |what: String| Error::BrokenHandshake { path: path.to_owned(), what };
    let due = DESCRIPTORS + usize::from(reply.regions);
    let came = descriptors.len();
    let mut fds = descriptors.into_iter();
    let (true, Some(headers), Some(data), Some(ready), Some(released), Some(stream)) =
        (came == due, fds.next(), fds.next(), fds.next(), fds.next(), fds.next())
    else {
        return Err(broken(format!("{came} descriptors, where {due} are due")));
    };
    let options = reply.options;
    sealed(&headers, options.headers_len()).map_err(|e| broken(format!("the headers' file {e}")))?;
    sealed(&data, options.data_len()).map_err(|e| broken(format!("the data's file {e}")))?;
    let regions = regions(fds.collect(), socket, path)?;
    let slots = (0..options.windows).map(|_| Mutex::default()).collect();
    rustix::io::ioctl_fionbio(&ready, true).map_err(system("FIONBIO (the ready socket)"))?;
    rustix::io::ioctl_fionbio(&stream, false).map_err(system("FIONBIO (the socket)"))?;
    Ok(MapParts {
        core: MappedState { options, headers, data, regions, released, slots },
        ready,
        socket: stream,
        host_port: reply.host_port,
        guest_port: reply.guest_port,
    })
}

/// A file that shrinks would make an access SIGBUS.
fn sealed(file: &OwnedFd, len: usize) -> Result<(), String> {
    let size = rustix::fs::fstat(file).map_err(|e| e.to_string())?.st_size;
    if u64::try_from(size).is_ok_and(|size| size < len as u64) {
        return Err(format!("has {size} bytes, where {len} are due"));
    }
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|e| format!("has no seals ({e})"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("can shrink: F_SEAL_SHRINK is missing".to_owned());
    }
    Ok(())
}

fn regions(files: Vec<OwnedFd>, socket: &OwnedFd, path: &Path) -> Result<Vec<RegionFile>, Error> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let broken = |what: String| Error::BrokenHandshake { path: path.to_owned(), what };
    let mut table = [0; MAX_REGIONS * REGION_LEN];
    let (len, _) = receive(socket, path, &mut table, Some(ANSWER_TIME))?.ok_or_else(|| no_answer(path))?;
    if len != files.len() * REGION_LEN {
        return Err(broken(format!("a memory table of {len} bytes for {} regions", files.len())));
    }
    let mut found = Vec::new();
    for (i, (file, line)) in files.into_iter().zip(table.chunks_exact(REGION_LEN)).enumerate() {
        let word = |at: usize| line[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let (offset, len) = (word(0), word(8));
        let size = rustix::fs::fstat(&file).map_err(system("fstat (guest memory)"))?.st_size as u64;
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(broken(format!("memory region {i} at {offset:#x}, which is no page's start")));
        }
        let Some(len) =
            usize::try_from(len).ok().filter(|n| *n > 0 && *n as u64 <= size.saturating_sub(offset))
        else {
            return Err(broken(format!(
                "memory region {i} of {len:#x} bytes at {offset:#x} in a file of {size:#x}"
            )));
        };
        found.push(RegionFile { file, offset, len });
    }
    Ok(found)
}
