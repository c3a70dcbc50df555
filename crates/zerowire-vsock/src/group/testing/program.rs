//! A program with mapped receive that does everything by system calls on the files. It can be as
//! hostile as a script wants it: no memory of this process is at stake.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use zerowire_wire::doorbell::{ANY, only};
use zerowire_wire::mapped::{
    DAEMON_WAITS_AT, DESCRIPTORS, ENTRIES_AT, ENTRY_DIRECT, ENTRY_EOM, ENTRY_LEN, MAX_REGIONS, MapOptions,
    MapReply, MapRequest, PAGE, POLL_DATA, POLL_END, POLL_NOTHING, REGION_SHIFT, REPLY_LEN,
};

/// A program at the control socket.
pub struct Program {
    control: OwnedFd,
}

/// What the control socket said.
pub enum Answer {
    /// Nothing yet.
    Nothing,
    /// The device has closed it.
    Closed,
    /// An error, or that it listens now.
    Reply(MapReply),
    /// A connection.
    Mapped(Box<Mapped>),
}

impl Program {
    /// Connects to `UDS.map`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let control = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&control, &SocketAddrUnix::new(path)?)?;
        Ok(Self { control })
    }

    /// Connects and asks.
    pub fn ask(path: &Path, request: &MapRequest) -> io::Result<Self> {
        let program = Self::connect(path)?;
        program.say(&request.to_bytes());
        Ok(program)
    }

    /// Sends a message, of whatever bytes.
    pub fn say(&self, bytes: &[u8]) {
        let _ = rustix::net::send(&self.control, bytes, SendFlags::NOSIGNAL);
    }

    /// Takes the next reply. Panics where the device sends what can't be one.
    pub fn take(&self) -> Answer {
        let mut bytes = [0; REPLY_LEN + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS + MAX_REGIONS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let list = &mut [IoSliceMut::new(&mut bytes)];
        let n = match rustix::net::recvmsg(&self.control, list, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(r) if r.bytes == 0 => return Answer::Closed,
            Ok(r) => r.bytes,
            Err(rustix::io::Errno::AGAIN) => return Answer::Nothing,
            Err(_) => return Answer::Closed,
        };
        let reply = MapReply::from_bytes(&bytes[..n]).unwrap_or_else(|e| panic!("a reply: {e}"));
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                descriptors.extend(list);
            }
        }
        if descriptors.is_empty() {
            return Answer::Reply(reply);
        }
        assert_eq!(descriptors.len(), DESCRIPTORS + usize::from(reply.regions), "{reply:?}");
        let regions: Vec<OwnedFd> = descriptors.drain(DESCRIPTORS..).collect();
        let mut table = vec![0; 16 * regions.len()];
        if !regions.is_empty() {
            match rustix::net::recv(&self.control, &mut table[..], RecvFlags::empty()) {
                Ok((n, _)) if n == table.len() => {}
                // The device found no room for it: this one is out of step.
                _ => return Answer::Closed,
            }
        }
        let word = |i: usize| table[8 * i..8 * i + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let regions = regions.into_iter().enumerate().map(|(i, file)| (file, word(2 * i))).collect();
        let Ok([headers, data, ready, released, socket]) = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
        else {
            return Answer::Closed;
        };
        Answer::Mapped(Box::new(Mapped {
            options: reply.options,
            port: reply.guest_port,
            host_port: reply.host_port,
            headers,
            data,
            ready,
            released,
            socket,
            regions,
            next: 0,
        }))
    }
}

/// A window with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its place in the ring.
    pub window: u32,
    /// Its payload.
    pub bytes: Vec<u8>,
    /// Bytes of it that lie in guest memory.
    pub direct: usize,
    /// Where messages end.
    pub ends: Vec<usize>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing yet.
    Nothing,
    /// No more data will come.
    End,
    /// A window, which is the program's from now on.
    Window(Window),
}

/// A mapped connection.
pub struct Mapped {
    /// What was agreed on.
    pub options: MapOptions,
    /// The guest's port.
    pub port: u32,
    /// The host's.
    pub host_port: u32,
    headers: OwnedFd,
    data: OwnedFd,
    /// This side of the wake-up socket.
    pub ready: OwnedFd,
    /// The daemon's eventfd.
    pub released: OwnedFd,
    /// The way to the guest.
    pub socket: OwnedFd,
    /// Files of guest memory, and where in them the regions begin.
    regions: Vec<(OwnedFd, u64)>,
    next: u32,
}

impl Mapped {
    /// A word of the headers file.
    pub fn word(&self, at: usize) -> u32 {
        let mut b = [0; 4];
        match rustix::io::pread(&self.headers, &mut b, at as u64) {
            Ok(4) => u32::from_le_bytes(b),
            other => panic!("the headers file at {at}: {other:?}"),
        }
    }

    /// Stores any value in any word of the headers file.
    pub fn store(&self, at: usize, value: u32) {
        let at = (at % self.options.headers_len()) & !3;
        assert_eq!(rustix::io::pwrite(&self.headers, &value.to_le_bytes(), at as u64), Ok(4));
    }

    /// Stores any value as a window's `poll_value`.
    pub fn set_poll(&self, window: u32, value: u32) {
        self.store(self.options.header_at(window % self.options.windows), value);
    }

    /// Whether what must not be possible is not: other sizes of the files, and writing data pages.
    pub fn is_sealed(&self) -> bool {
        rustix::fs::ftruncate(&self.headers, 0).is_err()
            && rustix::fs::ftruncate(&self.headers, 1 << 30).is_err()
            && rustix::fs::ftruncate(&self.data, 0).is_err()
            && rustix::io::pwrite(&self.data, &[1], 0).is_err()
    }

    fn copy(file: &OwnedFd, at: u64, len: usize, to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + len, 0);
        let n = rustix::io::pread(file, &mut to[start..], at);
        assert_eq!(n, Ok(len), "{len} bytes at {at}");
    }

    /// The window that comes next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The next window in order, read as docs/mapped-receive.md says. Panics where it can't be
    /// right, so only for a program that wrote nothing into its header pages but what it should.
    pub fn dequeue(&mut self) -> Next {
        let start = self.options.header_at(self.next);
        match self.word(start) {
            POLL_NOTHING => return Next::Nothing,
            POLL_END => return Next::End,
            value => assert_eq!(value, POLL_DATA),
        }
        let mut w = Window { window: self.next, ..Window::default() };
        let (mut i, mut page) = (0, 0);
        loop {
            assert!(i <= self.options.max_entries(), "no end of the entries");
            let at = start + ENTRIES_AT + i * ENTRY_LEN;
            let (len, flags) = (self.word(at) as usize, self.word(at + 4));
            i += 1;
            if len == 0 {
                break;
            }
            if flags & ENTRY_DIRECT != 0 {
                let at = start + ENTRIES_AT + i * ENTRY_LEN;
                let offset = u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32;
                i += 1;
                let (file, first) = &self.regions[(flags >> REGION_SHIFT) as usize];
                Self::copy(file, first + offset, len, &mut w.bytes);
                w.direct += len;
            } else {
                let at = self.options.data_at(self.next) + page * PAGE;
                page += len.div_ceil(PAGE);
                Self::copy(&self.data, at as u64, len, &mut w.bytes);
            }
            if flags & ENTRY_EOM != 0 {
                w.ends.push(w.bytes.len());
            }
        }
        assert_eq!(page, self.word(start + 4) as usize, "hdr_num");
        assert!(!w.bytes.is_empty(), "a window with nothing in it");
        self.next = (self.next + 1) % self.options.windows;
        Next::Window(w)
    }

    /// Gives a window back, and wakes the daemon if it waits.
    pub fn release(&self, window: u32) {
        self.set_poll(window, POLL_NOTHING);
        // As the library does (`doorbell::wake_if_wanted`): a daemon that waits for another window
        // is left in peace.
        if [ANY, only(window)].contains(&self.word(DAEMON_WAITS_AT)) {
            self.store(DAEMON_WAITS_AT, 0);
            self.ring(1);
        }
    }

    /// With all that it has but its socket, so that the device sees it leave.
    pub fn without_socket(self) -> Option<Self> {
        let nowhere = self.ready.try_clone().ok()?;
        Some(Self { socket: nowhere, ..self })
    }

    /// Writes the eventfd.
    pub fn ring(&self, value: u64) {
        let _ = rustix::io::write(&self.released, &value.to_ne_bytes());
    }
}
