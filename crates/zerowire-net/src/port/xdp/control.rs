//! AF_XDP: a queue of an interface a worker, with the guest's memory as the UMEM.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use zerowire_sys::xdp::program::Steering;
use zerowire_sys::xdp::{Interface, Mode};
use zerowire_vhost::memory::GuestMemory;

use super::geometry::MAX_MTU;
use super::{
    Attach, Link, LinkOptions, Registrar, XdpInlet, XdpMatch, XdpMode, XdpOutlet, XdpSpec,
    driver_has_zero_copy, steering,
};
use crate::Policy;
use crate::features::Offloads;
use crate::port::packet::PacketError;
use crate::port::{Port, PortError, PortPath, PortSpec, Renewal, send_through};
use crate::receive::ReceiveSetup;
use crate::worker::{WorkerHandle, WorkerSetup};

/// Chains that are kept for the metadata service's frames.
const METADATA_CHAINS: usize = 8;

/// Queues of an interface with what their workers need to know.
pub(in crate::port) struct XdpPort {
    spec: XdpSpec,
    /// The program on the interface that has the name; another one when that is deleted and comes
    /// back.
    attached: Arc<Mutex<Arc<Steering>>>,
    /// Number of the interface that the connection's frames pass by, whatever it is called by now;
    /// 0 before a queue was bound.
    served: Arc<AtomicU32>,
    registrar: Arc<Registrar>,
    policy: Policy,
    offloads: bool,
}

impl XdpPort {
    /// Attaches the program that steers frames; memory and sockets come with the guest.
    pub(in crate::port) fn open(spec: &XdpSpec, policy: Policy) -> Result<Self, PortError> {
        let other =
            |problem: String| PortError::Other { port: PortSpec::Xdp(spec.clone()).to_string(), problem };
        let interface = Interface::open(&spec.interface)?;
        let kind = interface.hardware_kind();
        let kind = kind.map_err(|e| other(format!("what kind of interface it is can't be read: {e}")))?;
        PacketError::of_kind(&spec.interface, kind).map_or(Ok(()), Err)?;
        zerowire_sys::xdp::check_available()?;
        let last = spec.queue as usize + spec.queues - 1;
        if let Some(n) = interface.queues().filter(|n| last >= *n as usize) {
            let name = &spec.interface;
            return Err(other(format!(
                "queue {last} of interface {name}, which has {n}, numbered from 0; 'ethtool -L {name}' changes that"
            )));
        }
        let zero_copy = driver_has_zero_copy(&interface);
        if spec.mode == XdpMode::ZeroCopy && !zero_copy {
            let name = &spec.interface;
            return Err(other(format!(
                "the driver of interface {name} has no zero-copy mode ('zerowire doctor -i {name}' shows it): give mode=auto or copy"
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
        let attached = Arc::new(Mutex::new(steering::shared(&interface)?));
        let registrar = Arc::new(Registrar::new(spec.interface.clone(), spec.queues, spec.pin));
        let offloads = spec.does_offloads(zero_copy);
        let word = if offloads { "on" } else { "off" };
        let why = match spec.offloads {
            Some(_) => "asked",
            None if offloads => {
                "frames are copied by the kernel anyhow; offloads=off leaves them to the guest"
            }
            None => "with them frames could not be sent without a copy; offloads=on offers them all the same",
        };
        tracing::info!("interface {}: offloads={word} ({why})", spec.interface);
        Ok(Self { spec: spec.clone(), attached, served: Arc::default(), registrar, policy, offloads })
    }

    /// What the interface is called now that the connection's frames pass by; None before it has
    /// one, and once that is gone.
    fn served_name(&self) -> Option<String> {
        let index = match self.served.load(Ordering::Relaxed) {
            0 => return None,
            index => index,
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        zerowire_sys::netdevice::name(socket, index).ok()
    }
}

impl Port for XdpPort {
    fn pairs(&self) -> usize {
        self.spec.queues
    }

    fn interface(&self) -> String {
        self.served_name().unwrap_or_else(|| self.spec.interface.clone())
    }

    fn queue_hint(&self) -> &'static str {
        "give --port xdp:IF,queues=N as many queue pairs as the VMM uses"
    }

    fn offloads(&self) -> Offloads {
        if !self.offloads {
            return Offloads::default();
        }
        // Done in software; UDP fragments are not.
        Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: false, uso: true }
    }

    fn offloads_toward_guest(&self) -> Offloads {
        // Frames come as they were on the wire.
        Offloads::default()
    }

    /// A chain that its driver keeps for long is passed by others, and buffers come back as frames
    /// come.
    fn keeps_order(&self) -> bool {
        false
    }

    fn mtu(&self) -> usize {
        let now = Interface::open(&self.spec.interface).ok().and_then(|i| i.mtu().ok());
        now.unwrap_or(1500).min(MAX_MTU)
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
        send_through(&self.interface(), frame)
    }

    fn flush(&self) {
        self.served.store(0, Ordering::Relaxed);
    }

    fn moves_together(&self) -> bool {
        true
    }

    fn attend(&self) -> Option<Renewal> {
        self.registrar.attend()
    }

    fn kernel_copies(&self) -> &'static str {
        "in copy mode one each way, between the guest's memory and the kernel's buffers (net/xdp/xsk.c); none in zero-copy mode"
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        // New workers look for the name that was given; the first queue pair's comes before the
        // others.
        if setup.pair == 0 {
            self.served.store(0, Ordering::Relaxed);
        }
        let (attached, served) = (self.attached.clone(), self.served.clone());
        let attach: Attach = Arc::new(move |interface: &Interface| {
            let now = steering::shared(interface)?;
            served.store(interface.index(), Ordering::Relaxed);
            *attached.lock().unwrap_or_else(PoisonError::into_inner) = now.clone();
            Ok(now)
        });
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
            registrar: self.registrar.clone(),
            attach,
            promiscuous: self.spec.promiscuous,
            out_of_order: setup.shared.out_of_order.clone(),
            address: match self.spec.filter {
                XdpMatch::All => None,
                XdpMatch::Mac(address) => Some(address),
            },
        };
        let reserve = if setup.detour.is_some() { METADATA_CHAINS } else { 0 };
        let policy = self.policy;
        WorkerHandle::spawn(setup, move || Ok(XdpPath { link: Link::new(options), policy, reserve }))
    }
}

/// Frames go to one queue of an interface; chains and buffers are with the kernel between turns.
struct XdpPath {
    link: Link,
    policy: Policy,
    reserve: usize,
}

impl PortPath for XdpPath {
    type Queue = Link;
    type Outlet = XdpOutlet;
    type Inlet = XdpInlet;

    fn outlet(&self, ring_size: u16) -> io::Result<XdpOutlet> {
        Ok(XdpOutlet::new(self.policy, ring_size))
    }

    fn inlet(&self, _setup: ReceiveSetup, ring_size: u16) -> io::Result<XdpInlet> {
        Ok(XdpInlet::new(self.policy, ring_size, self.reserve))
    }

    #[inline]
    fn queue(&mut self) -> &mut Link {
        &mut self.link
    }

    fn describe(&self) -> String {
        self.link.describe()
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        self.link.port()
    }

    fn renewed(&mut self) -> bool {
        self.link.renewed()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.link.events()
    }

    fn notice(&mut self) {
        self.link.notice();
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        self.link.set_memory(memory);
    }

    fn let_go(&mut self) {
        self.link.let_go();
    }

    fn attention(&mut self) -> bool {
        self.link.attention()
    }

    fn sleep_at_most(&mut self) -> Option<Duration> {
        self.link.sleep_at_most()
    }
}
