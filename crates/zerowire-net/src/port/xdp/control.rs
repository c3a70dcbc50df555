//! AF_XDP: a queue of an interface a worker, with the guest's memory as the UMEM.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use zerowire_sys::netdevice;

use super::geometry::MAX_MTU;
use super::handed::XdpVerb;
use super::{Link, LinkOptions, Registrar, XdpAccess, XdpQueues, XdpSpec};
use crate::Policy;
use crate::features::Offloads;
use crate::link::LinkState;
use crate::port::{OpenPort, Port, PortError, PortSpec, Renewal};
use crate::worker::{WorkerHandle, WorkerSetup};

/// Chains that are kept for the metadata service's frames.
const METADATA_CHAINS: usize = 8;

/// Queues of an interface with what their workers need to know.
pub(super) struct XdpPort {
    spec: XdpSpec,
    access: XdpAccess,
    /// Number of the interface that the connection's frames pass by, whatever it is called by now;
    /// 0 before a queue was bound.
    served: Arc<AtomicU32>,
    registrar: Arc<Registrar>,
    policy: Policy,
    offloads: bool,
}

impl XdpPort {
    /// On queues that this process opens.
    pub(super) fn open(spec: &XdpSpec) -> Result<OpenPort, PortError> {
        let queues = Arc::new(XdpQueues::open(spec)?);
        let zero_copy = queues.has_zero_copy;
        let access = XdpAccess::new(queues).map_err(|e| PortError::Other {
            port: PortSpec::Xdp(spec.clone()).to_string(),
            problem: format!("no socket to ask by: {e}"),
        })?;
        let spec = spec.clone();
        Ok(OpenPort::new(move |policy| Self::of(spec, access, zero_copy, policy)))
    }

    /// On queues whose driver has a zero-copy mode, or not.
    pub(super) fn of(spec: XdpSpec, access: XdpAccess, zero_copy: bool, policy: Policy) -> Self {
        let registrar = Arc::new(Registrar::new(access.clone(), spec.queues, spec.pin));
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
        Self { spec, access, served: Arc::default(), registrar, policy, offloads }
    }

    /// What the interface is called now that the connection's frames pass by; None before it has
    /// one, and once that is gone.
    fn served_name(&self) -> Option<String> {
        let index = match self.served.load(Ordering::Relaxed) {
            0 => return None,
            index => index,
        };
        netdevice::name(&self.access.control, index).ok()
    }
}

impl Port for XdpPort {
    fn pairs(&self) -> usize {
        self.spec.queues
    }

    fn interface(&self) -> String {
        self.served_name().unwrap_or_else(|| self.spec.interface.clone())
    }

    fn link_state(&self) -> LinkState {
        LinkState::by(&self.access.control, &self.interface())
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
        self.access.mtu().unwrap_or(1500).min(MAX_MTU)
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
        let sent = self.access.ask(XdpVerb::Announce(frame.to_vec()), &[]);
        sent.map(drop).map_err(|e| e.to_string())
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

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        // New workers look for the name that was given; the first queue pair's comes before the
        // others.
        if setup.pair == 0 {
            self.served.store(0, Ordering::Relaxed);
        }
        let options = LinkOptions {
            interface: self.spec.interface.clone(),
            queue: self.spec.queue + setup.pair as u32,
            pair: setup.pair,
            mode: self.spec.mode,
            mtu: self.mtu(),
            registrar: self.registrar.clone(),
            access: self.access.clone(),
            served: self.served.clone(),
            promiscuous: self.spec.promiscuous,
            out_of_order: setup.shared.out_of_order.clone(),
            log: setup.log.clone(),
            address: self.spec.filter.address(),
            policy: self.policy,
            reserve: if setup.detour.is_some() { METADATA_CHAINS } else { 0 },
        };
        WorkerHandle::spawn(setup, move || Ok(Link::new(options)))
    }
}
