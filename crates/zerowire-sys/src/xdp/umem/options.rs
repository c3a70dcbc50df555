//! How a UMEM is cut and used, and the kernel's rules for that (`xdp_umem_reg`,
//! net/xdp/xdp_umem.c).

use std::time::Duration;

use rustix::net::xdp::XdpUmemRegFlags;

use crate::xdp::error::XdpError;

/// The shortest chunk (`XDP_UMEM_MIN_CHUNK_SIZE`), bytes.
pub const MIN_CHUNK_BYTES: u32 = 2048;

/// Bytes at the start of each chunk that a received frame leaves free, beside the headroom of the
/// options (`XDP_PACKET_HEADROOM`, include/uapi/linux/bpf.h).
pub const KERNEL_HEADROOM_BYTES: u32 = 256;

/// Addresses have 48 bits with unaligned chunks.
const MAX_UNALIGNED_BYTES: usize = 1 << 48;

/// How a UMEM is cut and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemOptions {
    /// Bytes of a chunk: 2048 to the page size; a power of two unless `unaligned`. No piece of a
    /// frame is longer.
    pub chunk_bytes: u32,
    /// Bytes that a received frame leaves free behind the kernel's 256: less than `chunk_bytes -
    /// 256`.
    pub headroom_bytes: u32,
    /// Chunks may start at any byte (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`); pages that a chunk crosses
    /// must be neighbours in memory for zero-copy mode, for copy mode they needn't.
    pub unaligned: bool,
    /// How long to wait, at the registration, for old registrations that still count against the
    /// limit of locked memory. The kernel releases them in a work queue (net/xdp/xdp_umem.c,
    /// `xdp_put_umem`; net/xdp/xsk_buff_pool.c, `xp_release_deferred`), late on a busy machine.
    pub release_timeout: Duration,
}

impl Default for UmemOptions {
    /// Aligned chunks of 4096 bytes, half a second of waiting, nothing else.
    fn default() -> Self {
        Self {
            chunk_bytes: 4096,
            headroom_bytes: 0,
            unaligned: false,
            release_timeout: Duration::from_millis(500),
        }
    }
}

impl UmemOptions {
    /// The kernel says no more than EINVAL: so the rules are checked here, and the value is named.
    pub(super) fn check(&self, base: usize, len: usize) -> Result<(), XdpError> {
        let page = rustix::param::page_size();
        let wrong = |name, value: u64, rule: String| Err(XdpError::Value { name, value, rule });
        let chunk = self.chunk_bytes;
        if chunk < MIN_CHUNK_BYTES || chunk as usize > page {
            return wrong(
                "the chunk length",
                chunk.into(),
                format!("take {MIN_CHUNK_BYTES} to {page} bytes"),
            );
        }
        if !self.unaligned && !chunk.is_power_of_two() {
            return wrong(
                "the chunk length",
                chunk.into(),
                "take a power of two, or unaligned chunks".into(),
            );
        }
        let room = chunk - KERNEL_HEADROOM_BYTES;
        if self.headroom_bytes >= room {
            let rule = format!("take less than {room} bytes (chunk length less the kernel's 256)");
            return wrong("the headroom", self.headroom_bytes.into(), rule);
        }
        if !base.is_multiple_of(page) {
            return wrong("the start of the memory", base as u64, format!("take a multiple of {page}"));
        }
        if len < chunk as usize {
            return wrong(
                "the length of the memory",
                len as u64,
                format!("take {chunk} bytes (a chunk) or more"),
            );
        }
        if !self.unaligned && !len.is_multiple_of(chunk as usize) {
            let rule = format!("take a multiple of {chunk} bytes (a chunk)");
            return wrong("the length of the memory", len as u64, rule);
        }
        let most =
            if self.unaligned { MAX_UNALIGNED_BYTES } else { (u32::MAX as usize).saturating_mul(page) };
        if len > most {
            return wrong("the length of the memory", len as u64, format!("take at most {most} bytes"));
        }
        Ok(())
    }

    pub(super) fn flags(&self) -> XdpUmemRegFlags {
        match self.unaligned {
            true => XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            false => XdpUmemRegFlags::empty(),
        }
    }
}

#[cfg(test)]
mod tests;
