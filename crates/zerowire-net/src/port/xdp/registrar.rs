//! One registration of a guest's memory for all queue pairs of its device, and what became known
//! about it.
//!
//! A registration ends when the last pair lets go of it. It can become unfit: a device can't reach
//! what was promised, or pages were discarded under it. The queue pairs can't change it one by one:
//! old and new together may be more than may be pinned. So whoever finds out says it here. The
//! control thread then has all pairs let go of the memory, and go on after that
//! ([`Registrar::attend`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use zerowire_sys::lock;
use zerowire_sys::xdp::XdpError;
use zerowire_vhost::memory::{GuestMemory, Region};

use super::geometry::Geometry;
use super::umem::VmUmem;
use crate::port::Renewal;
use crate::port::xdp::{XdpAccess, XdpPin};

/// Registrations in whose memory pages were discarded before no more of it is registered.
const DISCARDS: u32 = 3;

/// What to do about discarded pages.
const REMEDY: &str =
    "give the VM no balloon (libvirt: <memballoon model='none'/>) and no free-page-reporting";

#[derive(Debug, Default)]
struct State {
    umem: Weak<VmUmem>,
    /// The regions of the memory that it was made of.
    of: Vec<u64>,
    /// Registrations of that memory that had pages discarded.
    discards: u32,
    /// Why no device is to reach the memory itself.
    distrust: Option<String>,
    /// Why the memory has to be registered anew.
    renew: Option<Renewal>,
}

/// Registers the memory of one guest after another, for the queue pairs of one device.
#[derive(Debug)]
pub struct Registrar {
    access: XdpAccess,
    pairs: usize,
    /// How much of the memory is registered while nothing speaks against that.
    pin: XdpPin,
    state: Mutex<State>,
    look: AtomicBool,
}

impl Registrar {
    /// For `pairs` queue pairs on an interface.
    pub fn new(access: XdpAccess, pairs: usize, pin: XdpPin) -> Self {
        Self { access, pairs, pin, state: Mutex::default(), look: AtomicBool::new(false) }
    }

    /// The registration of this memory; where there is none yet, one for zero-copy mode or not.
    ///
    /// # Errors
    /// The interface is gone, and those of [`VmUmem::new`].
    pub fn register(&self, memory: &Arc<GuestMemory>, zero_copy: bool) -> Result<Arc<VmUmem>, XdpError> {
        let mut state = lock(&self.state);
        let known = state.umem.upgrade().filter(|u| u.is_of(memory) && u.is_sound());
        if let Some(umem) = known.filter(|u| !(u.geometry.zero_copy && state.distrust.is_some())) {
            return Ok(umem);
        }
        let what = || format!("interface {}", self.access.interface);
        let mtu = self.access.mtu().map_err(|e| XdpError::system(what(), "SIOCGIFMTU", e))?;
        let of: Vec<u64> = memory.regions().iter().map(Region::id).collect();
        if state.of != of {
            (state.of, state.discards) = (of, 0);
        }
        let geometry = Geometry::new(mtu, zero_copy);
        let pin = if state.discards < DISCARDS { self.pin } else { XdpPin::Off };
        let umem = Arc::new(VmUmem::new(memory, geometry, self.pairs, pin, &self.access)?);
        state.umem = Arc::downgrade(&umem);
        Ok(umem)
    }

    /// Why no device is to reach guests' memory itself, as it was found out while one did.
    pub fn distrust(&self) -> Option<String> {
        lock(&self.state).distrust.clone()
    }

    /// No device is to reach guests' memory itself from now on. The control thread has to
    /// [attend](Self::attend).
    pub fn set_distrust(&self, why: &str) {
        let mut state = lock(&self.state);
        if state.distrust.is_none() {
            state.distrust = Some(why.to_owned());
            let why = format!("interface {}: no zero copy from now on: {why}", self.access.interface);
            state.renew = Some(Renewal { why, is_error: true });
        }
    }

    /// Whether frames may be longer by this MTU of the interface than what the memory was
    /// registered for. Then the control thread has to [attend](Self::attend). A smaller MTU needs
    /// no other registration.
    pub fn is_outgrown(&self, umem: &VmUmem, mtu: usize) -> bool {
        let old = umem.geometry;
        if Geometry::new(mtu, old.zero_copy).frame_bytes <= old.frame_bytes {
            return false;
        }
        let interface = &self.access.interface;
        let why = format!("interface {interface} has MTU {mtu} now: memory is registered anew for it");
        lock(&self.state).renew.get_or_insert(Renewal { why, is_error: false });
        true
    }

    /// Frames have passed: pages may have been discarded, and that needs a check. The control
    /// thread has to [attend](Self::attend).
    pub fn ask_look(&self) {
        self.look.store(true, Ordering::Release);
    }

    /// Looks after the registration, on a thread that no frame waits for. Returns why all queue
    /// pairs have to let go of the memory and go on with it, if they do.
    pub fn attend(&self) -> Option<Renewal> {
        let mut state = lock(&self.state);
        if let Some(why) = state.renew.take() {
            return Some(why);
        }
        if !self.look.swap(false, Ordering::AcqRel) {
            return None;
        }
        let umem = state.umem.upgrade().filter(|u| u.is_sound())?;
        let bytes = umem.discarded()?;
        umem.spoil();
        state.discards += 1;
        let next = if state.discards < DISCARDS {
            "it is registered anew"
        } else {
            "it is not registered any more, and all frames are copied ('bounce_not_pinned')"
        };
        let why = format!(
            "interface {}: {} KiB of the guest's memory were discarded while they were registered, so that frames there may have \
             been lost; {next}; {REMEDY}",
            self.access.interface,
            bytes >> 10
        );
        Some(Renewal { why, is_error: true })
    }
}
