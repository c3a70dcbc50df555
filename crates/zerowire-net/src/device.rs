//! virtio-net behind a connection: a worker for each queue pair in use, between its rings and a
//! queue of the port.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zerowire_vhost::host::{RingClient, RingSetup, RingState};
use zerowire_vhost::memory::{GuestMemory, Userfault};
use zerowire_vhost::serve::Device;
use zerowire_vhost::session::{SessionError, refused};
use zerowire_vhost_user::{Request, features as f, protocol as p};

use crate::announce::rarp;
use crate::config::{MacAddress, check_mtu, space};
use crate::features::offered;
use crate::guard::FrameGuard;
use crate::metadata::{MetadataDetour, Service};
use crate::port::Renewal;
use crate::vm::VmContext;
use crate::worker::{Direction, WorkerCapture, WorkerCommand, WorkerHandle, WorkerSetup};

/// The protocol features that are implemented. BACKEND_REQ is there for QEMU, which wants it of
/// every back end that offers ACCESS_PLATFORM; nothing is sent on that channel.
const PROTOCOL_FEATURES: u64 = p::MQ
    | p::LOG_SHMFD
    | p::INFLIGHT_SHMFD
    | p::RARP
    | p::REPLY_ACK
    | p::MTU
    | p::BACKEND_REQ
    | p::RESET_DEVICE
    | p::CONFIGURE_MEM_SLOTS
    | p::STATUS
    | p::DEVICE_STATE;

/// Whether a ring is served, as far as the port's queues go.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    started: bool,
    enabled: bool,
}

/// The network device of one connection.
pub(super) struct NetDevice<'a> {
    vm: &'a VmContext,
    memory: Arc<GuestMemory>,
    rings: Vec<Use>,
    workers: Vec<Option<WorkerHandle>>,
    forwarded: Arc<AtomicUsize>,
    mtu: Option<usize>,
    /// True: the guest goes on elsewhere, and frames wait for it.
    handed_over: bool,
    /// True: the log says that the guard refused an announcement.
    logged_refusal: bool,
}

impl<'a> NetDevice<'a> {
    pub(super) fn new(vm: &'a VmContext) -> Self {
        let pairs = vm.port.pairs();
        Self {
            vm,
            memory: Arc::default(),
            rings: vec![Use::default(); 2 * pairs],
            workers: (0..pairs).map(|_| None).collect(),
            forwarded: Arc::default(),
            mtu: None,
            handed_over: false,
            logged_refusal: false,
        }
    }

    /// A queue of the port takes part while one of its rings is in use. The kernel spreads flows
    /// over all attached queues, and nobody would read those that are not in use. The first one
    /// always takes part.
    fn attach_queue(&self, pair: usize) {
        let used = |i: usize| self.rings.get(i).is_some_and(|r| r.started && r.enabled);
        let on = pair == 0 || used(2 * pair) || used(2 * pair + 1);
        if let Err(e) = self.vm.port.attach_queue(pair, on) {
            tracing::error!("{}: {e}", self.vm.control.name);
        }
    }

    fn change(&mut self, queue: usize, change: impl FnOnce(&mut Use)) {
        if let Some(r) = self.rings.get_mut(queue) {
            change(r);
        }
        self.attach_queue(queue / 2);
    }

    /// The worker of a queue pair; started with its first ring.
    fn worker(&mut self, pair: usize) -> io::Result<&WorkerHandle> {
        // The service runs in the first pair's worker, so that one comes first.
        if pair > 0 && self.workers[0].is_none() {
            self.start_worker(0)?;
        }
        if self.workers[pair].is_none() {
            self.start_worker(pair)?;
        }
        self.workers[pair].as_ref().ok_or_else(|| io::Error::other("no worker"))
    }

    fn start_worker(&mut self, pair: usize) -> io::Result<()> {
        let detour = match (&self.vm.metadata.get(), pair) {
            (None, _) => None,
            (Some((tree, tokens)), 0) => {
                let service = Service::new(tree.clone(), *tokens).map_err(io::Error::other)?;
                Some(MetadataDetour::Service(Box::new(service)))
            }
            (Some(_), _) => self.workers[0]
                .as_ref()
                .map(|w| MetadataDetour::Forward { to: w.rings.clone(), pending: self.forwarded.clone() }),
        };
        let worker = self.vm.port.spawn(WorkerSetup {
            name: self.vm.control.name.clone(),
            pair,
            memory: self.memory.clone(),
            shared: self.vm.shared.clone(),
            detour,
            guard: self.vm.guard.get(),
            forwarded: self.forwarded.clone(),
            control: self.vm.control.waker(),
            log: self.vm.control.visit_log(),
            capture: self.vm.capture.get(),
        })?;
        self.workers[pair] = Some(worker);
        Ok(())
    }

    /// The rings of `queue`'s worker, if that runs.
    fn rings_of(&self, queue: u16) -> Option<&RingClient<WorkerCommand>> {
        self.workers.get(usize::from(queue) / 2)?.as_ref().map(|w| &w.rings)
    }
}

impl Device for NetDevice<'_> {
    fn queues(&self) -> usize {
        self.rings.len()
    }

    fn queue_hint(&self) -> &'static str {
        self.vm.port.queue_hint()
    }

    fn offered(&self) -> u64 {
        let port = &self.vm.port;
        let order = if port.keeps_order() { f::IN_ORDER } else { 0 };
        let mac = if self.vm.mac.is_some() { f::NET_MAC } else { 0 };
        order | mac | offered(port.offloads(), port.offloads_toward_guest(), port.pairs())
    }

    fn feature_names(&self, mask: u64) -> Vec<String> {
        f::names(mask)
    }

    fn protocol_features(&self) -> u64 {
        let port = &self.vm.port;
        // QEMU sends memory for the first queue pair alone, and expects an answer for each of them:
        // with two the guest is lost. Without the feature QEMU refuses to begin.
        let can_wait = port.pairs() == 1 && port.takes_missing_pages();
        let has_postcopy = self.vm.postcopy && can_wait && Userfault::is_available();
        // QEMU warns of a network back end with CONFIG, and keeps the configuration space itself.
        let more = [(self.vm.mac.is_some(), p::CONFIG), (has_postcopy, p::PAGEFAULT)];
        more.into_iter().filter(|(has, _)| *has).fold(PROTOCOL_FEATURES, |all, (_, bit)| all | bit)
    }

    fn config(&self) -> Option<Vec<u8>> {
        let port = &self.vm.port;
        Some(space(self.vm.mac?, port.pairs(), self.mtu.unwrap_or_else(|| port.mtu())))
    }

    fn set_features(&mut self, acked: u64) -> Result<(), String> {
        self.vm.port.set_features(acked)
    }

    fn resume_features(&mut self, acked: u64) -> Result<(), String> {
        self.vm.port.resume_features(acked)
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), SessionError> {
        let set = check_mtu(mtu).and_then(|mtu| {
            self.mtu = Some(mtu);
            self.vm.port.set_mtu(mtu)
        });
        set.map_err(|e| refused(Request::NetSetMtu, e))
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        self.memory = memory.clone();
        // Where the pairs share a registration the old one goes before the new one comes: both
        // together may be too much.
        if self.vm.port.moves_together() && self.workers.iter().flatten().count() > 1 {
            self.workers.iter().flatten().for_each(|w| w.rings.release());
        }
        self.workers.iter().flatten().for_each(|w| w.rings.set_memory(memory));
    }

    fn set_log(&mut self, memory: &Arc<GuestMemory>) {
        self.memory = memory.clone();
        self.workers.iter().flatten().for_each(|w| w.rings.set_log(memory));
    }

    fn log_ring(&mut self, queue: u16, at: Option<u64>) {
        if let Some(rings) = self.rings_of(queue) {
            rings.log_ring(queue, at);
        }
    }

    fn announce(&mut self, mac: [u8; 6]) -> Result<(), SessionError> {
        let guard = self.vm.guard.get();
        let guard = guard.as_deref();
        let frame = rarp(mac, guard.and_then(FrameGuard::vlan));
        // A front end names its guest alone. Where it doesn't, the guest is served all the same.
        if guard.is_some_and(|guard| guard.check(&[], &frame).is_err()) {
            if !std::mem::replace(&mut self.logged_refusal, true) {
                let name = &self.vm.control.name;
                let mac = MacAddress(mac);
                tracing::warn!(
                    "{name}: SEND_RARP: the guard refuses {mac}, which is not announced; further refusals of this session are \
                     not logged"
                );
            }
            return Ok(());
        }
        match self.vm.port.announce(&frame) {
            // The front end learns of a lost interface by its disconnection. That is not an error
            // of its own.
            Err(e) if self.vm.shared.link.is_some() => {
                tracing::warn!("{}: SEND_RARP: {e}", self.vm.control.name);
                Ok(())
            }
            outcome => outcome.map_err(|e| refused(Request::SendRarp, e)),
        }
    }

    /// A chain that was not used has no frame. One from the guest may have had its frame sent.
    fn takes_again(&self, queue: u16) -> bool {
        self.vm.port.keeps_order() && Direction::of(queue) == Direction::Receive
    }

    fn start(&mut self, ring: RingSetup) -> Result<(), String> {
        let (index, enabled) = (usize::from(ring.queue), ring.state == RingState::Enabled);
        let port = &self.vm.port;
        let mtu = self.mtu.unwrap_or_else(|| port.mtu()).max(port.mtu());
        self.vm.shared.mtu.store(mtu, Ordering::Relaxed);
        let rings = self.worker(index / 2).map_err(|e| e.to_string())?.rings.clone();
        // The port's queue takes part before the worker looks at it.
        self.change(index, |r| *r = Use { started: true, enabled });
        rings.start(ring).inspect_err(|_| self.change(index, |r| r.started = false))
    }

    fn stop(&mut self, queue: u16) -> Option<u16> {
        let base = self.rings_of(queue).and_then(|rings| rings.stop(queue));
        self.change(usize::from(queue), |r| r.started = false);
        base
    }

    fn enable(&mut self, queue: u16, on: bool, runs: bool) {
        // The port's queue takes part before the worker looks at it, and no longer than that.
        if on {
            self.change(usize::from(queue), |r| r.enabled = true);
        }
        if runs && let Some(rings) = self.rings_of(queue) {
            rings.set_state(queue, RingState::set(on));
        }
        if !on {
            self.change(usize::from(queue), |r| r.enabled = false);
        }
    }

    fn kick(&mut self, queue: u16, fd: Arc<OwnedFd>) -> Result<(), String> {
        self.rings_of(queue).map_or(Ok(()), |rings| rings.kick(queue, fd))
    }

    fn call(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        if let Some(rings) = self.rings_of(queue) {
            rings.call(queue, fd);
        }
    }

    fn err(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>) {
        if let Some(rings) = self.rings_of(queue) {
            rings.err(queue, fd);
        }
    }

    fn reset(&mut self, _memory: &Arc<GuestMemory>) {
        self.workers.iter_mut().for_each(|w| *w = None);
        self.forwarded.store(0, Ordering::Relaxed);
        self.rings.fill(Use::default());
    }

    fn needs_reset(&self) -> bool {
        self.vm.shared.needs_reset.load(Ordering::Acquire)
    }

    fn set_needs_reset(&mut self) {
        self.vm.shared.needs_reset.store(true, Ordering::Release);
    }

    fn hand_over(&mut self) {
        self.handed_over = true;
    }

    fn was_reset(&mut self) {
        self.vm.shared.needs_reset.store(false, Ordering::Release);
    }

    fn attend(&mut self) {
        if let Some(Some((tree, _))) = self.vm.metadata.take_new()
            && let Some(Some(w)) = self.workers.first()
        {
            w.rings.send(WorkerCommand::Tree(tree));
        }
        if let Some(guard) = self.vm.guard.take_new() {
            for w in self.workers.iter().flatten() {
                w.rings.send(WorkerCommand::Guard(guard.clone()));
            }
        }
        let passing = self.vm.capture.passing();
        if let Some(capture) = self.vm.capture.take_new() {
            for w in self.workers.iter().flatten() {
                let capture = capture.as_ref().map(WorkerCapture::new);
                w.rings.send(WorkerCommand::Capture(capture, passing.clone()));
            }
        }
        drop(passing);
        if let Some(Renewal { why, is_error }) = self.vm.port.attend() {
            tracing::warn!("{}: {why}", self.vm.control.name);
            if is_error {
                self.vm.shared.set_error(why);
            }
            self.set_memory(&self.memory.clone());
        }
    }
}

impl Drop for NetDevice<'_> {
    fn drop(&mut self) {
        // The worker that others forward to goes last.
        while self.workers.pop().is_some() {}
        // Frames that wait for this guest are not the next one's.
        if !self.handed_over {
            self.vm.port.flush();
        }
    }
}
