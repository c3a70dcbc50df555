//! A front end that sends what cloud-hypervisor sends, in its order, by the crate that it uses
//! (virtio-devices/src/vhost_user/vu_common_ctrl.rs of cloud-hypervisor in August 2026).

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use vhost::vhost_user::message::{
    VhostTransferStateDirection as Direction, VhostTransferStatePhase as Phase, VhostUserHeaderFlag,
    VhostUserInflight, VhostUserProtocolFeatures as Protocol,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use zerowire_guest::misbehave::RawDesc;
use zerowire_guest::ring::RingMemory;
use zerowire_guest::{GuestMemory, GuestSlice, features as f};

use super::attack::PLAIN;
use super::{Peer, frames, guest_memory, wait_until};

/// VHOST_VRING_F_LOG.
const VRING_LOG: u32 = 1;

pub const RX: usize = 0;
pub const TX: usize = 1;

/// A queue of the guest.
pub struct Queue {
    pub index: u16,
    pub ring: RingMemory,
    pub kick: EventFd,
    pub call: EventFd,
}

impl Queue {
    pub fn new(memory: &GuestMemory, index: u16, size: u16) -> Self {
        let eventfd = || EventFd::new(EFD_NONBLOCK).expect("an eventfd");
        let ring = RingMemory::new(memory, size).expect("guest memory");
        Self { index, ring, kick: eventfd(), call: eventfd() }
    }

    /// Makes a chain of one descriptor available, as its driver does.
    pub fn offer(&self, head: u16, desc: RawDesc) {
        self.ring.write_desc(head, desc.addr, desc.len, desc.flags, desc.next);
        let at = self.ring.avail_idx();
        self.ring.write_avail(at, head);
        self.ring.publish_avail_idx(at.wrapping_add(1));
        self.kick.write(1).expect("a kick");
    }

    pub fn wait_used(&self, index: u16) {
        wait_until(&format!("used index {index} of queue {}", self.index), || self.ring.used_idx() == index);
    }
}

/// What cloud-hypervisor keeps of a device while its back end comes and goes.
pub struct Device {
    pub memory: GuestMemory,
    pub queues: Vec<Queue>,
    /// Features that are acknowledged, and those of the protocol that it knows.
    pub features: u64,
    pub protocol: Protocol,
    /// The in-flight region, if it keeps one.
    pub inflight: Option<(VhostUserInflight, File)>,
}

impl Device {
    /// A device with two queues of `size` entries each, in memory of its own.
    pub fn new(size: u16, features: u64) -> Self {
        let memory = guest_memory();
        let queues = (0..2).map(|index| Queue::new(&memory, index, size)).collect();
        // avail_protocol_features of net.rs.
        let protocol = Protocol::MQ
            | Protocol::CONFIGURE_MEM_SLOTS
            | Protocol::REPLY_ACK
            | Protocol::INFLIGHT_SHMFD
            | Protocol::LOG_SHMFD
            | Protocol::DEVICE_STATE
            | Protocol::CONFIG;
        let features = features | f::VHOST_USER_PROTOCOL_FEATURES | f::VHOST_LOG_ALL;
        Self { memory, queues, features, protocol, inflight: None }
    }

    /// Posts `count` receive buffers of `len` bytes: the heads are numbered from 0 on.
    pub fn post_buffers(&self, count: u16, len: usize) -> Vec<GuestSlice> {
        let buffer = |_| self.memory.allocate(len, 16).expect("guest memory");
        let buffers: Vec<_> = (0..count).map(buffer).collect();
        for (head, buffer) in (0..).zip(&buffers) {
            self.queues[RX].offer(head, RawDesc::writable(buffer));
        }
        buffers
    }

    /// A new connection, whose features are negotiated (connect_vhost_user,
    /// negotiate_features_vhost_user).
    pub fn connect(&mut self, path: &Path) -> Frontend {
        let vu = Frontend::connect(path, self.queues.len() as u64).expect("a connection");
        vu.set_owner().expect("SET_OWNER");
        let offered = vu.get_features().expect("features");
        assert_eq!(self.features & !offered, 0, "features that are not offered");
        let mut this = vu;
        self.protocol &= this.get_protocol_features().expect("protocol features");
        this.set_protocol_features(self.protocol).expect("protocol features");
        this.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        this
    }

    /// A new connection on which the queues run, as [`set_up`](Self::set_up) says.
    pub fn start(&mut self, path: &Path, with_region: bool, bases: Option<&[u16]>) -> Frontend {
        let mut vu = self.connect(path);
        self.set_up(&mut vu, with_region, bases);
        vu
    }

    /// setup_vhost_user: without bases each queue begins at its available index.
    pub fn set_up(&mut self, vu: &mut Frontend, with_region: bool, bases: Option<&[u16]>) {
        vu.set_features(self.features & !f::VHOST_LOG_ALL).expect("SET_FEATURES");
        let regions: Vec<_> = self
            .memory
            .regions()
            .iter()
            .map(|r| VhostUserMemoryRegionInfo {
                guest_phys_addr: r.guest_addr().0,
                memory_size: r.len() as u64,
                userspace_addr: r.user_addr(),
                mmap_offset: r.file_offset(),
                mmap_handle: r.file().as_raw_fd(),
            })
            .collect();
        vu.set_mem_table(&regions).expect("SET_MEM_TABLE");
        for q in &self.queues {
            vu.set_vring_num(q.index.into(), q.ring.size()).expect("SET_VRING_NUM");
        }
        if with_region {
            if self.inflight.is_none() {
                let wanted = VhostUserInflight {
                    num_queues: self.queues.len() as u16,
                    queue_size: self.queues[0].ring.size(),
                    ..VhostUserInflight::default()
                };
                self.inflight = Some(vu.get_inflight_fd(&wanted).expect("GET_INFLIGHT_FD"));
            }
            let (info, file) = self.inflight.as_ref().expect("a region");
            vu.set_inflight_fd(info, file.as_raw_fd()).expect("SET_INFLIGHT_FD");
        }
        for (i, q) in self.queues.iter().enumerate() {
            let index = q.index.into();
            vu.set_vring_addr(index, &config(q, false)).expect("SET_VRING_ADDR");
            let base = bases.map_or_else(|| q.ring.avail_idx(), |b| b[i]);
            vu.set_vring_base(index, base).expect("SET_VRING_BASE");
            vu.set_vring_call(index, &q.call).expect("SET_VRING_CALL");
            vu.set_vring_kick(index, &q.kick).expect("SET_VRING_KICK");
        }
        self.enable(vu, true);
    }

    pub fn enable(&self, vu: &mut Frontend, on: bool) {
        for q in &self.queues {
            vu.set_vring_enable(q.index.into(), on).expect("SET_VRING_ENABLE");
        }
    }

    /// save_backend_state: the rings' bases and the state's bytes.
    pub fn save(&self, vu: &mut Frontend) -> (Vec<u16>, Vec<u8>) {
        let base = |q: &Queue| vu.get_vring_base(q.index.into()).expect("GET_VRING_BASE") as u16;
        let bases = self.queues.iter().map(base).collect();
        let (local, remote) = UnixStream::pair().expect("a pair");
        let mut file = transfer(vu, Direction::SAVE, local, remote);
        let mut state = Vec::new();
        file.read_to_end(&mut state).expect("the state");
        vu.check_device_state().expect("saved");
        (bases, state)
    }

    /// restore_backend_state: whether the back end takes these bytes for its state.
    pub fn load(&self, vu: &mut Frontend, state: &[u8]) -> bool {
        drop(self.start_load(vu, state));
        vu.check_device_state().is_ok()
    }

    /// A transfer whose bytes are written and whose end is open.
    pub fn start_load(&self, vu: &mut Frontend, state: &[u8]) -> File {
        let (local, remote) = UnixStream::pair().expect("a pair");
        let mut file = transfer(vu, Direction::LOAD, local, remote);
        file.write_all(state).expect("written");
        file
    }

    /// start_dirty_log: a log, the feature, and addresses whose used rings are logged.
    pub fn start_log(&self, vu: &mut Frontend, log: &File) {
        let region = VhostUserDirtyLogRegion {
            mmap_size: log.metadata().expect("a size").len(),
            mmap_offset: 0,
            mmap_handle: log.as_raw_fd(),
        };
        vu.set_log_base(0, Some(region)).expect("SET_LOG_BASE");
        vu.set_features(self.features).expect("SET_FEATURES");
        for q in &self.queues {
            vu.set_vring_addr(q.index.into(), &config(q, true)).expect("SET_VRING_ADDR");
        }
    }
}

/// A guest on a network device, which has posted its receive buffers.
pub struct Net {
    pub device: Device,
    /// Frames that the guest has posted.
    pub sent: u16,
    /// What its descriptors point to.
    slices: Vec<GuestSlice>,
}

impl Net {
    /// `posted` buffers, on queues of `size` entries. `features` are beside [`PLAIN`].
    pub fn new(size: u16, posted: u16, features: u64) -> Self {
        let device = Device::new(size, PLAIN | features);
        let slices = device.post_buffers(posted, 2048);
        Self { device, sent: 0, slices }
    }

    /// The next frame of the guest, on its ring.
    pub fn post(&mut self) -> Vec<u8> {
        let frame = frames::frame(self.sent.into(), 100);
        let slice = self.device.memory.allocate(12 + frame.len(), 16).expect("guest memory");
        slice.write(0, &[0; 12]);
        slice.write(12, &frame);
        let tx = &self.device.queues[TX];
        tx.offer(self.sent % tx.ring.size(), RawDesc::readable(&slice));
        self.slices.push(slice);
        self.sent += 1;
        frame
    }

    /// A frame each way.
    pub fn ping(&mut self, peer: &mut Peer) {
        let used = self.device.queues[RX].ring.used_idx();
        peer.send(&frames::frame(used.into(), 60));
        self.device.queues[RX].wait_used(used + 1);
        assert_eq!(self.device.queues[RX].ring.used_entry(used).0, u32::from(used), "the next buffer");
        let frame = self.post();
        assert_eq!(peer.expect().bytes, frame);
        self.device.queues[TX].wait_used(self.sent);
    }
}

fn transfer(vu: &mut Frontend, direction: Direction, local: UnixStream, remote: UnixStream) -> File {
    let own = vu.set_device_state_fd(direction, Phase::STOPPED, remote.into()).expect("a transfer");
    own.unwrap_or_else(|| OwnedFd::from(local).into())
}

fn config(q: &Queue, logged: bool) -> VringConfigData {
    VringConfigData {
        queue_max_size: q.ring.size(),
        queue_size: q.ring.size(),
        flags: if logged { VRING_LOG } else { 0 },
        desc_table_addr: q.ring.desc().user_addr(),
        used_ring_addr: q.ring.used().user_addr(),
        avail_ring_addr: q.ring.avail().user_addr(),
        log_addr: logged.then(|| q.ring.used().guest_addr().0),
    }
}
