//! virtio-vsock behind a connection: what the session says goes to the thread of the VM's group.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use zerowire_vhost_user::{features as f, protocol as p};

use crate::daemon::control::{Backing, Control};
use crate::daemon::device::{Device, wait};
use crate::host::RingSetup;
use crate::memory::GuestMemory;
use crate::vsock::command::{Command, CommandSender};
use crate::vsock::{TX_QUEUE, VsockCounters, offered};

/// Queues: toward the guest, from the guest, events (virtio 1.3 §5.10.2).
const QUEUES: usize = 3;

/// The protocol features that are implemented. BACKEND_REQ is there for QEMU, which wants it of every back end that
/// offers ACCESS_PLATFORM; nothing is sent on that channel.
const PROTOCOL_FEATURES: u64 = p::MQ
    | p::LOG_SHMFD
    | p::REPLY_ACK
    | p::BACKEND_REQ
    | p::CONFIG
    | p::INFLIGHT_SHMFD
    | p::RESET_DEVICE
    | p::CONFIGURE_MEM_SLOTS
    | p::STATUS
    | p::DEVICE_STATE;

/// What the control thread of a VM knows of it.
#[derive(Debug)]
pub(super) struct VsockContext {
    pub control: Control,
    pub counters: Arc<VsockCounters>,
    pub cid: u64,
    /// Programs may hold payload in the guest's memory, so that its descriptors come back in
    /// another order.
    pub lends: bool,
    /// To the group's thread.
    pub commands: CommandSender,
    /// The VM's place in the group.
    pub place: usize,
}

impl Backing for VsockContext {
    fn control(&self) -> &Control {
        &self.control
    }

    fn set_error(&self, text: String) {
        self.counters.set_error(text);
    }

    fn device(&self) -> Box<dyn Device + '_> {
        Box::new(VsockDevice(self))
    }
}

/// The vsock device of one connection. The state is the group's.
struct VsockDevice<'a>(&'a VsockContext);

impl VsockDevice<'_> {
    /// Gives the group's thread a command about this VM and waits until it was carried out.
    fn tell<T>(&self, command: impl FnOnce(usize, SyncSender<T>) -> Command) -> Option<T> {
        wait(|reply| self.0.commands.send(command(self.0.place, reply)))
    }
}

impl Device for VsockDevice<'_> {
    fn queues(&self) -> usize {
        QUEUES
    }

    fn queue_hint(&self) -> &'static str {
        "a vsock device has no others (virtio 1.3 §5.10.2)"
    }

    fn offered(&self) -> u64 {
        offered(self.0.lends)
    }

    fn feature_names(&self, mask: u64) -> Vec<String> {
        f::vsock_names(mask)
    }

    fn protocol_features(&self) -> u64 {
        PROTOCOL_FEATURES
    }

    /// `guest_cid` (virtio 1.3 §5.10.4).
    fn config(&self) -> Option<Vec<u8>> {
        Some(self.0.cid.to_le_bytes().to_vec())
    }

    fn set_features(&mut self, _acked: u64) -> Result<(), String> {
        Ok(())
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        self.tell(|vm, reply| Command::Memory { vm, memory: memory.clone(), reply });
    }

    fn set_log(&mut self, memory: &Arc<GuestMemory>) {
        self.tell(|vm, reply| Command::Log { vm, memory: memory.clone(), reply });
    }

    fn log_ring(&mut self, queue: u16, at: Option<u64>) {
        self.tell(|vm, reply| Command::LogRing { vm, queue, at, reply });
    }

    fn uses_in_order(&self, queue: u16) -> bool {
        !(self.0.lends && queue == TX_QUEUE)
    }

    fn start(&mut self, ring: RingSetup) -> Result<(), String> {
        let (queue, ring) = (ring.queue, Box::new(ring));
        self.tell(|vm, reply| Command::Start { vm, ring, reply })
            .unwrap_or_else(|| Err(format!("queue {queue}: its thread has ended")))
    }

    fn stop(&mut self, queue: u16) -> Option<u16> {
        self.tell(|vm, reply| Command::Stop { vm, queue, reply }).flatten()
    }

    fn enable(&mut self, queue: u16, on: bool, runs: bool) {
        if runs {
            self.tell(|vm, reply| Command::Enable { vm, queue, on, reply });
        }
    }

    fn kick(&mut self, queue: u16, fd: OwnedFd) {
        self.tell(|vm, reply| Command::Kick { vm, queue, fd, reply });
    }

    fn call(&mut self, queue: u16, fd: Option<OwnedFd>) {
        self.tell(|vm, reply| Command::Call { vm, queue, fd, reply });
    }

    fn err(&mut self, queue: u16, fd: Option<OwnedFd>) {
        self.tell(|vm, reply| Command::Err { vm, queue, fd, reply });
    }

    fn reset(&mut self, memory: &Arc<GuestMemory>) {
        // Connections end with the device that held them.
        self.tell(|vm, reply| Command::Left { vm, reply });
        self.set_memory(memory);
    }
}

impl Drop for VsockDevice<'_> {
    fn drop(&mut self) {
        self.tell(|vm, reply| Command::Left { vm, reply });
    }
}
