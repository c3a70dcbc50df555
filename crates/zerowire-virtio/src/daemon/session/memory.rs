//! Messages about guest memory.

use std::sync::Arc;

use zerowire_vhost_user::{Message, Request};

use super::{Session, SessionError, refused};
use crate::memory::{GuestMemory, RegionConfig};

/// How often regions may be added again in all: for each queue pair of a large device each region once more. QEMU before
/// 8.0, which does so, has few regions.
const MAX_REPEATS: usize = 256 * 64;

impl Session<'_> {
    pub(super) fn set_mem_table(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let regions = message
            .memory_table()?
            .into_iter()
            .map(|(r, file)| RegionConfig {
                guest_addr: r.guest_addr,
                len: r.size,
                user_addr: r.user_addr,
                offset: r.mmap_offset,
                file,
            })
            .collect();
        self.repeats.clear();
        let memory = GuestMemory::new(regions).map_err(|e| refused(Request::SetMemTable, e.to_string()))?;
        self.replace_memory(Request::SetMemTable, memory)
    }

    pub(super) fn add_mem_reg(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let r = message.single_region()?;
        let region = RegionConfig {
            guest_addr: r.guest_addr,
            len: r.size,
            user_addr: r.user_addr,
            offset: r.mmap_offset,
            file: message.take_fd()?,
        };
        if self.memory.is_same_region(&region) {
            // QEMU before 8.0 has a device for each queue pair, and each of them adds and removes all regions.
            if self.repeats.len() >= MAX_REPEATS {
                let text = format!("a region was added more than {MAX_REPEATS} times");
                return Err(refused(Request::AddMemReg, text));
            }
            self.repeats.push((r.guest_addr, r.user_addr, r.size));
            return Ok(());
        }
        let memory =
            self.memory.with_region(region).map_err(|e| refused(Request::AddMemReg, e.to_string()))?;
        self.replace_memory(Request::AddMemReg, memory)
    }

    pub(super) fn rem_mem_reg(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let r = message.single_region()?;
        // Some front ends send the region's descriptor along; it has no use.
        drop(message.take_fds());
        if let Some(i) = self.repeats.iter().position(|x| *x == (r.guest_addr, r.user_addr, r.size)) {
            self.repeats.swap_remove(i);
            return Ok(());
        }
        let memory = self
            .memory
            .without_region(r.guest_addr, r.user_addr, r.size)
            .map_err(|e| refused(Request::RemMemReg, e.to_string()))?;
        self.replace_memory(Request::RemMemReg, memory)
    }

    /// The device has the new memory when this returns, and the old one is unmapped. Memory that the dirty log does not cover
    /// is refused.
    fn replace_memory(&mut self, request: Request, memory: GuestMemory) -> Result<(), SessionError> {
        let log = self.log_for(&memory).map_err(|e| refused(request, e.to_string()))?;
        let old = std::mem::replace(&mut self.memory, Arc::new(memory.with_log(log)));
        self.device.set_memory(&self.memory);
        self.take_over(&old);
        Ok(())
    }
}
