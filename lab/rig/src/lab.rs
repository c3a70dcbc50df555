//! A ring without a server: the guest's memory as the device maps it, and a driver's ring in it.

use zerowire_guest::ring::RingMemory;
use zerowire_guest::{DirtyLog, GuestAddr, GuestMemory as Ram};
use zerowire_vhost::memory::{GuestMemory, RegionConfig};
use zerowire_vhost::ring::{RingAddresses, RingLog, SplitRing};

/// Guest memory as the guest and as the device have it.
pub struct Lab {
    /// The guest's side.
    pub ram: Ram,
    /// The device's side.
    pub memory: GuestMemory,
    /// Where the device notes its writes, if it does.
    pub log: Option<DirtyLog>,
}

impl Lab {
    /// Memory with these regions (first address, bytes).
    pub fn new(regions: &[(u64, usize)]) -> Self {
        let regions: Vec<_> = regions.iter().map(|&(addr, len)| (GuestAddr(addr), len)).collect();
        let ram = Ram::new(&regions).unwrap_or_else(|e| panic!("{e}"));
        let memory = map(&ram);
        Self { ram, memory, log: None }
    }

    /// The same lab with a device that notes its writes.
    pub fn logging(self) -> Self {
        let log = DirtyLog::new(self.memory.end()).unwrap_or_else(|e| panic!("{e}"));
        let noted = zerowire_vhost::memory::DirtyLog::new(log.file(), 0, log.len());
        let memory = self.memory.with_log(Some(noted.unwrap_or_else(|e| panic!("{e}"))));
        Self { memory, log: Some(log), ..self }
    }

    /// The device's side of `ring`.
    pub fn device(&self, ring: &RingMemory, queue: u16, event_idx: bool) -> SplitRing {
        let setup = ring.setup(0);
        let at = RingAddresses { desc: setup.desc.user, avail: setup.avail.user, used: setup.used.user };
        let mut ring = SplitRing::new(queue, setup.size, at, ring.used_idx(), event_idx, &self.memory)
            .unwrap_or_else(|e| panic!("{e}"));
        ring.set_log(RingLog::of(&self.memory, Some(setup.used.guest.0)));
        ring
    }

    /// A ring in this memory.
    pub fn ring(&self, size: u16) -> RingMemory {
        RingMemory::new(&self.ram, size).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Reads guest memory.
    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        self.ram.at(GuestAddr(addr), len).unwrap_or_else(|e| panic!("{e}")).to_vec()
    }

    /// Writes guest memory.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.ram.at(GuestAddr(addr), bytes.len()).unwrap_or_else(|e| panic!("{e}")).write(0, bytes);
    }
}

/// The guest's memory as the device maps it.
pub fn map(ram: &Ram) -> GuestMemory {
    let regions = ram
        .regions()
        .iter()
        .map(|r| RegionConfig {
            guest_addr: r.guest_addr().0,
            len: r.len() as u64,
            user_addr: r.user_addr(),
            offset: r.file_offset(),
            file: r.file().try_clone_to_owned().expect("a descriptor"),
        })
        .collect();
    GuestMemory::new(regions).unwrap_or_else(|e| panic!("{e}"))
}
