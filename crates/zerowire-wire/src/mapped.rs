//! The memory and the messages that a program and `zerowire vsock` share, version 1
//! (docs/mapped-receive.md).
//!
//! Plain code: offsets, limits, and the handshake's bytes.

/// Version of this layout and of the handshake.
pub const VERSION: u16 = 1;

/// Bytes of a page; windows are made of them.
pub const PAGE: usize = 4096;

/// `poll_value`: the window is the daemon's.
pub const POLL_NOTHING: u32 = 0;
/// `poll_value`: the window has data and is the program's, until it stores [`POLL_NOTHING`].
pub const POLL_DATA: u32 = 1;
/// `poll_value`: no more data will come.
pub const POLL_END: u32 = u32::MAX;

/// Entry flag: the last part of a message.
pub const ENTRY_EOM: u32 = 1;
/// Entry flag: the last part of a record.
pub const ENTRY_EOR: u32 = 2;
/// Entry flag: the payload lies in guest memory; the next entry is its offset, and the region's
/// number is in the bits from [`REGION_SHIFT`] on.
pub const ENTRY_DIRECT: u32 = 4;
/// In the flags of the first entry, beside [`POLL_END`]: not all that the guest sent has come.
pub const END_CUT_SHORT: u32 = 1;
/// Where the region's number begins.
pub const REGION_SHIFT: u32 = 8;

/// Where the entries begin in a window's header pages.
pub const ENTRIES_AT: usize = 8;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 8;

/// In the control page: the program sleeps, or is about to.
pub const PROGRAM_SLEEPS_AT: usize = 0;
/// In the control page: the daemon wants to hear of a release.
pub const DAEMON_WAITS_AT: usize = 64;
/// In the control page: the program reads no more, if it is not 0.
pub const READS_NO_MORE_AT: usize = 192;
/// In the control page: [`VERSION`].
pub const VERSION_AT: usize = 128;

/// Windows of a connection.
pub const WINDOWS: std::ops::RangeInclusive<u32> = 2..=64;
/// Header pages of a window.
pub const HEADER_PAGES: std::ops::RangeInclusive<u32> = 1..=16;
/// Data pages of a window.
pub const DATA_PAGES: std::ops::RangeInclusive<u32> = 1..=4096;

/// Options of a mapped connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapOptions {
    /// Windows in the ring: [`WINDOWS`].
    pub windows: u32,
    /// Header pages of a window: [`HEADER_PAGES`].
    pub header_pages: u32,
    /// Data pages of a window: [`DATA_PAGES`].
    pub data_pages: u32,
    /// Small packets of a stream share pages.
    pub packed: bool,
    /// A window is published when this many bytes are in it, or at the end: 1 to those of its data
    /// pages.
    pub lowat: u32,
    /// Bytes that the guest may send ahead; 0: what the daemon gives.
    pub credit: u32,
    /// Payload stays in the guest's memory where the daemon allows it.
    pub direct: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self {
            windows: 4,
            header_pages: 1,
            data_pages: 128,
            packed: true,
            lowat: 1,
            credit: 0,
            direct: false,
        }
    }
}

impl MapOptions {
    crate::setters! {
        windows: u32,
        header_pages: u32,
        data_pages: u32,
        packed: bool,
        lowat: u32,
        credit: u32,
        direct: bool,
    }

    /// Checks them.
    ///
    /// # Errors
    /// What is wrong, with the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, allowed) in [
            ("windows", self.windows, WINDOWS),
            ("header pages", self.header_pages, HEADER_PAGES),
            ("data pages", self.data_pages, DATA_PAGES),
            ("low-water mark", self.lowat, 1..=self.data_pages.saturating_mul(PAGE as u32)),
        ] {
            if !allowed.contains(&value) {
                return Err(format!("{name}: {value} is not in {} to {}", allowed.start(), allowed.end()));
            }
        }
        Ok(())
    }

    /// Bytes of the file with the control page and all header pages.
    #[inline]
    pub fn headers_len(&self) -> usize {
        (1 + self.windows as usize * self.header_pages as usize) * PAGE
    }

    /// Bytes of the file with all data pages.
    #[inline]
    pub fn data_len(&self) -> usize {
        self.windows as usize * self.window_data_len()
    }

    /// Bytes of a window's data pages.
    #[inline]
    pub fn window_data_len(&self) -> usize {
        self.data_pages as usize * PAGE
    }

    /// Where a window's header pages begin in their file.
    #[inline]
    pub fn header_at(&self, window: u32) -> usize {
        (1 + window as usize * self.header_pages as usize) * PAGE
    }

    /// Where a window's data pages begin in their file.
    #[inline]
    pub fn data_at(&self, window: u32) -> usize {
        window as usize * self.window_data_len()
    }

    /// Entries of a window at most, without the one that ends them.
    #[inline]
    pub fn max_entries(&self) -> usize {
        (self.header_pages as usize * PAGE - ENTRIES_AT) / ENTRY_LEN - 1
    }

    /// Bytes that a connection maps in all.
    pub fn total_len(&self) -> u64 {
        self.headers_len() as u64 + self.data_len() as u64
    }
}

/// First word of each message.
pub const MAGIC: u32 = 0x524d_575a;

/// Bytes of a request.
pub const REQUEST_LEN: usize = 64;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 256;
/// Bytes of a reply's text at most.
pub const TEXT_LEN: usize = 192;
/// Descriptors that come with a connection, without those of guest memory.
pub const DESCRIPTORS: usize = 5;
/// Regions of guest memory that come with a connection at most.
pub const MAX_REGIONS: usize = 64;

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MapOp {
    /// A connection to the guest's port.
    Connect = 1,
    /// The connections that the guest makes to a port of the host.
    Listen = 2,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// The request.
    pub op: MapOp,
    /// The guest's port, or the host's.
    pub port: u32,
    /// 1 for a stream, 2 for messages (virtio 1.3 §5.10.6).
    pub kind: u16,
    /// How to map.
    pub options: MapOptions,
}

const FLAG_PACKED: u16 = 1;
const FLAG_DIRECT: u16 = 2;

fn put16(b: &mut [u8], at: usize, n: u16) {
    b[at..at + 2].copy_from_slice(&n.to_le_bytes());
}

fn put32(b: &mut [u8], at: usize, n: u32) {
    b[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

fn get16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn get32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn put_options(b: &mut [u8], at: usize, o: &MapOptions) {
    for (i, n) in [o.windows, o.header_pages, o.data_pages, o.lowat, o.credit].into_iter().enumerate() {
        put32(b, at + 4 * i, n);
    }
}

fn get_options(b: &[u8], at: usize, flags: u16) -> MapOptions {
    MapOptions {
        windows: get32(b, at),
        header_pages: get32(b, at + 4),
        data_pages: get32(b, at + 8),
        lowat: get32(b, at + 12),
        credit: get32(b, at + 16),
        packed: flags & FLAG_PACKED != 0,
        direct: flags & FLAG_DIRECT != 0,
    }
}

fn flags_of(o: &MapOptions) -> u16 {
    (u16::from(o.packed) * FLAG_PACKED) | (u16::from(o.direct) * FLAG_DIRECT)
}

fn check_head(b: &[u8], len: usize, what: &str) -> Result<(), String> {
    if b.len() != len {
        return Err(format!("a {what} of {} bytes, where {len} are due", b.len()));
    }
    if get32(b, 0) != MAGIC {
        return Err(format!("a {what} that begins with {:#x}, where {MAGIC:#x} is due", get32(b, 0)));
    }
    let version = get16(b, 4);
    if version != VERSION {
        return Err(format!("a {what} of version {version}: this side knows version {VERSION}"));
    }
    Ok(())
}

impl MapRequest {
    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; REQUEST_LEN] {
        let mut b = [0; REQUEST_LEN];
        put32(&mut b, 0, MAGIC);
        put16(&mut b, 4, VERSION);
        put16(&mut b, 6, self.op as u16);
        put32(&mut b, 8, self.port);
        put16(&mut b, 12, self.kind);
        put16(&mut b, 14, flags_of(&self.options));
        put_options(&mut b, 16, &self.options);
        b
    }

    /// As it was received; checked, the options included.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(b: &[u8]) -> Result<Self, String> {
        check_head(b, REQUEST_LEN, "request")?;
        let op = match get16(b, 6) {
            1 => MapOp::Connect,
            2 => MapOp::Listen,
            n => return Err(format!("operation {n}: 1 is CONNECT, 2 is LISTEN")),
        };
        let kind = get16(b, 12);
        if !(1..=2).contains(&kind) {
            return Err(format!("type {kind}: 1 is a stream, 2 are messages"));
        }
        let flags = get16(b, 14);
        if flags & !(FLAG_PACKED | FLAG_DIRECT) != 0 {
            return Err(format!("flags {flags:#x}: 1 is packed, 2 is direct"));
        }
        let port = get32(b, 8);
        if port == u32::MAX {
            return Err(format!("port {port} is VMADDR_PORT_ANY"));
        }
        let options = get_options(b, 16, flags);
        options.check()?;
        Ok(Self { op, port, kind, options })
    }
}

/// The answer to a request, and the news of a connection that the guest has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapReply {
    /// 0, or an errno.
    pub status: u16,
    /// The program's port.
    pub host_port: u32,
    /// The guest's port.
    pub guest_port: u32,
    /// What was agreed on.
    pub options: MapOptions,
    /// Regions of guest memory that come along.
    pub regions: u16,
    /// Of an error: what is wrong, and what to do.
    pub text: String,
}

impl MapReply {
    /// A refusal.
    pub fn error(status: u16, text: impl Into<String>) -> Self {
        Self {
            status,
            host_port: 0,
            guest_port: 0,
            options: MapOptions::default(),
            regions: 0,
            text: text.into(),
        }
    }

    /// As it is sent; a text that is too long is cut.
    pub fn to_bytes(&self) -> [u8; REPLY_LEN] {
        let mut b = [0; REPLY_LEN];
        put32(&mut b, 0, MAGIC);
        put16(&mut b, 4, VERSION);
        put16(&mut b, 6, self.status);
        put32(&mut b, 8, self.host_port);
        put32(&mut b, 12, self.guest_port);
        put_options(&mut b, 16, &self.options);
        put16(&mut b, 36, flags_of(&self.options));
        put16(&mut b, 38, self.regions);
        let mut n = self.text.len().min(TEXT_LEN);
        while !self.text.is_char_boundary(n) {
            n -= 1;
        }
        b[64..64 + n].copy_from_slice(&self.text.as_bytes()[..n]);
        b
    }

    /// As it was received. The options of a connection are checked, for the other side's mistakes
    /// must not become mappings.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(b: &[u8]) -> Result<Self, String> {
        check_head(b, REPLY_LEN, "reply")?;
        let text = &b[64..];
        let end = text.iter().position(|c| *c == 0).unwrap_or(text.len());
        let reply = Self {
            status: get16(b, 6),
            host_port: get32(b, 8),
            guest_port: get32(b, 12),
            options: get_options(b, 16, get16(b, 36)),
            regions: get16(b, 38),
            text: String::from_utf8_lossy(&text[..end]).into_owned(),
        };
        if reply.status == 0 {
            reply.options.check()?;
            if usize::from(reply.regions) > MAX_REGIONS {
                return Err(format!("{} regions, where at most {MAX_REGIONS} are possible", reply.regions));
            }
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
