//! Binding the socket, in which mode, and closing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::Level;
use zerowire_sys::xdp::{Interface, Mode, RingSizes, Socket, SocketOptions, XdpError};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::serve::VisitLog;

use super::facts::Facts;
use super::state::{BoundSocket, Wanted};
use super::{Link, RETRY};
use crate::Policy;
use crate::port::PortPath;
use crate::port::xdp::RING_ENTRIES;
use crate::port::xdp::handed::{FoundInterface, XdpAccess, XdpFacts, XdpVerb, is_gone};
use crate::port::xdp::registrar::Registrar;
use crate::port::xdp::slab::FIRST_PLACES;
use crate::port::xdp::umem::{Slab, VmUmem};

/// What a link is made of.
pub struct LinkOptions {
    /// Name of the interface.
    pub interface: String,
    /// Its queue.
    pub queue: u32,
    /// The queue pair, for its part of the slab.
    pub pair: usize,
    /// Copy or not.
    pub mode: Mode,
    /// The interface's MTU when the port was opened, bytes.
    pub mtu: usize,
    /// Where the memory's registration comes from.
    pub registrar: Arc<Registrar>,
    /// How the interface is reached.
    pub access: XdpAccess,
    /// Gets the number of the interface whose queue was bound.
    pub served: Arc<AtomicU32>,
    /// Whether the interface is promiscuous while there is a socket.
    pub promiscuous: bool,
    /// Counts chains that were given back before others that the guest had made available before
    /// them.
    pub out_of_order: Arc<AtomicU64>,
    /// Where lines about the present front end go. One that comes again and again has them waiting.
    pub log: VisitLog,
    /// The guest's address where only its own frames and those to groups are to come; None for all
    /// of the queue's.
    pub address: Option<[u8; 6]>,
    /// Scatter or copy.
    pub policy: Policy,
    /// Chains that are kept for frames of this process's own.
    pub reserve: usize,
}

/// How long frames wait for a queue that another socket has, before they are dropped.
const BUSY_HOLD: Duration = Duration::from_secs(5);

/// Whether an error passes by itself.
fn passes(error: &XdpError) -> bool {
    match error {
        XdpError::Down { .. } | XdpError::NoInterface { .. } | XdpError::Busy { .. } => true,
        XdpError::System { cause, .. } => is_gone(cause),
        _ => false,
    }
}

impl Link {
    /// Other memory; nothing of the old one is in use any more.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        PortPath::let_go(self);
        self.registered.memory = memory.clone();
    }

    /// Tells how long the guest's receive buffers are, before the socket is bound.
    pub fn note_buffers(&mut self, bytes: Option<usize>) {
        self.binding.buffer_bytes = bytes;
    }

    /// Binds the socket for a ring that starts. An interface that is down, or away, or busy is
    /// tried again later; other errors are the caller's.
    ///
    /// # Errors
    /// The text says what is wrong.
    pub fn start(&mut self, receives: bool) -> Result<(), String> {
        if receives {
            self.wanted = Wanted::ToReceive;
        } else if self.wanted == Wanted::Nothing {
            self.wanted = Wanted::ToSend;
        }
        match self.bind() {
            Err(e) if !passes(&e) => Err(e.to_string()),
            _ => Ok(()),
        }
    }

    /// Binds the socket that is wanted and not there, if it is time to.
    #[cold]
    pub(in crate::port::xdp) fn try_again(&mut self) {
        if self.wanted != Wanted::Nothing
            && self.bound.is_none()
            && self.binding.retry_at.is_none_or(|at| Instant::now() >= at)
        {
            let _ = self.bind();
        }
    }

    /// Whether another socket has the queue, and not for long. The kernel lets go of a queue some
    /// time after its socket was closed. So this passes if that socket is the one before on this
    /// queue.
    pub(in crate::port::xdp) fn waits_for_queue(&self) -> bool {
        self.bound.is_none() && self.binding.busy_since.is_some_and(|since| since.elapsed() < BUSY_HOLD)
    }

    fn bind(&mut self) -> Result<(), XdpError> {
        if self.bound.is_some() {
            return Ok(());
        }
        let result = self.bind_in_mode();
        let binding = &mut self.binding;
        match &result {
            Ok(()) => (binding.retry_at, binding.problem, binding.busy_since) = (None, None, None),
            Err(e) => {
                let busy = matches!(e, XdpError::Busy { .. });
                binding.busy_since = busy.then(|| binding.busy_since.unwrap_or_else(Instant::now));
                let text = e.to_string();
                if binding.problem.as_ref() != Some(&text) && !self.options.access.is_over() {
                    let next = if passes(e) { "; tried again" } else { "" };
                    self.options.log.add(Level::WARN, format!("{text}{next}"));
                }
                binding.problem = Some(text);
                binding.retry_at = Some(Instant::now() + RETRY);
            }
        }
        result
    }

    fn bind_in_mode(&mut self) -> Result<(), XdpError> {
        let interface = self.options.interface.clone();
        let mut found = self.find()?;
        if let Ok(mtu) = found.interface.mtu() {
            self.options.mtu = mtu;
        }
        let mode = self.options.mode;
        let unsafe_since = if mode == Mode::Copy { None } else { self.unsafe_for_zero_copy(&found.facts) };
        let why = match (mode, unsafe_since) {
            (Mode::Copy, _) => return self.bind_as(found, false),
            // It was asked for, and does not do for this guest.
            (Mode::ZeroCopy, Some(why)) => {
                let text = format!("interface {interface}: no zero copy: {why}; or use mode=auto or copy");
                return Err(XdpError::Told(text));
            }
            (Mode::ZeroCopy, None) => return self.bind_as(found, true),
            (Mode::Auto, Some(why)) => why,
            (Mode::Auto, None) => match self.bind_as(found, true) {
                Ok(()) => return Ok(()),
                Err(XdpError::NoZeroCopy { .. }) => {
                    found = self.find()?;
                    "its driver refused that mode".to_owned()
                }
                Err(e) => return Err(e),
            },
        };
        if self.binding.why_copy.as_ref() != Some(&why) {
            self.options.log.add(Level::INFO, format!("{interface}: copy mode, since {why}"));
            self.binding.why_copy = Some(why);
        }
        self.bind_as(found, false)
    }

    fn find(&self) -> Result<FoundInterface, XdpError> {
        self.options.access.find(self.options.pair)
    }

    /// Why zero-copy mode does not do for this guest; None where nothing speaks against it.
    fn unsafe_for_zero_copy(&self, interface: &XdpFacts) -> Option<String> {
        let facts = Facts {
            driver_has_it: interface.has_zero_copy,
            distrust: self.options.registrar.distrust().or_else(|| interface.distrust.clone()),
            has_address: self.options.address.is_some(),
            page_bytes: self.registered.memory.smallest_page().unwrap_or(0),
            mtu: self.options.mtu,
            buffer_bytes: self.binding.buffer_bytes,
        };
        facts.against_zero_copy()
    }

    fn bind_as(&mut self, found: FoundInterface, zero_copy: bool) -> Result<(), XdpError> {
        let FoundInterface { interface, facts, watch } = found;
        self.options.served.store(facts.index, Ordering::Relaxed);
        let umem = self.registered_for(zero_copy)?;
        // Another pair of this guest may have registered the memory, and its mode is that of all.
        let zero_copy = umem.geometry.zero_copy;
        // Another link of this pair that is about to go has its socket, too.
        let slab = umem.slab(self.options.pair).ok_or_else(|| XdpError::Busy {
            interface: interface.name().to_owned(),
            queue: self.options.queue,
            waited: Duration::ZERO,
        })?;
        // Also where nothing is received yet, or any more: the ring that receives next finds this
        // socket.
        let first = if zero_copy { FIRST_PLACES } else { 0 };
        let of_socket = self.options.access.known(facts.index)?;
        let socket = self.open_socket(&umem, &slab, first, of_socket)?;
        // The name may have become another interface's since.
        if interface.has_lost_name() {
            return Err(XdpError::NoInterface { interface: interface.name().to_owned() });
        }
        let LinkOptions { access, pair, promiscuous, .. } = &self.options;
        self.binding.is_deaf = *promiscuous && access.ask(XdpVerb::BePromiscuous(*pair), &[]).is_err();
        // As it is now; the watch tells of what comes.
        let mtu = interface.mtu();
        self.bound = Some(BoundSocket { socket, slab, watch, interface, steered: false, posted: false });
        self.first_places = first;
        self.generation += 1;
        self.renewed = true;
        self.outgoing.begin(!zero_copy && facts.copies_at_once);
        self.registered.begin(umem);
        if let Ok(mtu) = mtu {
            self.limit(mtu);
        }
        self.care.begin(zero_copy);
        Ok(())
    }

    /// The memory's registration: the one that there is, if it is for this mode, or another one.
    fn registered_for(&mut self, zero_copy: bool) -> Result<Arc<VmUmem>, XdpError> {
        let registered = &mut self.registered;
        if registered.umem.as_ref().is_some_and(|u| u.geometry.zero_copy != zero_copy) {
            registered.umem = None;
        }
        match &registered.umem {
            Some(umem) => Ok(umem.clone()),
            None => self.options.registrar.register(&registered.memory, zero_copy),
        }
    }

    /// A socket in the mode of the registration, with the first chunks of the slab in its fill
    /// ring.
    fn open_socket(
        &mut self,
        umem: &Arc<VmUmem>,
        slab: &Slab,
        first: usize,
        interface: Interface,
    ) -> Result<Socket, XdpError> {
        let zero_copy = umem.geometry.zero_copy;
        let rings = RingSizes {
            fill: RING_ENTRIES,
            completion: RING_ENTRIES,
            receive: RING_ENTRIES,
            transmit: RING_ENTRIES,
        };
        let options = SocketOptions {
            first_chunks: (0..first as u16).map(|place| slab.receive_chunk(place)).collect(),
            queue: self.options.queue,
            mode: if zero_copy { Mode::ZeroCopy } else { Mode::Copy },
            // Few drivers take frames in pieces in zero-copy mode.
            multi_buffer: !zero_copy,
            rings,
            ..SocketOptions::new(self.options.interface.clone())
        };
        Socket::bind_to(&umem.umem, interface, &options).inspect_err(|e| {
            // What was registered stays so for the next try.
            if let XdpError::Busy { .. } = e {
                self.registered.umem = Some(umem.clone());
            }
        })
    }

    /// The receive ring stops: see [`Self::close`]. The next frame to send has a socket bound
    /// again.
    pub fn stop_receiving(&mut self) {
        if self.wanted == Wanted::ToReceive {
            self.wanted = Wanted::ToSend;
        }
        self.close();
    }

    /// Sends what is under way, and closes the socket: from then on nobody writes to the guest's
    /// memory.
    pub fn close(&mut self) {
        self.unsteer();
        self.drain();
        let fence = self.bound.as_ref().is_some_and(|b| b.socket.zero_copy() && b.posted);
        self.drop_socket();
        if fence {
            // The device lets go of the buffers some milliseconds later; that it did shows when the
            // queue can be had again. A process that ends leaves that to the next one on the queue.
            if let Err(e) = self.find().and_then(|found| self.bind_as(found, true))
                && !self.is_over()
            {
                tracing::error!("{e}; the device may still write to buffers of a queue that was stopped");
            }
        }
    }

    /// Closes the socket as it is: all loans end.
    pub(super) fn drop_socket(&mut self) {
        if let Some(bound) = self.bound.take() {
            self.missed.ask(&bound.socket, self.options.access.too_long(self.options.pair));
            drop(bound);
            // Without the other process there is nobody to tell, and it has let go.
            let _ = self.options.access.ask(XdpVerb::Release(self.options.pair), &[]);
        }
        self.missed.end();
        self.outgoing.end();
    }
}
