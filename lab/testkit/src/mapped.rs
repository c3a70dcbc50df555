//! The daemon's side of mapped receive, small: the handshake, and a writer of windows. Its windows
//! can be broken at will.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use zerowire_wire::doorbell::{awake, sleep_check, wake_if_sleeping};
use zerowire_wire::mapped::{
    DAEMON_WAITS_AT, ENTRIES_AT, ENTRY_EOM, ENTRY_EOR, ENTRY_LEN, MapOptions, MapReply, MapRequest, PAGE,
    POLL_DATA, POLL_END, POLL_NOTHING, PROGRAM_SLEEPS_AT, REQUEST_LEN, VERSION, VERSION_AT,
};

/// A daemon that listens on a socket of its own.
pub struct Daemon {
    dir: tempfile::TempDir,
    socket: OwnedFd,
}

impl Daemon {
    /// Listens in a folder of its own.
    #[allow(clippy::new_without_default, reason = "it makes files")]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        let address = SocketAddrUnix::new(dir.path().join("vm.map")).expect("short enough");
        rustix::net::bind(&socket, &address).expect("bound");
        rustix::net::listen(&socket, 16).expect("listening");
        Self { dir, socket }
    }

    /// Where it listens.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("vm.map")
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Takes a program, and what it asks for.
    pub fn accept(&self) -> MappedProgram {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).expect("a program");
        let mut bytes = [0; REQUEST_LEN];
        let (n, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()).expect("a request");
        MappedProgram { socket, request: MapRequest::from_bytes(&bytes[..n]).expect("a sound request") }
    }
}

/// A program in the handshake.
pub struct MappedProgram {
    /// The connection.
    pub socket: OwnedFd,
    /// What it asked for.
    pub request: MapRequest,
}

impl MappedProgram {
    /// Sends it these bytes and descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(80))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
            .expect("sent");
    }

    /// Refuses.
    pub fn refuse(&self, errno: i32, text: &str) {
        self.send(&MapReply::error(errno as u16, text).to_bytes(), &[]);
    }

    /// The first answer to LISTEN.
    pub fn listening(&self) {
        self.send(&self.reply(0).to_bytes(), &[]);
    }

    /// What a good answer says.
    pub fn reply(&self, regions: u16) -> MapReply {
        let options = self.request.options;
        MapReply { status: 0, host_port: 1024, guest_port: 77, options, regions, text: String::new() }
    }

    /// Makes a connection and hands it over.
    pub fn connect(&self) -> Writer {
        self.connect_with(&[])
    }

    /// The same with guest memory: files, and the offset and length of each region.
    pub fn connect_with(&self, regions: &[(OwnedFd, u64, u64)]) -> Writer {
        let (writer, theirs) = Writer::new(self.request.options, self.request.kind);
        let mut fds = vec![&writer.headers_file, &writer.data_file, &writer.ready, &writer.released, &theirs];
        fds.extend(regions.iter().map(|r| &r.0));
        self.send(&self.reply(regions.len() as u16).to_bytes(), &fds);
        if !regions.is_empty() {
            let table: Vec<u8> =
                regions.iter().flat_map(|r| [r.1.to_le_bytes(), r.2.to_le_bytes()].concat()).collect();
            self.send(&table, &[]);
        }
        writer
    }
}

/// A file in memory with seals.
pub fn memfd(len: usize, seals: SealFlags) -> OwnedFd {
    let file =
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&file, len as u64).expect("memory");
    rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
    file
}

/// A shared mapping for writing; it stays until the process ends.
struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory stays; who writes it when is the protocol's matter.
unsafe impl Send for Memory {}

impl Memory {
    fn new(file: &OwnedFd, len: usize) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self { base: base.expect("mapped").cast(), len }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.len);
        // SAFETY: in bounds, aligned, and never unmapped.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: in bounds; the window is the writer's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }
}

/// The daemon's end of a connection.
pub struct Writer {
    /// What was agreed.
    pub options: MapOptions,
    /// The file of the header pages.
    pub headers_file: OwnedFd,
    /// The file of the data pages.
    pub data_file: OwnedFd,
    /// Wakes the program.
    pub ready: OwnedFd,
    /// Wakes the daemon.
    pub released: OwnedFd,
    /// The other way: what the program sends.
    pub socket: OwnedFd,
    headers: Memory,
    data: Memory,
    stream: bool,
    window: u32,
    /// Of the window that is being written.
    entries: Vec<(u32, u32)>,
    pages: usize,
}

impl Writer {
    fn new(options: MapOptions, kind: u16) -> (Self, OwnedFd) {
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        let headers_file = memfd(options.headers_len(), fixed | SealFlags::SEAL);
        let data_file = memfd(options.data_len(), fixed);
        let headers = Memory::new(&headers_file, options.headers_len());
        let data = Memory::new(&data_file, options.data_len());
        rustix::fs::fcntl_add_seals(&data_file, SealFlags::FUTURE_WRITE | SealFlags::SEAL).expect("sealed");
        headers.word(VERSION_AT).store(u32::from(VERSION), Ordering::Relaxed);
        let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let socket_kind = if kind == 1 { SocketType::STREAM } else { SocketType::SEQPACKET };
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, socket_kind, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        let writer = Self {
            options,
            headers_file,
            data_file,
            ready: eventfd(),
            released: eventfd(),
            socket,
            headers,
            data,
            stream: kind == 1,
            window: 0,
            entries: Vec::new(),
            pages: 0,
        };
        (writer, theirs)
    }

    /// A word of a window's header pages.
    pub fn header_word(&self, window: u32, at: usize) -> &AtomicU32 {
        self.headers.word(self.options.header_at(window) + at)
    }

    /// Set while the program sleeps.
    pub fn program_sleeps(&self) -> &AtomicU32 {
        self.headers.word(PROGRAM_SLEEPS_AT)
    }

    /// Whether the program has given a window back.
    pub fn is_free(&self, window: u32) -> bool {
        self.header_word(window, 0).load(Ordering::Acquire) == POLL_NOTHING
    }

    /// Waits until the window that is written next is free.
    pub fn wait_free(&self) {
        let waits = self.headers.word(DAEMON_WAITS_AT);
        while sleep_check(waits, || self.is_free(self.window)) {
            rustix::io::read(&self.released, &mut [0; 8]).expect("a release");
            awake(waits);
        }
    }

    /// Writes one packet's payload into the window, as far as it fits, and returns how much did.
    pub fn append(&mut self, bytes: &[u8], flags: u32) -> usize {
        let room = self.options.window_data_len();
        let append = match self.entries.last() {
            Some((_, last)) if self.options.packed => self.stream || last & (ENTRY_EOM | ENTRY_EOR) == 0,
            _ => false,
        };
        let at = if append {
            let length = self.entries.last().expect("there is one").0 as usize;
            self.pages * PAGE - (length.next_multiple_of(PAGE) - length)
        } else {
            self.pages * PAGE
        };
        let n = bytes.len().min(room - at);
        if n == 0 || (!append && self.entries.len() == self.options.max_entries()) {
            return 0;
        }
        self.data.write(self.options.data_at(self.window) + at, &bytes[..n]);
        let flags = if n == bytes.len() { flags } else { 0 };
        if append {
            let last = self.entries.last_mut().expect("there is one");
            last.0 += n as u32;
            last.1 |= flags;
        } else {
            self.entries.push((n as u32, flags));
        }
        self.pages = (at + n).div_ceil(PAGE);
        n
    }

    /// Writes the headers and publishes.
    pub fn publish(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        for (i, (length, flags)) in entries.iter().chain([&(0, 0)]).enumerate() {
            self.header_word(self.window, ENTRIES_AT + i * ENTRY_LEN).store(*length, Ordering::Relaxed);
            self.header_word(self.window, ENTRIES_AT + i * ENTRY_LEN + 4).store(*flags, Ordering::Relaxed);
        }
        self.header_word(self.window, 4).store(self.pages as u32, Ordering::Relaxed);
        self.publish_as(POLL_DATA);
        self.window = (self.window + 1) % self.options.windows;
        self.pages = 0;
    }

    /// Stores the next window's `poll_value`, and wakes the program.
    pub fn publish_as(&self, value: u32) {
        self.header_word(self.window, 0).store(value, Ordering::Release);
        if wake_if_sleeping(self.program_sleeps()) {
            rustix::io::write(&self.ready, &1u64.to_ne_bytes()).expect("written");
        }
    }

    /// One window with these packets.
    pub fn window(&mut self, packets: &[(&[u8], u32)]) {
        for (bytes, flags) in packets {
            assert_eq!(self.append(bytes, *flags), bytes.len(), "fits");
        }
        self.publish();
    }

    /// A message or a piece of the stream, over as many windows as it needs; waits for free ones.
    pub fn send(&mut self, mut bytes: &[u8], flags: u32) {
        while !bytes.is_empty() {
            self.wait_free();
            let n = self.append(bytes, flags);
            bytes = &bytes[n..];
            self.publish();
        }
    }

    /// No more data will come, and none is missing.
    pub fn end(&self) {
        self.wait_free();
        self.header_word(self.window, 4).store(0, Ordering::Relaxed);
        self.header_word(self.window, ENTRIES_AT + 4).store(0, Ordering::Relaxed);
        self.publish_as(POLL_END);
    }

    /// Headers as they are given, for windows that no daemon should write.
    pub fn raw(&mut self, hdr_num: u32, entries: &[(u32, u32)]) {
        self.entries = entries.to_vec();
        self.pages = hdr_num as usize;
        self.publish();
    }

    /// Makes the window that was published last an empty one.
    pub fn repair(&mut self) {
        self.window = (self.window + self.options.windows - 1) % self.options.windows;
        self.raw(0, &[]);
    }
}
