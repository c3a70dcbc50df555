//! Payload structs: what the bytes after a header mean.
//!
//! `encode` writes the bytes; `decode` takes exactly the bytes of one payload
//! and checks what can be checked without knowing the device. Integers are in
//! the machine's byte order. Section names are those of "Message
//! Specification" in QEMU `docs/interop/vhost-user.rst`.

use crate::WireError;

/// The most regions that SET_MEM_TABLE carries.
pub const MAX_REGIONS: usize = 8;

/// Largest configuration space in bytes (`VHOST_USER_MAX_CONFIG_SIZE`).
pub const MAX_CONFIG: usize = 256;

/// A struct whose fields lie one behind the other on the wire.
macro_rules! wire_struct {
    ($(#[$about:meta])* $name:ident, $len:literal bytes { $($(#[$doc:meta])* $field:ident: $kind:ident,)* }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl $name {
            /// The bytes on the wire.
            pub fn encode(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                bytes.copy_from_slice(&[$(&self.$field.to_ne_bytes()[..]),*].concat());
                bytes
            }

            /// Reads the fields, which are there.
            pub(crate) fn read(mut bytes: &[u8]) -> Self {
                Self { $($field: $kind::from_ne_bytes($crate::payload::take(&mut bytes)),)* }
            }
        }
    };
}
pub(crate) use wire_struct;

/// What the addresses and offsets of a range must be.
const ADDRESS_FITS: &str = "low enough that address + size fits in 64 bits";
const OFFSET_FITS: &str = "low enough that offset + size fits in 64 bits";

/// Takes the next `N` bytes, which are there.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (mut taken, (first, rest)) = ([0; N], bytes.split_at(N));
    taken.copy_from_slice(first);
    *bytes = rest;
    taken
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(take(&mut &bytes[at..]))
}

fn exact(request: u32, body: &[u8], len: usize, rule: &'static str) -> Result<(), WireError> {
    if body.len() == len { Ok(()) } else { Err(WireError::BadSize { request, got: body.len(), rule }) }
}

/// Reads a payload of one u64.
pub(crate) fn decode_u64(request: u32, body: &[u8]) -> Result<u64, WireError> {
    exact(request, body, 8, "8 (one u64)")?;
    Ok(u64::from_ne_bytes(take(&mut &body[..])))
}

/// A field that is out of its range.
pub(crate) fn bad<T>(
    request: u32,
    field: &'static str,
    value: impl Into<u64>,
    rule: &'static str,
) -> Result<T, WireError> {
    Err(WireError::BadValue { request, field, value: value.into(), rule })
}

wire_struct! {
    /// A ring and a number ("A vring state description").
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    VringState, 8 bytes {
        /// Index of the ring.
        index: u32,
        /// The number: a size, an index or a flag, as the request says.
        num: u32,
    }
}

impl VringState {
    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 8 bytes.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 8, "8 (a ring index and a number)")?;
        Ok(Self::read(body))
    }
}

wire_struct! {
    /// Where a ring lies ("A vring address description"). Addresses are user
    /// addresses of the front end, to be translated by the memory table.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    VringAddr, 40 bytes {
        /// Index of the ring.
        index: u32,
        /// Bit 0: log writes to the used ring.
        flags: u32,
        /// Descriptor table.
        desc: u64,
        /// Used ring.
        used: u64,
        /// Available ring.
        avail: u64,
        /// Guest address for logging writes to the used ring.
        log: u64,
    }
}

impl VringAddr {
    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 40 bytes.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 40, "40 (the addresses of a ring)")?;
        Ok(Self::read(body))
    }
}

wire_struct! {
    /// One region of guest memory ("Memory region description").
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    MemoryRegion, 32 bytes {
        /// Guest-physical address of the first byte.
        guest_addr: u64,
        /// Bytes.
        size: u64,
        /// User address of the first byte in the front end; ring addresses
        /// (SET_VRING_ADDR) are given in these terms.
        user_addr: u64,
        /// Offset of the first byte in the region's file.
        mmap_offset: u64,
    }
}

impl MemoryRegion {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// Reads and checks a region: it has bytes, and neither its guest range,
    /// its user range nor its file range runs past 2^64.
    fn decode(request: u32, bytes: &[u8]) -> Result<Self, WireError> {
        let region = Self::read(bytes);
        if region.size == 0 {
            return bad(request, "the size of a region", region.size, "at least 1");
        }
        for (field, start, rule) in [
            ("the guest address of a region", region.guest_addr, ADDRESS_FITS),
            ("the user address of a region", region.user_addr, ADDRESS_FITS),
            ("the file offset of a region", region.mmap_offset, OFFSET_FITS),
        ] {
            if start.checked_add(region.size).is_none() {
                return bad(request, field, start, rule);
            }
        }
        Ok(region)
    }
}

/// All regions of guest memory ("Multiple memory regions description").
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MemoryTable {
    /// At most [`MAX_REGIONS`]; whether they overlap is not checked here.
    pub regions: Vec<MemoryRegion>,
}

impl MemoryTable {
    /// The bytes on the wire. More than [`MAX_REGIONS`] regions are written as
    /// they are; a receiver refuses them.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [(self.regions.len() as u32).to_ne_bytes(), [0; 4]].concat();
        self.regions.iter().for_each(|region| bytes.extend(region.encode()));
        bytes
    }

    /// Reads a table: as long as its regions need, or the whole array of eight, whose unused
    /// entries it ignores.
    ///
    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`].
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        let short =
            WireError::BadSize { request, got: body.len(), rule: "8 and 32 more for each region, or 264" };
        if body.len() < 8 {
            return Err(short);
        }
        let count = u32_at(body, 0) as usize;
        if count > MAX_REGIONS {
            return bad(request, "the number of regions", count as u64, "at most 8");
        }
        let needed = 8 + count * MemoryRegion::LEN;
        let longest = 8 + MAX_REGIONS * MemoryRegion::LEN;
        if body.len() != needed && body.len() != longest {
            return Err(short);
        }
        let regions = body[8..needed]
            .chunks_exact(MemoryRegion::LEN)
            .map(|bytes| MemoryRegion::decode(request, bytes))
            .collect::<Result<_, _>>()?;
        Ok(MemoryTable { regions })
    }
}

/// One region alone ("Single memory region description"), for ADD_MEM_REG and
/// REM_MEM_REG.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SingleRegion(pub MemoryRegion);

impl SingleRegion {
    /// Bytes on the wire: eight of padding and the region.
    pub const LEN: usize = 8 + MemoryRegion::LEN;

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[8..].copy_from_slice(&self.0.encode());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`].
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, Self::LEN, "40 (padding and one region)")?;
        Ok(SingleRegion(MemoryRegion::decode(request, &body[8..])?))
    }
}

/// A part of configuration space ("Virtio device config space").
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// First byte.
    pub offset: u32,
    /// 0: writable fields only; 1: live migration.
    pub flags: u32,
    /// The bytes; in a request they give the length only.
    pub data: Vec<u8>,
}

impl Config {
    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.offset, self.data.len() as u32, self.flags].map(u32::to_ne_bytes).concat();
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`].
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        let rule = "12 bytes and the length given in them, at most 268";
        let bad_size = WireError::BadSize { request, got: body.len(), rule };
        if body.len() < 12 {
            return Err(bad_size);
        }
        let (offset, size, flags) = (u32_at(body, 0), u32_at(body, 4), u32_at(body, 8));
        let end = u64::from(offset) + u64::from(size);
        if end > MAX_CONFIG as u64 {
            return bad(request, "the end of the part of configuration space", end, "at most 256");
        }
        if body.len() != 12 + size as usize {
            return Err(bad_size);
        }
        Ok(Config { offset, flags, data: body[12..].to_vec() })
    }
}

wire_struct! {
    /// Where the dirty log lies in its file ("Log description").
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    LogRegion, 16 bytes {
        /// Bytes.
        size: u64,
        /// Offset of the first byte in the file.
        mmap_offset: u64,
    }
}

impl LogRegion {
    /// # Errors
    /// [`WireError::BadSize`]; [`WireError::BadValue`] when size + offset
    /// does not fit in 64 bits.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 16, "16 (size and offset of the log)")?;
        let log = Self::read(body);
        if log.mmap_offset.checked_add(log.size).is_none() {
            return bad(request, "the file offset of the log", log.mmap_offset, OFFSET_FITS);
        }
        Ok(log)
    }
}

wire_struct! {
    /// The in-flight region ("Inflight description").
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    Inflight, 20 bytes {
        /// Bytes.
        mmap_size: u64,
        /// Offset of the first byte in the file.
        mmap_offset: u64,
        /// Number of queues.
        num_queues: u16,
        /// Entries of each queue.
        queue_size: u16,
    }
}

impl Inflight {
    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 20 bytes, or 24 with the
    /// padding that front ends written in C add.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        if body.len() != 24 {
            exact(request, body, 20, "20 or 24 (the in-flight region)")?;
        }
        Ok(Self::read(body))
    }
}

/// Which way a device's state goes ("Device state transfer parameters").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateTransfer {
    /// From the back end to the front end.
    Save,
    /// From the front end to the back end.
    Load,
}

impl StateTransfer {
    /// The bytes on the wire. The phase is always "stopped", the only one.
    pub fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&(self as u32).to_ne_bytes());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 8 bytes; [`WireError::BadValue`]
    /// for another direction or phase.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 8, "8 (direction and phase)")?;
        match (u32_at(body, 0), u32_at(body, 4)) {
            (_, phase @ 1..) => bad(request, "the phase", phase, "0 (all rings stopped)"),
            (0, _) => Ok(Self::Save),
            (1, _) => Ok(Self::Load),
            (other, _) => bad(request, "the direction", other, "0 (save) or 1 (load)"),
        }
    }
}
