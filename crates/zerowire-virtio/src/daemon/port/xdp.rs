//! AF_XDP: a queue of an interface a worker, with the guest's memory as the UMEM ([`crate::net::xdp`]).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use zerowire::ledger::Counters;
use zerowire::xdp::program::Steering;
use zerowire::xdp::{Interface, Mode, XdpError};
use zerowire_vhost_user::features as f;

use super::{Port, PortError, steering};
use crate::daemon::command::RingStart;
use crate::daemon::path::{Path, ReceiveSide, Side, TransmitSide};
use crate::daemon::rings::split_ring;
use crate::daemon::worker::{WorkerHandle, WorkerSetup};
use crate::memory::GuestMemory;
use crate::net::features::header_len;
use crate::net::receive::ReceiveTurn;
use crate::net::transmit::{Detour, Turn, TurnError};
use crate::net::xdp::geometry::{Geometry, MAX_MTU};
use crate::net::xdp::{Link, LinkOptions, Registry, VmUmem, XdpReceive, XdpReceiveSetup, XdpTransmit};
use crate::net::{PathMode, Policy};
use crate::port::{PortSpec, TapOffloads, XdpMatch, XdpMode, XdpSpec};
use crate::ring::SplitRing;

/// Chains that are kept for the metadata service's frames.
const METADATA_CHAINS: usize = 8;

/// Queues of an interface with what their workers need to know.
pub(super) struct XdpPort {
    spec: XdpSpec,
    interface: Arc<Interface>,
    steering: Arc<Steering>,
    registry: Registry,
    copy: bool,
}

impl XdpPort {
    /// Attaches the program that steers frames; memory and sockets come with the guest.
    pub(super) fn open(spec: &XdpSpec, policy: Policy) -> Result<Self, PortError> {
        let other =
            |problem: String| PortError::Other { port: PortSpec::Xdp(spec.clone()).to_string(), problem };
        let interface = Arc::new(Interface::open(&spec.interface)?);
        let last = spec.queue as usize + spec.queues - 1;
        if let Some(n) = interface.queues().filter(|n| last >= *n as usize) {
            let name = &spec.interface;
            return Err(other(format!(
                "queue {last} of interface {name}, which has {n}, numbered from 0; 'ethtool -L {name}' changes that"
            )));
        }
        let mtu = interface.mtu().map_err(|e| other(format!("its MTU can't be read: {e}")))?;
        if mtu > MAX_MTU {
            tracing::warn!(
                "interface {}: frames of MTU {mtu} don't fit into one buffer of AF_XDP: longer ones than MTU {MAX_MTU} \
                 makes are dropped",
                spec.interface
            );
        }
        let steering = steering::shared(&interface)?;
        let registry = registry(interface.clone(), spec.queues);
        Ok(Self { spec: spec.clone(), interface, steering, registry, copy: policy.mode == PathMode::Copy })
    }
}

/// One registration of a guest's memory for all its queue pairs, which ends with the last of them.
fn registry(interface: Arc<Interface>, pairs: usize) -> Registry {
    let last: Mutex<Weak<VmUmem>> = Mutex::default();
    Arc::new(move |memory, zero_copy| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(umem) = last.upgrade().filter(|u| u.is_of(memory)) {
            return Ok(umem);
        }
        let mtu = interface.mtu().map_err(|source| XdpError::System {
            what: format!("interface {}", interface.name()),
            call: "SIOCGIFMTU",
            source,
        })?;
        let geometry = if zero_copy { Geometry::for_zero_copy(mtu) } else { Geometry::for_mtu(mtu) };
        let umem = Arc::new(VmUmem::new(memory, geometry, pairs)?);
        *last = Arc::downgrade(&umem);
        Ok(umem)
    })
}

impl Port for XdpPort {
    fn pairs(&self) -> usize {
        self.spec.queues
    }

    fn queue_hint(&self) -> &'static str {
        "give --port xdp:IF,queues=N as many queue pairs as the VMM uses"
    }

    fn offloads(&self) -> TapOffloads {
        TapOffloads::default()
    }

    fn mtu(&self) -> usize {
        self.interface.mtu().unwrap_or(1500).min(MAX_MTU)
    }

    fn set_features(&self, _acked: u64) -> Result<(), String> {
        Ok(())
    }

    fn set_mtu(&self, mtu: usize) -> Result<(), String> {
        let (name, has) = (&self.spec.interface, self.mtu());
        if mtu > has {
            tracing::warn!(
                "interface {name} takes frames of MTU {has}, the VM's device has MTU {mtu}: longer ones are dropped"
            );
        }
        Ok(())
    }

    fn announce(&self, frame: &[u8]) -> Result<(), String> {
        let options = zerowire::packet::Options::default();
        let mut socket = zerowire::packet::PacketSocket::open(&self.spec.interface, &options)
            .map_err(|e| e.to_string())?;
        socket.send(frame).map(drop).map_err(|e| e.to_string())
    }

    fn kernel_copies(&self) -> &'static str {
        "in copy mode one each way, between the guest's memory and the kernel's buffers (net/xdp/xsk.c); none in zero-copy mode"
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        let options = LinkOptions {
            interface: self.spec.interface.clone(),
            queue: self.spec.queue + setup.pair as u32,
            pair: setup.pair,
            mode: match self.spec.mode {
                XdpMode::Auto => Mode::Auto,
                XdpMode::Copy => Mode::Copy,
                XdpMode::ZeroCopy => Mode::ZeroCopy,
            },
            mtu: self.mtu(),
            registry: self.registry.clone(),
            steering: self.steering.clone(),
            address: match self.spec.filter {
                XdpMatch::All => None,
                XdpMatch::Mac(address) => Some(address),
            },
        };
        let reserve = if setup.detour.is_some() { METADATA_CHAINS } else { 0 };
        let copy = self.copy;
        WorkerHandle::spawn(setup, move || Ok(XdpPath { link: Link::new(options), copy, reserve }))
    }
}

/// Frames go to one queue of an interface; chains and buffers are with the kernel between turns.
pub(super) struct XdpPath {
    link: Link,
    copy: bool,
    reserve: usize,
}

impl Path for XdpPath {
    type Transmit = XdpTransmit;
    type Receive = XdpReceive;
    const POSTS_AHEAD: bool = true;

    fn describe(&self) -> String {
        self.link.describe()
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        self.link.port()
    }

    fn renewed(&mut self) -> bool {
        self.link.renewed()
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Option<String> {
        self.link.set_memory(memory);
        None
    }

    fn sleep_at_most(&mut self) -> Option<Duration> {
        self.link.sleep_at_most()
    }
}

impl Side<XdpPath> for XdpTransmit {
    fn make(path: &mut XdpPath, start: &RingStart, base: u16, memory: &GuestMemory) -> Result<Self, String> {
        let ring = split_ring(start, base, memory)?;
        path.link.start(false)?;
        Ok(Self::new(ring, start.acked, header_len(start.acked), path.copy))
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring()
    }

    fn release(&mut self, path: &mut XdpPath, _memory: &GuestMemory, _counters: &Counters) {
        self.release(&mut path.link);
    }
}

impl TransmitSide<XdpPath> for XdpTransmit {
    #[inline]
    fn run<'a>(
        &mut self,
        path: &'a mut XdpPath,
        memory: &'a GuestMemory,
        counters: &'a Counters,
        detour: Option<&'a mut dyn Detour>,
    ) -> Result<Turn, TurnError> {
        self.run(&mut path.link, memory, counters, detour)
    }

    fn discard(&mut self, path: &mut XdpPath, counters: &Counters) -> Result<Turn, TurnError> {
        self.discard(&mut path.link, counters)
    }
}

impl Side<XdpPath> for XdpReceive {
    fn make(path: &mut XdpPath, start: &RingStart, base: u16, memory: &GuestMemory) -> Result<Self, String> {
        let ring = split_ring(start, base, memory)?;
        let setup = XdpReceiveSetup {
            mergeable: start.acked & f::NET_MRG_RXBUF != 0,
            header_len: header_len(start.acked),
            copy: path.copy,
            reserve: path.reserve,
        };
        path.link.note_buffers(Self::first_buffer(split_ring(start, base, memory)?, memory));
        path.link.start(true)?;
        Ok(Self::new(ring, setup))
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring()
    }

    fn release(&mut self, path: &mut XdpPath, memory: &GuestMemory, counters: &Counters) {
        self.release(&mut path.link, memory, counters);
    }

    fn trim(&mut self) {
        self.trim();
    }
}

impl ReceiveSide<XdpPath> for XdpReceive {
    #[inline]
    fn run(
        &mut self,
        path: &mut XdpPath,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<ReceiveTurn, TurnError> {
        self.run(&mut path.link, memory, counters)
    }

    fn inject(&mut self, frame: &[u8], memory: &GuestMemory, counters: &Counters) -> Result<bool, TurnError> {
        self.inject(frame, memory, counters)
    }
}
