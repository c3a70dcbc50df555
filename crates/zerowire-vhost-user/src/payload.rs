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

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn exact(request: u32, body: &[u8], len: usize, rule: &'static str) -> Result<(), WireError> {
    if body.len() == len { Ok(()) } else { Err(WireError::BadSize { request, got: body.len(), rule }) }
}

/// Reads a payload of one u64.
pub(crate) fn decode_u64(request: u32, body: &[u8]) -> Result<u64, WireError> {
    exact(request, body, 8, "8 (one u64)")?;
    Ok(u64_at(body, 0))
}

/// A ring and a number ("A vring state description").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VringState {
    /// Index of the ring.
    pub index: u32,
    /// The number: a size, an index or a flag, as the request says.
    pub num: u32,
}

impl VringState {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.index.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.num.to_ne_bytes());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 8 bytes.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 8, "8 (a ring index and a number)")?;
        Ok(VringState { index: u32_at(body, 0), num: u32_at(body, 4) })
    }
}

/// Where a ring lies ("A vring address description"). Addresses are user
/// addresses of the front end, to be translated by the memory table.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VringAddr {
    /// Index of the ring.
    pub index: u32,
    /// Bit 0: log writes to the used ring.
    pub flags: u32,
    /// Descriptor table.
    pub desc: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub avail: u64,
    /// Guest address for logging writes to the used ring.
    pub log: u64,
}

impl VringAddr {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[0..4].copy_from_slice(&self.index.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.desc.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.used.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.avail.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.log.to_ne_bytes());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 40 bytes.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 40, "40 (the addresses of a ring)")?;
        Ok(VringAddr {
            index: u32_at(body, 0),
            flags: u32_at(body, 4),
            desc: u64_at(body, 8),
            used: u64_at(body, 16),
            avail: u64_at(body, 24),
            log: u64_at(body, 32),
        })
    }
}

/// One region of guest memory ("Memory region description").
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryRegion {
    /// Guest-physical address of the first byte.
    pub guest_addr: u64,
    /// Bytes.
    pub size: u64,
    /// User address of the first byte in the front end; ring addresses
    /// (SET_VRING_ADDR) are given in these terms.
    pub user_addr: u64,
    /// Offset of the first byte in the region's file.
    pub mmap_offset: u64,
}

impl MemoryRegion {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..8].copy_from_slice(&self.guest_addr.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.user_addr.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.mmap_offset.to_ne_bytes());
        bytes
    }

    /// Reads and checks a region: it has bytes, and neither its guest range,
    /// its user range nor its file range runs past 2^64.
    fn decode(request: u32, bytes: &[u8]) -> Result<Self, WireError> {
        let region = MemoryRegion {
            guest_addr: u64_at(bytes, 0),
            size: u64_at(bytes, 8),
            user_addr: u64_at(bytes, 16),
            mmap_offset: u64_at(bytes, 24),
        };
        let bad = |field, value, rule| Err(WireError::BadValue { request, field, value, rule });
        let overflows = |start: u64| start.checked_add(region.size).is_none();
        if region.size == 0 {
            return bad("the size of a region", 0, "at least 1");
        }
        if overflows(region.guest_addr) {
            let rule = "low enough that address + size fits in 64 bits";
            return bad("the guest address of a region", region.guest_addr, rule);
        }
        if overflows(region.user_addr) {
            let rule = "low enough that address + size fits in 64 bits";
            return bad("the user address of a region", region.user_addr, rule);
        }
        if overflows(region.mmap_offset) {
            let rule = "low enough that offset + size fits in 64 bits";
            return bad("the file offset of a region", region.mmap_offset, rule);
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
        let mut bytes = Vec::with_capacity(8 + self.regions.len() * MemoryRegion::LEN);
        bytes.extend_from_slice(&(self.regions.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for region in &self.regions {
            bytes.extend_from_slice(&region.encode());
        }
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
            return Err(WireError::BadValue {
                request,
                field: "the number of regions",
                value: count as u64,
                rule: "at most 8",
            });
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
        let mut bytes = Vec::with_capacity(12 + self.data.len());
        bytes.extend_from_slice(&self.offset.to_ne_bytes());
        bytes.extend_from_slice(&(self.data.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
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
        if u64::from(offset) + u64::from(size) > MAX_CONFIG as u64 {
            return Err(WireError::BadValue {
                request,
                field: "the end of the part of configuration space",
                value: u64::from(offset) + u64::from(size),
                rule: "at most 256",
            });
        }
        if body.len() != 12 + size as usize {
            return Err(bad_size);
        }
        Ok(Config { offset, flags, data: body[12..].to_vec() })
    }
}

/// Where the dirty log lies in its file ("Log description").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogRegion {
    /// Bytes.
    pub size: u64,
    /// Offset of the first byte in the file.
    pub mmap_offset: u64,
}

impl LogRegion {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.mmap_offset.to_ne_bytes());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`]; [`WireError::BadValue`] when size + offset
    /// does not fit in 64 bits.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        exact(request, body, 16, "16 (size and offset of the log)")?;
        let (size, mmap_offset) = (u64_at(body, 0), u64_at(body, 8));
        if mmap_offset.checked_add(size).is_none() {
            return Err(WireError::BadValue {
                request,
                field: "the file offset of the log",
                value: mmap_offset,
                rule: "low enough that offset + size fits in 64 bits",
            });
        }
        Ok(LogRegion { size, mmap_offset })
    }
}

/// The in-flight region ("Inflight description").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inflight {
    /// Bytes.
    pub mmap_size: u64,
    /// Offset of the first byte in the file.
    pub mmap_offset: u64,
    /// Number of queues.
    pub num_queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
}

impl Inflight {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[0..8].copy_from_slice(&self.mmap_size.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.mmap_offset.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.num_queues.to_ne_bytes());
        bytes[18..20].copy_from_slice(&self.queue_size.to_ne_bytes());
        bytes
    }

    /// # Errors
    /// [`WireError::BadSize`] unless `body` has 20 bytes, or 24 with the
    /// padding that front ends written in C add.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, WireError> {
        if body.len() != 24 {
            exact(request, body, 20, "20 or 24 (the in-flight region)")?;
        }
        Ok(Inflight {
            mmap_size: u64_at(body, 0),
            mmap_offset: u64_at(body, 8),
            num_queues: u16_at(body, 16),
            queue_size: u16_at(body, 18),
        })
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
        let phase = u32_at(body, 4);
        if phase != 0 {
            let (field, value) = ("the phase", phase.into());
            return Err(WireError::BadValue { request, field, value, rule: "0 (all rings stopped)" });
        }
        match u32_at(body, 0) {
            0 => Ok(Self::Save),
            1 => Ok(Self::Load),
            other => {
                let (field, value) = ("the direction", other.into());
                Err(WireError::BadValue { request, field, value, rule: "0 (save) or 1 (load)" })
            }
        }
    }
}
