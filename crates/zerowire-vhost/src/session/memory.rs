//! Guest memory as the front end describes it: its regions, all at once or one by one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::{MemoryRegion, MemoryTable, Message, Request, SingleRegion};

use super::image::{File, MemoryImage, RegionImage};
use super::postcopy::Postcopy;
use super::{SessionError, refused};
use crate::memory::{GuestMemory, RegionConfig};

/// How often regions may be added again in all: for each queue pair of a large device each region
/// once more. QEMU before 8.0, which does so, has few regions.
pub(super) const MAX_REPEATS: usize = 256 * 64;

/// What follows from a message about memory.
#[derive(Debug)]
pub(super) enum MemoryChange {
    /// Nothing.
    None,
    /// An answer for the front end, which brings pages to these addresses from its next message on.
    Tell(Vec<u8>),
    /// From now on this is the guest's memory.
    Use(GuestMemory),
}

/// The guest's memory.
#[derive(Debug, Default)]
pub(super) struct SessionMemory {
    /// With the log in which writes are noted.
    current: Arc<GuestMemory>,
    /// Regions that were added again, as often as they were.
    repeats: Vec<(u64, u64, u64)>,
}

impl SessionMemory {
    /// What the device uses.
    pub(super) fn current(&self) -> &Arc<GuestMemory> {
        &self.current
    }

    /// From now on the device uses this. Returns what it used before.
    pub(super) fn replace(&mut self, memory: GuestMemory) -> Arc<GuestMemory> {
        std::mem::replace(&mut self.current, Arc::new(memory))
    }

    /// The regions, for an image. Their files are duplicated.
    pub(super) fn image(&self) -> io::Result<MemoryImage<File>> {
        let region = |config: RegionConfig| {
            let RegionConfig { guest_addr, len, user_addr, offset, file } = config;
            RegionImage { guest_addr, len, user_addr, offset, file: Arc::new(file) }
        };
        let regions = self.current.configs()?.into_iter().map(region).collect();
        Ok(MemoryImage { regions, repeats: self.repeats.clone() })
    }

    /// The memory of an image, for [`Self::replace`].
    pub(super) fn restore(&mut self, image: &MemoryImage<File>) -> Result<GuestMemory, String> {
        let config = |region: &RegionImage<File>| {
            let &RegionImage { guest_addr, len, user_addr, offset, ref file } = region;
            Ok(RegionConfig { guest_addr, len, user_addr, offset, file: file.try_clone()? })
        };
        let configs: io::Result<Vec<_>> = image.regions.iter().map(config).collect();
        let configs = configs.map_err(|e| format!("a region's file can't be duplicated: {e}"))?;
        self.repeats.clone_from(&image.repeats);
        GuestMemory::new(configs).map_err(|e| e.to_string())
    }

    /// SET_MEM_TABLE: all regions.
    pub(super) fn set(
        &mut self,
        message: &mut Message,
        postcopy: &mut Postcopy,
    ) -> Result<MemoryChange, SessionError> {
        let table = message.memory_table()?;
        let regions: Vec<_> = table.iter().map(|(r, _)| *r).collect();
        let configs = table.into_iter().map(|(r, file)| config(r, file)).collect();
        self.repeats.clear();
        let memory = GuestMemory::new(configs).map_err(|e| refused(Request::SetMemTable, e.to_string()))?;
        if let Some(memory) = postcopy.keep(memory) {
            return Ok(MemoryChange::Use(memory));
        }
        let regions = regions.into_iter().map(|r| self.with_own_address(r, postcopy)).collect();
        let mut body = MemoryTable { regions }.encode();
        // As long as the request, whose table may have unused entries.
        body.resize(message.body().len(), 0);
        Ok(MemoryChange::Tell(body))
    }

    /// ADD_MEM_REG: one region more.
    pub(super) fn add(
        &mut self,
        message: &mut Message,
        postcopy: &mut Postcopy,
    ) -> Result<MemoryChange, SessionError> {
        let request = Request::AddMemReg;
        let r = message.single_region()?;
        let region = config(r, message.take_fd()?);
        if self.latest(postcopy).is_same_region(&region) {
            // QEMU before 8.0 has a device for each queue pair, and each of them adds and removes
            // all regions.
            if self.repeats.len() >= MAX_REPEATS {
                let text = format!("a region was added more than {MAX_REPEATS} times");
                return Err(refused(request, text));
            }
            self.repeats.push((r.guest_addr, r.user_addr, r.size));
            if !postcopy.is_listening() {
                return Ok(MemoryChange::None);
            }
        } else {
            let memory =
                self.latest(postcopy).with_region(region).map_err(|e| refused(request, e.to_string()))?;
            if let Some(memory) = postcopy.keep(memory) {
                return Ok(MemoryChange::Use(memory));
            }
        }
        let region = self.with_own_address(r, postcopy);
        Ok(MemoryChange::Tell(SingleRegion(region).encode().to_vec()))
    }

    /// REM_MEM_REG: one region less.
    pub(super) fn remove(
        &mut self,
        message: &mut Message,
        postcopy: &mut Postcopy,
    ) -> Result<MemoryChange, SessionError> {
        let r = message.single_region()?;
        // Some front ends send the region's descriptor along; it has no use.
        drop(message.take_fds());
        if let Some(i) = self.repeats.iter().position(|x| *x == (r.guest_addr, r.user_addr, r.size)) {
            self.repeats.swap_remove(i);
            return Ok(MemoryChange::None);
        }
        let memory = self
            .latest(postcopy)
            .without_region(r.guest_addr, r.user_addr, r.size)
            .map_err(|e| refused(Request::RemMemReg, e.to_string()))?;
        Ok(postcopy.keep(memory).map_or(MemoryChange::None, MemoryChange::Use))
    }

    /// The memory that a region is added to, or taken from.
    fn latest<'m>(&'m self, postcopy: &'m Postcopy) -> &'m GuestMemory {
        postcopy.kept().unwrap_or(&self.current)
    }

    /// `region` with the address that it has in this process.
    fn with_own_address(&self, region: MemoryRegion, postcopy: &Postcopy) -> MemoryRegion {
        let at = self.latest(postcopy).contiguous(region.guest_addr, 1, &mut 0);
        MemoryRegion { user_addr: at.map_or(0, |at| at.addr() as u64), ..region }
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
