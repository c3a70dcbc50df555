//! A tap interface (Documentation/networking/tuntap.rst, drivers/net/tun.c).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use zerowire_sys::lock;
use zerowire_sys::{netdevice, tap};

use super::TapSpec;
use super::attach::{attach, index, make_or_find};
use super::error::TapError;
use super::kept::TapVerb;
use crate::features::Offloads;
use crate::link::LinkState;
use crate::port::{MAX_QUEUES, PortKeeper, kept};

const TUN_F_CSUM: u64 = 0x01;
const TUN_F_TSO4: u64 = 0x02;
const TUN_F_TSO6: u64 = 0x04;
const TUN_F_TSO_ECN: u64 = 0x08;
const TUN_F_UFO: u64 = 0x10;
const TUN_F_USO4: u64 = 0x20;
const TUN_F_USO6: u64 = 0x40;

/// The argument of TUNSETOFFLOAD.
fn bits(offloads: Offloads) -> u32 {
    let each = [TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_TSO_ECN, TUN_F_UFO, TUN_F_USO4 | TUN_F_USO6];
    offloads.bits(each) as u32
}

/// What a process can't find out that goes on with a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapFacts {
    /// True: there was none at the start, and whoever opened it makes one when none is there.
    pub makes: bool,
    /// The offloads that the kernel's taps take.
    pub offloads: Offloads,
    /// The interface's number, which stays when it is renamed.
    pub index: u32,
}

/// What a guest has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapSettings {
    /// What frames toward the guest may leave to it.
    pub offloads: Offloads,
    /// Length of the virtio-net header in front of each frame, bytes.
    pub header_len: usize,
}

impl Default for TapSettings {
    fn default() -> Self {
        Self { offloads: Offloads::default(), header_len: 12 }
    }
}

/// An open tap with all its queues.
///
/// Its descriptors stay when the interface is deleted, and become queues of the one that takes its
/// place (`again.rs`).
#[derive(Debug)]
pub struct Tap {
    pub(super) name: String,
    pub(super) control: OwnedFd,
    pub(super) queues: Vec<OwnedFd>,
    pub(super) facts: TapFacts,
    /// The number of the present interface.
    pub(super) index: AtomicU32,
    /// Which queues take part in the traffic.
    pub(super) attached: Vec<AtomicBool>,
    /// Who has opened it, if not this process.
    pub(super) keeper: Option<Arc<dyn PortKeeper>>,
    pub(super) state: Mutex<TapState>,
    /// How many interfaces took the place of one that was deleted.
    pub(super) successors: AtomicU64,
}

/// What changes while a tap is open.
#[derive(Debug, Default)]
pub(super) struct TapState {
    pub settings: TapSettings,
    /// The MTU that the interface gets if it is made here, bytes.
    pub mtu: Option<usize>,
    /// The present interface was made here, so that its settings are this process's to choose.
    pub made: bool,
    /// True: the interface was deleted, and not all queues are another one's yet.
    pub gone: bool,
    /// Why the interface that has the name can't take its place.
    pub problem: Option<String>,
}

impl Tap {
    /// Opens the tap in the caller's network namespace; creates it if it is not there. One that is
    /// created here is set up, and goes away with the last queue; one that exists keeps its state.
    pub fn open(spec: &TapSpec) -> Result<Self, TapError> {
        let name = spec.name.clone();
        if !netdevice::is_name(&name) {
            return Err(TapError::Name(name));
        }
        if !(1..=MAX_QUEUES).contains(&spec.queues) {
            return Err(TapError::Queues(spec.queues));
        }
        let multi = spec.queues > 1;
        let (first, created) = make_or_find(&name, multi)?;
        let mut queues = vec![first];
        for _ in 1..spec.queues {
            queues.push(attach(&name, multi, 0)?);
        }
        let index = index(&name).unwrap_or(0);
        let facts = TapFacts { makes: created, offloads: Offloads::default(), index };
        let mut tap = Self::of(name, queues, facts)?;
        tap.facts.offloads = tap.probe_offloads();
        tap.begin()?;
        if created {
            tap.state().made = true;
            tap.set_up()?;
        }
        Ok(tap)
    }

    /// Goes on with a tap that another process has opened. The interface may be gone.
    ///
    /// # Errors
    /// A queue is missing, or a descriptor belongs to something other than a tap.
    pub fn take_over(
        name: String,
        queues: Vec<OwnedFd>,
        facts: TapFacts,
        keeper: Arc<dyn PortKeeper>,
    ) -> Result<Self, TapError> {
        let mut tap = Self::of(name, queues, facts)?;
        tap.keeper = Some(keeper);
        // A process before this one may have left each of them in use, or not, and waiting or not.
        for queue in &tap.queues {
            let _ = tap::attach_queue(queue, true);
            let set = rustix::io::ioctl_fionbio(queue, true);
            tap.check(set.map_err(io::Error::from), "FIONBIO")?;
        }
        tap.begin()?;
        Ok(tap)
    }

    /// All queues take part.
    fn of(name: String, queues: Vec<OwnedFd>, facts: TapFacts) -> Result<Self, TapError> {
        let first = queues.first().ok_or(TapError::Queues(0))?;
        let control =
            first.try_clone().map_err(|cause| TapError::Setup { name: name.clone(), what: "dup", cause })?;
        let attached = queues.iter().map(|_| AtomicBool::new(true)).collect();
        let (keeper, state, successors) = (None, Mutex::default(), AtomicU64::new(0));
        let index = AtomicU32::new(facts.index);
        Ok(Self { name, control, queues, facts, index, attached, keeper, state, successors })
    }

    /// As a guest that has chosen nothing yet wants it, with one queue that takes part.
    fn begin(&self) -> Result<(), TapError> {
        self.choose(TapSettings::default())?;
        (1..self.pairs()).try_for_each(|i| self.attach_queue(i, false))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, TapState> {
        lock(&self.state)
    }

    /// Queue pairs.
    pub fn pairs(&self) -> usize {
        self.queues.len()
    }

    /// A new descriptor of queue `i`.
    pub fn queue(&self, i: usize) -> io::Result<OwnedFd> {
        self.queues[i].try_clone()
    }

    /// Lets queue `i` take part in the interface's traffic, or not. Does nothing where it already
    /// is so, or where there is one queue only.
    pub fn attach_queue(&self, i: usize, on: bool) -> Result<(), TapError> {
        let Some(queue) = self.queues.get(i).filter(|_| self.queues.len() > 1) else { return Ok(()) };
        let Some(attached) = self.attached.get(i) else { return Ok(()) };
        if attached.swap(on, Ordering::AcqRel) == on {
            return Ok(());
        }
        self.unless_gone(self.check(tap::attach_queue(queue, on), "TUNSETQUEUE"))
    }

    /// Whether it can carry frames.
    pub(super) fn link_state(&self) -> LinkState {
        // Another one may have the name already.
        if self.is_gone() {
            return LinkState::Gone;
        }
        let state = match self.here() {
            Ok((socket, name)) => LinkState::by(socket, &name),
            Err(_) => LinkState::Unknown,
        };
        if state == LinkState::Gone { LinkState::Unknown } else { state }
    }

    /// A socket of this network namespace, and the interface's name in it. Its number is not there
    /// once it was moved to another one, where nothing of it is known.
    fn here(&self) -> io::Result<(OwnedFd, String)> {
        let socket = match &self.keeper {
            Some(keeper) => keeper.socket().try_clone_to_owned()?,
            None => netdevice::socket()?,
        };
        let name = netdevice::name(&socket, self.index.load(Ordering::Acquire))?;
        Ok((socket, name))
    }

    /// What the interface is called now. Not found, it has the name of the start.
    pub(super) fn name_now(&self) -> String {
        self.here().map_or_else(|_| self.name.clone(), |(_, name)| name)
    }

    /// The interface's MTU, bytes.
    pub fn mtu(&self) -> usize {
        self.here().and_then(|(socket, name)| netdevice::mtu(socket, &name)).unwrap_or(1500)
    }

    /// Makes sure that frames of `mtu` bytes fit: raises the MTU of a tap that was made here, now
    /// or when it is made anew. One that was there before keeps its own, and the log says so.
    pub fn raise_mtu(&self, mtu: usize) -> Result<(), TapError> {
        let now = self.mtu();
        if mtu <= now {
            return Ok(());
        }
        if let Some(keeper) = &self.keeper {
            let set = kept::ask::<()>(&**keeper, &TapVerb::SetMtu(mtu), &[]);
            return self.check(set.map(drop).map_err(io::Error::other), "setting its MTU");
        }
        let mut state = self.state();
        state.mtu = Some(mtu);
        if self.is_gone() {
            return Ok(());
        }
        let name = self.name_now();
        if self.link_state() == LinkState::Unknown {
            tracing::warn!(
                "tap '{name}' is in another network namespace: 'ip link set {name} mtu {mtu}' in that one lets frames of the VM's \
                 device pass"
            );
            return Ok(());
        }
        if state.made {
            return self.unless_gone(self.set_mtu(mtu));
        }
        tracing::warn!(
            "tap '{name}' has MTU {now}, the VM's device {mtu}: 'ip link set {name} mtu {mtu}' lets longer frames pass"
        );
        Ok(())
    }

    pub(super) fn set_mtu(&self, mtu: usize) -> Result<(), TapError> {
        let set = self.here().and_then(|(socket, name)| netdevice::set_mtu(socket, &name, mtu));
        self.check(set, "SIOCSIFMTU")
    }

    /// Largest set that the kernel accepts, found by asking for less and less.
    fn probe_offloads(&self) -> Offloads {
        let all = Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };
        let less = [all, Offloads { uso: false, ..all }, Offloads { uso: false, ufo: false, ..all }];
        less.into_iter().find(|o| self.set_offloads(*o).is_ok()).unwrap_or_default()
    }

    /// Has frames be as the guest wants them. An interface that takes the place of a deleted one
    /// gets the same.
    pub fn choose(&self, settings: TapSettings) -> Result<(), TapError> {
        self.state().settings = settings;
        self.unless_gone(self.apply(settings))
    }

    pub(super) fn apply(&self, settings: TapSettings) -> Result<(), TapError> {
        self.set_offloads(settings.offloads)?;
        self.check(tap::set_header_len(&self.control, settings.header_len), "TUNSETVNETHDRSZ")
    }

    fn set_offloads(&self, offloads: Offloads) -> Result<(), TapError> {
        self.check(tap::set_offloads(&self.control, bits(offloads)), "TUNSETOFFLOAD")
    }

    /// Sends a frame of this process's own into the interface, as if it came from the guest. Like
    /// the guest's it is dropped where the interface is gone.
    pub fn send(&self, frame: &[u8]) -> Result<(), TapError> {
        // A header of zeros: no offload.
        let mut bytes = vec![0; self.state().settings.header_len];
        bytes.extend_from_slice(frame);
        // The first queue always takes part.
        let sent = self.queues.first().map_or(Ok(0), |queue| rustix::io::write(queue, &bytes));
        self.unless_gone(self.check(sent.map(drop).map_err(io::Error::from), "sending a frame"))
    }

    /// Drops frames that wait in the queues. They were for a guest that is gone, and may carry
    /// offloads that the next one does not know.
    pub fn flush(&self) {
        let mut scratch = [0u8; 64];
        for q in &self.queues {
            // A bound, so that a busy sender can't hold this loop: no queue is longer.
            for _ in 0..65_536 {
                // A short read takes the whole frame out of the queue.
                if rustix::io::read(q, &mut scratch).is_err() {
                    break;
                }
            }
        }
    }

    pub(super) fn check<T>(&self, result: io::Result<T>, what: &'static str) -> Result<T, TapError> {
        result.map_err(|cause| TapError::Setup { name: self.name.clone(), what, cause })
    }

    pub(super) fn set_up(&self) -> Result<(), TapError> {
        let (socket, name) = self.check(self.here(), "SIOCGIFNAME")?;
        let flags = self.check(netdevice::flags(&socket, &name), "SIOCGIFFLAGS")?;
        self.check(netdevice::set_flags(&socket, &name, flags | libc::IFF_UP), "SIOCSIFFLAGS")
    }
}

#[cfg(test)]
mod tests;
