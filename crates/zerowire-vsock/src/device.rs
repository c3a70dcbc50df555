//! virtio-vsock behind a connection: what the session says goes to the thread of the VM's group.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use zerowire_capture::CaptureInterface;
use zerowire_sys::lock;
use zerowire_vhost::host::{RingSetup, RingState};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::serve::{Backing, Control, Departure, Device, SessionWatch};
use zerowire_vhost_user::{features as f, protocol as p};

use crate::capture::PacketCapture;
use crate::config::VsockConfig;
use crate::connector::{HostKeeper, OwnEntry};
use crate::group::GroupCommand;
use crate::threads::GroupPlace;
use crate::{TX_QUEUE, VsockCounters, offered};

/// Queues: toward the guest, from the guest, events (virtio 1.3 §5.10.2).
const QUEUES: usize = 3;

/// The protocol features that are implemented. BACKEND_REQ is there for QEMU, which wants it of
/// every back end that offers ACCESS_PLATFORM; nothing is sent on that channel.
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
    /// Its place on the thread that serves its rings.
    pub place: GroupPlace,
    /// Its sockets, which go with its place and its control thread, before this. None if another
    /// process has opened them.
    pub _own: Option<OwnEntry>,
    /// Keeps what another process needs to go on with a session if this one dies.
    pub sessions: Option<Arc<dyn SessionWatch>>,
    /// The process that has handed it over, if one has, and its number there.
    pub handed: Option<(Arc<dyn HostKeeper>, usize)>,
    /// Where packets go as well.
    pub capture: Mutex<Option<CaptureInterface>>,
    /// How it leaves by itself.
    pub departure: Departure<VsockConfig, VsockContext>,
}

impl VsockContext {
    /// Its number, if another process has handed it over.
    pub fn number(&self) -> Option<usize> {
        self.handed.as_ref().map(|(_, number)| *number)
    }

    /// Where packets go as well.
    pub fn capture(&self) -> Option<CaptureInterface> {
        lock(&self.capture).clone()
    }

    /// Has packets go elsewhere as well, or nowhere else.
    pub fn set_capture(&self, capture: Option<CaptureInterface>) {
        let packets = capture.as_ref().map(PacketCapture::new);
        let mut now = lock(&self.capture);
        self.place.rings.send(GroupCommand::Capture { place: self.place.place, capture: packets });
        *now = capture;
    }
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

    fn watch(&self) -> Option<&dyn SessionWatch> {
        self.sessions.as_deref()
    }

    fn connected(&self, now: bool) {
        if let Some((keeper, number)) = &self.handed {
            keeper.connected(*number, now);
        }
    }

    fn leave(&self) {
        // Who has handed the VM over ends a process that does not remove it in time.
        if self.handed.is_none() {
            self.place.leave();
        }
    }

    fn ended(self: Arc<Self>) {
        let departure = self.departure.clone();
        departure.leave(self);
    }
}

/// The vsock device of one connection. The state is the group's.
struct VsockDevice<'a>(&'a VsockContext);

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
        self.0.place.rings.set_memory(memory);
    }

    fn set_log(&mut self, memory: &Arc<GuestMemory>) {
        self.0.place.rings.set_log(memory);
    }

    fn log_ring(&mut self, queue: u16, at: Option<u64>) {
        self.0.place.rings.log_ring(queue, at);
    }

    fn uses_in_order(&self, queue: u16) -> bool {
        !(self.0.lends && queue == TX_QUEUE)
    }

    fn start(&mut self, ring: RingSetup) -> Result<(), String> {
        self.0.place.rings.start(ring)
    }

    fn stop(&mut self, queue: u16) -> Option<u16> {
        self.0.place.rings.stop(queue)
    }

    fn enable(&mut self, queue: u16, on: bool, runs: bool) {
        if runs {
            self.0.place.rings.set_state(queue, RingState::set(on));
        }
    }

    fn kick(&mut self, queue: u16, fd: Arc<OwnedFd>) -> Result<(), String> {
        self.0.place.rings.kick(queue, fd)
    }

    fn call(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        self.0.place.rings.call(queue, fd);
    }

    fn err(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        self.0.place.rings.err(queue, fd);
    }

    fn reset(&mut self, memory: &Arc<GuestMemory>) {
        // Connections end with the device that held them.
        self.0.place.rings.leave();
        self.set_memory(memory);
    }

    fn was_taken_up(&mut self) {
        let place = &self.0.place;
        place.rings.send(GroupCommand::TakenUp { place: place.place });
    }
}

impl Drop for VsockDevice<'_> {
    fn drop(&mut self) {
        self.0.place.rings.leave();
    }
}
