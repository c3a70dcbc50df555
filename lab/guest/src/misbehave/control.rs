//! vhost-user messages that a back end must survive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerowire_vhost_user::{
    FLAG_NEED_REPLY, FLAG_REPLY, Header, MAX_BODY, MemoryRegion, MemoryTable, MessageSocket, Request,
    SingleRegion, VERSION, VringAddr, VringState,
};

use crate::GuestError;

/// A descriptor to send along.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FdKind {
    /// A memfd of this many bytes.
    Memory(u64),
    /// An eventfd.
    Event,
}

/// One malformed message. The back end must refuse it (an acknowledgement with a value other than
/// 0), or end the connection. It must not crash, keep a descriptor, or disturb other connections.
#[derive(Clone, Debug)]
pub struct Malformed {
    /// What is wrong.
    pub name: String,
    /// Everything on the wire, header included.
    pub bytes: Vec<u8>,
    /// Descriptors that go with the first byte.
    pub fds: Vec<FdKind>,
    /// Whether bytes are missing, so that the back end waits for more until
    /// the socket is closed.
    pub cut: bool,
}

impl Malformed {
    /// A message with these parts; the size in the header is right.
    pub fn new(name: impl Into<String>, request: u32, body: &[u8], fds: &[FdKind]) -> Malformed {
        let header = Header { request, flags: VERSION | FLAG_NEED_REPLY, size: body.len() as u32 };
        Self::with_header(name, header, body, fds)
    }

    /// A message with any header.
    pub fn with_header(name: impl Into<String>, header: Header, body: &[u8], fds: &[FdKind]) -> Malformed {
        Malformed {
            name: name.into(),
            bytes: [header.encode().as_slice(), body].concat(),
            fds: fds.to_vec(),
            cut: body.len() < header.size as usize && (header.size as usize) <= MAX_BODY,
        }
    }

    /// Sends it. The descriptors are made for it and closed here afterwards.
    ///
    /// # Errors
    /// [`GuestError::Io`], [`GuestError::Wire`].
    pub fn send(&self, connection: &mut MessageSocket) -> Result<(), GuestError> {
        let files: Vec<OwnedFd> = self
            .fds
            .iter()
            .map(|kind| kind.make())
            .collect::<io::Result<_>>()
            .map_err(|e| GuestError::io("making descriptors to send", e))?;
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(|f| f.as_fd()).collect();
        Ok(connection.send_raw(&self.bytes, &fds)?)
    }
}

impl FdKind {
    fn make(self) -> io::Result<OwnedFd> {
        Ok(match self {
            FdKind::Memory(len) => {
                let file = memfd_create("misbehave", MemfdFlags::CLOEXEC)?;
                ftruncate(&file, len)?;
                file
            }
            FdKind::Event => eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }
}

/// Every malformed message that the tests of a back end with `queues` queues
/// should try, each on a connection of its own after the handshake.
pub fn malformed_messages(queues: u32) -> Vec<Malformed> {
    let mut all = headers();
    all.extend(sizes());
    all.extend(rings(queues));
    all.extend(ring_descriptors(queues));
    all.extend(memory());
    all
}

/// Wrong headers and messages that stop in the middle.
fn headers() -> Vec<Malformed> {
    let header = |request, flags, size| Header { request, flags, size };
    let features = Request::GetFeatures.number();
    let mut all = vec![
        Malformed::new("request 0", 0, &[], &[]),
        Malformed::new("request 45", 45, &[0; 8], &[]),
        Malformed::new("request 2^32 - 1", u32::MAX, &[], &[]),
        Malformed::with_header("version 0", header(features, 0, 0), &[], &[]),
        Malformed::with_header("version 3", header(features, 3, 0), &[], &[]),
        Malformed::with_header(
            "a reply that nobody asked for",
            header(features, VERSION | FLAG_REPLY, 8),
            &[0; 8],
            &[],
        ),
        Malformed::with_header(
            "a payload of 2^32 - 1 bytes",
            header(Request::SetConfig.number(), VERSION, u32::MAX),
            &[],
            &[],
        ),
        Malformed::with_header(
            "a payload one byte too long",
            header(Request::SetConfig.number(), VERSION, MAX_BODY as u32 + 1),
            &[0; 64],
            &[],
        ),
        Malformed::with_header(
            "a payload cut off, with a descriptor",
            header(Request::SetVringKick.number(), VERSION, 8),
            &[0; 3],
            &[FdKind::Event],
        ),
    ];
    for len in [1, 4, 11] {
        let mut message = Malformed::new(format!("a header cut off at {len}"), features, &[], &[]);
        message.bytes.truncate(len);
        message.cut = true;
        all.push(message);
    }
    for count in [1, 8, 9, 30] {
        let fds = vec![FdKind::Event; count];
        let name = format!("{count} descriptors with a request that takes none");
        all.push(Malformed::new(name, Request::SetOwner.number(), &[], &fds));
    }
    all
}

/// Wrong payload sizes for each request that has a payload.
fn sizes() -> Vec<Malformed> {
    use Request::*;
    let mut all = Vec::new();
    for (request, right) in [
        (SetFeatures, 8),
        (SetProtocolFeatures, 8),
        (SetMemTable, 8),
        (SetVringNum, 8),
        (SetVringBase, 8),
        (SetVringAddr, 40),
        (GetVringBase, 8),
        (SetVringKick, 8),
        (SetVringCall, 8),
        (SetVringErr, 8),
        (SetVringEnable, 8),
        (NetSetMtu, 8),
        (AddMemReg, 40),
        (RemMemReg, 40),
        (SetStatus, 8),
    ] {
        for size in [0, right - 1, right + 1, MAX_BODY] {
            let name = format!("{} with {size} bytes", request.name());
            all.push(Malformed::new(name, request.number(), &vec![0; size], &[]));
        }
    }
    all
}

/// Ring indices, sizes, bases and addresses out of range.
fn rings(queues: u32) -> Vec<Malformed> {
    use Request::*;
    let mut all = Vec::new();
    let mut state = |name: String, request: Request, index, num| {
        let body = VringState { index, num }.encode();
        all.push(Malformed::new(name, request.number(), &body, &[]));
    };
    for request in [SetVringNum, SetVringBase, SetVringEnable, GetVringBase] {
        for index in [queues, 256, u32::MAX] {
            let name = format!("{} for ring {index} of {queues}", request.name());
            state(name, request, index, 1);
        }
    }
    for num in [0, 3, 255, 32769, 65536, u32::MAX] {
        state(format!("a ring of {num} entries"), SetVringNum, 0, num);
    }
    for num in [65536, u32::MAX] {
        state(format!("a ring that goes on at {num}"), SetVringBase, 0, num);
    }
    state("a ring enabled by 2".into(), SetVringEnable, 0, 2);
    let mut addr = |name: &str, index, [desc, avail, used]: [u64; 3]| {
        let body = VringAddr { index, flags: 0, desc, used, avail, log: 0 }.encode();
        all.push(Malformed::new(name, SetVringAddr.number(), &body, &[]));
    };
    addr("addresses of a ring out of range", queues, [0x1000, 0x2000, 0x3000]);
    addr("addresses that are in no region", 0, [0x1000, 0x2000, 0x3000]);
    addr("addresses that are odd", 0, [0x1001, 0x2001, 0x3001]);
    addr("addresses at the end of the address space", 0, [u64::MAX - 15; 3]);
    all
}

/// Descriptors that don't go with their message.
fn ring_descriptors(queues: u32) -> Vec<Malformed> {
    use Request::*;
    let mut all = Vec::new();
    for request in [SetVringKick, SetVringCall, SetVringErr] {
        let mut add = |what: &str, value: u64, fds: &[FdKind]| {
            let name = format!("{} {what}", request.name());
            let body = value.to_ne_bytes();
            all.push(Malformed::new(name, request.number(), &body, fds));
        };
        add("without its descriptor", 0, &[]);
        add("with two descriptors", 0, &[FdKind::Event; 2]);
        add("with a descriptor and the bit for none", 0x100, &[FdKind::Event]);
        add("with a memfd for an eventfd", 0, &[FdKind::Memory(4096)]);
        add("with unknown bits", 1 << 63, &[FdKind::Event]);
        if queues <= 0xff {
            add("for a ring out of range", queues.into(), &[FdKind::Event]);
            add("for ring 255", 0xff, &[FdKind::Event]);
        }
    }
    all
}

/// Memory tables and regions that can't be.
fn memory() -> Vec<Malformed> {
    const SIZE: u64 = 1 << 20;
    let good = MemoryRegion { guest_addr: 1 << 40, size: SIZE, user_addr: 1 << 44, mmap_offset: 0 };
    let file = FdKind::Memory(SIZE);
    let mut all = Vec::new();
    let mut table = |name: &str, regions: &[MemoryRegion], fds: &[FdKind]| {
        let body = MemoryTable { regions: regions.to_vec() }.encode();
        all.push(Malformed::new(name, Request::SetMemTable.number(), &body, fds));
    };
    table("a table of 9 regions", &[good; 9], &[file; 8]);
    table("a table without descriptors", &[good], &[]);
    table("a table with a descriptor too many", &[good], &[file; 2]);
    table("a table with the same region twice", &[good; 2], &[file; 2]);
    let overlap =
        MemoryRegion { guest_addr: good.guest_addr + SIZE / 2, user_addr: good.user_addr + SIZE, ..good };
    table("a table with regions that overlap", &[good, overlap], &[file; 2]);
    let bad_regions = [
        ("a region of 0 bytes", MemoryRegion { size: 0, ..good }),
        ("a region longer than its file", MemoryRegion { size: SIZE * 2, ..good }),
        ("a region behind its file", MemoryRegion { mmap_offset: SIZE, ..good }),
        ("a region of nearly 2^64 bytes", MemoryRegion { size: u64::MAX - 4095, ..good }),
        ("a region that wraps", MemoryRegion { guest_addr: u64::MAX - 4095, ..good }),
        ("a region whose user range wraps", MemoryRegion { user_addr: u64::MAX - 4095, ..good }),
        ("a region whose offset wraps", MemoryRegion { mmap_offset: u64::MAX - 4095, ..good }),
    ];
    for (name, region) in bad_regions {
        table(&format!("a table with {name}"), &[region], &[file]);
    }
    table("a table with an eventfd for memory", &[good], &[FdKind::Event]);
    let mut single = |name: &str, request: Request, region, fds: &[FdKind]| {
        let body = SingleRegion(region).encode();
        let name = format!("{} of {name}", request.name());
        all.push(Malformed::new(name, request.number(), &body, fds));
    };
    for (name, region) in bad_regions {
        single(name, Request::AddMemReg, region, &[file]);
    }
    single("a region without a descriptor", Request::AddMemReg, good, &[]);
    single("a region with two descriptors", Request::AddMemReg, good, &[file; 2]);
    single("an eventfd", Request::AddMemReg, good, &[FdKind::Event]);
    single("a region that is not there", Request::RemMemReg, good, &[]);
    all
}
