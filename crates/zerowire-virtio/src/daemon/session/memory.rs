//! Messages about guest memory.

use std::os::fd::OwnedFd;

use zerowire_vhost_user::{MemoryRegion, MemoryTable, Message, Request, SingleRegion};

use super::{Answer, Session, SessionError, refused};
use crate::memory::{GuestMemory, RegionConfig};

/// How often regions may be added again in all: for each queue pair of a large device each region
/// once more. QEMU before 8.0, which does so, has few regions.
const MAX_REPEATS: usize = 256 * 64;

impl Session<'_> {
    pub(super) fn set_mem_table(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let request = Request::SetMemTable;
        if self.is_confirmation(message) {
            return self.confirm_memory(request, message).map(|()| Answer::None);
        }
        let table = message.memory_table()?;
        let regions: Vec<_> = table.iter().map(|(r, _)| *r).collect();
        let configs = table.into_iter().map(|(r, file)| config(r, file)).collect();
        self.repeats.clear();
        let memory = GuestMemory::new(configs).map_err(|e| refused(request, e.to_string()))?;
        if !self.keep_or_use(request, memory)? {
            return Ok(Answer::None);
        }
        let regions = regions.into_iter().map(|r| self.with_own_address(r)).collect();
        let mut body = MemoryTable { regions }.encode();
        // As long as the request, whose table may have unused entries.
        body.resize(message.body().len(), 0);
        Ok(Answer::Bytes(body))
    }

    pub(super) fn add_mem_reg(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let request = Request::AddMemReg;
        if self.is_confirmation(message) {
            return self.confirm_memory(request, message).map(|()| Answer::None);
        }
        let r = message.single_region()?;
        let region = config(r, message.take_fd()?);
        let is_kept = if self.latest_memory().is_same_region(&region) {
            // QEMU before 8.0 has a device for each queue pair, and each of them adds and removes
            // all regions.
            if self.repeats.len() >= MAX_REPEATS {
                let text = format!("a region was added more than {MAX_REPEATS} times");
                return Err(refused(request, text));
            }
            self.repeats.push((r.guest_addr, r.user_addr, r.size));
            self.listening().is_some()
        } else {
            let memory =
                self.latest_memory().with_region(region).map_err(|e| refused(request, e.to_string()))?;
            self.keep_or_use(request, memory)?
        };
        Ok(match is_kept {
            true => Answer::Bytes(SingleRegion(self.with_own_address(r)).encode().to_vec()),
            false => Answer::None,
        })
    }

    pub(super) fn rem_mem_reg(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::RemMemReg;
        if self.is_confirmation(message) {
            return self.confirm_memory(request, message);
        }
        let r = message.single_region()?;
        // Some front ends send the region's descriptor along; it has no use.
        drop(message.take_fds());
        if let Some(i) = self.repeats.iter().position(|x| *x == (r.guest_addr, r.user_addr, r.size)) {
            self.repeats.swap_remove(i);
            return Ok(());
        }
        let memory = self
            .latest_memory()
            .without_region(r.guest_addr, r.user_addr, r.size)
            .map_err(|e| refused(request, e.to_string()))?;
        self.keep_or_use(request, memory).map(drop)
    }
}

fn config(region: MemoryRegion, file: OwnedFd) -> RegionConfig {
    RegionConfig {
        guest_addr: region.guest_addr,
        len: region.size,
        user_addr: region.user_addr,
        offset: region.mmap_offset,
        file,
    }
}
