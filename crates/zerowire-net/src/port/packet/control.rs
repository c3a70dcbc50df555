//! Packet sockets on any Ethernet interface: a pair of them a worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::outbound::{Outbound, is_wanted};
use super::{
    Frames, InterfaceState, LOOKS, PacketError, PacketInlet, PacketOutlet, PacketQueue, PacketRings,
    PacketSocket, PacketSockets, PacketSpec,
};
use crate::features::Offloads;
use crate::link::LinkState;
use crate::port::{OpenPort, Port, PortPath, send_through};
use crate::receive::ReceiveSetup;
use crate::stats::Shared;
use crate::worker::{LINGER, WorkerHandle, WorkerSetup};
use crate::{PathMode, Policy};

/// An interface with what its workers need to know.
pub(super) struct PacketPort {
    spec: PacketSpec,
    /// Bound where the connection's frames pass, or passed last, so that it follows an interface
    /// that is renamed; it reads nothing.
    control: PacketSocket,
    /// All sockets, if another process has opened them.
    handed: Option<Arc<PacketSockets>>,
    policy: Policy,
}

impl PacketPort {
    /// Makes sure that there is such an interface, and that this user and this kernel may have it;
    /// the workers' sockets come with the guest.
    pub(super) fn open(spec: &PacketSpec) -> Result<OpenPort, PacketError> {
        let control = PacketSocket::open(&spec.interface, Frames::Nothing, 12)?;
        control.bind()?;
        if control.state() == InterfaceState::Down {
            let name = &spec.interface;
            tracing::warn!(
                "interface {name} is down: 'ip link set {name} up'; frames are dropped until then"
            );
        }
        let spec = spec.clone();
        Ok(OpenPort::new(|policy| Self { spec, control, handed: None, policy }))
    }

    /// Goes on with sockets that another process has opened.
    pub(super) fn take_over(spec: PacketSpec, sockets: Arc<PacketSockets>, policy: Policy) -> Self {
        let control = sockets.control.clone();
        Self { spec, control, handed: Some(sockets), policy }
    }

    /// The control socket, bound to an interface if there is one: one that was deleted may be there
    /// again.
    fn bound(&self) -> &PacketSocket {
        if self.control.state() == InterfaceState::Gone {
            let _ = self.control.bind();
        }
        &self.control
    }

    /// Whether frames of the guest go by a ring, and why not.
    fn rings(&self) -> Result<(), String> {
        match (self.policy.mode, &self.handed) {
            (PathMode::Copy, _) => Err("no ring, since copies were asked for".to_owned()),
            (_, Some(sockets)) => sockets.facts.no_ring.clone().map_or(Ok(()), Err),
            (_, None) => is_wanted(&self.spec),
        }
    }
}

impl Port for PacketPort {
    fn pairs(&self) -> usize {
        1
    }

    fn interface(&self) -> String {
        self.control.name().unwrap_or_else(|| self.spec.interface.clone())
    }

    fn link_state(&self) -> LinkState {
        let name = self.interface();
        match &self.handed {
            None => LinkState::by_name(&name),
            Some(_) => LinkState::by(&self.control, &name),
        }
    }

    fn queue_hint(&self) -> &'static str {
        "a packet port has one queue pair: give the VM's device one, or use tap:NAME,queues=N or xdp:IF,queues=N"
    }

    fn offloads(&self) -> Offloads {
        // All that a virtio-net header of 12 bytes can say, which came later (Linux 6.3) than the
        // youngest of it (USO, 6.2).
        Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true }
    }

    fn mtu(&self) -> usize {
        self.bound().mtu().unwrap_or(1500)
    }

    fn set_mtu(&self, mtu: usize) -> Result<(), String> {
        let (name, has) = (&self.spec.interface, self.mtu());
        if mtu > has {
            tracing::warn!(
                "interface {name} has MTU {has}, the VM's device {mtu}: 'ip link set {name} mtu {mtu}' lets longer frames pass"
            );
        }
        Ok(())
    }

    fn announce(&self, frame: &[u8]) -> Result<(), String> {
        self.bound();
        if self.handed.is_some() {
            return self.control.send(frame).map_err(|e| e.to_string());
        }
        send_through(&self.interface(), frame)
    }

    fn takes_missing_pages(&self) -> bool {
        true
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        if self.handed.is_none() {
            // The connection's sockets go by the name that was given, and this one with them.
            self.control.unbind();
            self.bound();
        }
        let (interface, policy) = (self.spec.interface.clone(), self.policy);
        let (ring, insists) = (self.rings(), self.spec.rings == PacketRings::On);
        let receive = self.spec.receive;
        let no_ring = (policy.mode == PathMode::Copy).then_some("copies were asked for");
        let (shared, pair) = (setup.shared.clone(), setup.pair);
        let handed = self.handed.clone();
        WorkerHandle::spawn(setup, move || {
            let outbound = Outbound::new(handed.clone(), ring, insists);
            let queue = PacketQueue::open(&interface, receive, no_ring, outbound);
            let queue = queue.map_err(io::Error::other)?;
            Ok(PacketPath { queue, policy, shared, pair, handed })
        })
    }
}

/// The port is watched again before the worker sleeps.
const _: () = assert!(LOOKS < LINGER);

/// Frames go to the sockets of one queue pair, and nothing of the guest's memory is lent to the
/// kernel between turns.
struct PacketPath {
    queue: PacketQueue,
    policy: Policy,
    /// Has the MTU for rings that start, and the counters for frames that the packet ring loses
    /// while no ring of the guest runs.
    shared: Arc<Shared>,
    pair: usize,
    /// Sockets that stay when the queue goes.
    handed: Option<Arc<PacketSockets>>,
}

impl Drop for PacketPath {
    fn drop(&mut self) {
        self.queue.end(&self.shared.pairs[self.pair].transmit);
        if let Some(sockets) = &self.handed {
            sockets.end();
        }
    }
}

impl PortPath for PacketPath {
    type Queue = PacketQueue;
    type Outlet = PacketOutlet;
    type Inlet = PacketInlet;

    fn outlet(&self, _ring_size: u16) -> io::Result<PacketOutlet> {
        PacketOutlet::new(self.policy)
    }

    fn inlet(&self, setup: ReceiveSetup, _ring_size: u16) -> io::Result<PacketInlet> {
        PacketInlet::new(self.policy, self.shared.mtu.load(Ordering::Relaxed), setup)
    }

    #[inline]
    fn queue(&mut self) -> &mut PacketQueue {
        &mut self.queue
    }

    fn describe(&self) -> String {
        self.queue.describe()
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.link.port())
    }

    fn changed(&mut self) -> bool {
        self.queue.link.changed()
    }

    fn sleep_at_most(&mut self) -> Option<Duration> {
        self.queue.sleep_at_most(&self.shared.pairs[self.pair].transmit)
    }
}
