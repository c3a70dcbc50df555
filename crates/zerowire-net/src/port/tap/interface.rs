//! A tap interface (Documentation/networking/tuntap.rst, drivers/net/tun.c).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zerowire_sys::{netdevice, tap};

use super::TapSpec;
use super::attach::{attach, make_or_find};
use super::error::TapError;
use super::kept::TapVerb;
use crate::features::Offloads;
use crate::port::{MAX_QUEUES, PortKeeper, kept};

const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_TSO_ECN: u32 = 0x08;
const TUN_F_UFO: u32 = 0x10;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;

/// The argument of TUNSETOFFLOAD.
fn bits(offloads: Offloads) -> u32 {
    let mut bits = 0;
    for (on, bit) in [
        (offloads.csum, TUN_F_CSUM),
        (offloads.tso4, TUN_F_TSO4),
        (offloads.tso6, TUN_F_TSO6),
        (offloads.ecn, TUN_F_TSO_ECN),
        (offloads.ufo, TUN_F_UFO),
        (offloads.uso, TUN_F_USO4 | TUN_F_USO6),
    ] {
        if on {
            bits |= bit;
        }
    }
    bits
}

/// An open tap with all its queues.
#[derive(Debug)]
pub struct Tap {
    name: String,
    control: OwnedFd,
    queues: Vec<OwnedFd>,
    offloads: Offloads,
    /// Which queues take part in the traffic.
    attached: Vec<AtomicBool>,
    /// It was made here, so that its settings are this process's to choose.
    created: bool,
    /// Who has opened it, if not this process.
    keeper: Option<Arc<dyn PortKeeper>>,
}

impl Tap {
    /// Opens the tap in the caller's network namespace; creates it if it is not there. One that is
    /// created here is set up, and goes away with the last queue; one that exists keeps its state.
    pub fn open(spec: &TapSpec) -> Result<Self, TapError> {
        let name = spec.name.clone();
        let valid = (1..=15).contains(&name.len()) && !name.contains(['/', ' ', '\0', ':']);
        if !valid {
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
        let mut tap = Self::of(name, queues, created)?;
        tap.begin()?;
        if created {
            tap.set_up()?;
        }
        Ok(tap)
    }

    /// Goes on with a tap that another process has opened. `made` says that the other process made
    /// the interface, so that its MTU may be raised.
    ///
    /// # Errors
    /// There is no queue, or a descriptor belongs to something other than a tap.
    pub fn take_over(
        name: String,
        queues: Vec<OwnedFd>,
        made: bool,
        keeper: Arc<dyn PortKeeper>,
    ) -> Result<Self, TapError> {
        let mut tap = Self::of(name, queues, made)?;
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
    fn of(name: String, queues: Vec<OwnedFd>, created: bool) -> Result<Self, TapError> {
        let first = queues.first().ok_or(TapError::Queues(0))?;
        let control =
            first.try_clone().map_err(|cause| TapError::Setup { name: name.clone(), what: "dup", cause })?;
        let attached = queues.iter().map(|_| AtomicBool::new(true)).collect();
        let offloads = Offloads::default();
        Ok(Self { attached, name, control, queues, offloads, created, keeper: None })
    }

    /// As a guest that has chosen nothing yet wants it, with one queue that takes part.
    fn begin(&mut self) -> Result<(), TapError> {
        self.offloads = self.probe_offloads();
        self.set_offloads(Offloads::default())?;
        self.set_header_len(12)?;
        (1..self.pairs()).try_for_each(|i| self.attach_queue(i, false))
    }

    /// Whether this call of [`Self::open`] has made the interface.
    pub fn is_made_here(&self) -> bool {
        self.created
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
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
        self.check(tap::attach_queue(queue, on), "TUNSETQUEUE")
    }

    /// The offloads that this kernel's tap takes.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Its `IFF_…` flags, if another process has opened it.
    pub(super) fn flags_by_keeper(&self) -> Option<io::Result<libc::c_int>> {
        self.keeper.as_ref().map(|keeper| netdevice::flags(keeper.socket(), &self.name))
    }

    /// The interface's MTU, bytes.
    pub fn mtu(&self) -> usize {
        if self.keeper.is_some() {
            return self.mtu_by_ioctl().unwrap_or(1500);
        }
        std::fs::read_to_string(format!("/sys/class/net/{}/mtu", self.name))
            .ok()
            .and_then(|s| s.trim().parse().ok())
            .or_else(|| self.mtu_by_ioctl())
            .unwrap_or(1500)
    }

    /// Makes sure that frames of `mtu` bytes fit: raises the MTU of a tap that was made here. One
    /// that was there before keeps its own, and the log says so.
    pub fn raise_mtu(&self, mtu: usize) -> Result<(), TapError> {
        let now = self.mtu();
        if mtu <= now {
            return Ok(());
        }
        if !self.created {
            tracing::warn!(
                "tap '{}' has MTU {now}, the VM's device {mtu}: 'ip link set {} mtu {mtu}' lets longer frames pass",
                self.name,
                self.name
            );
            return Ok(());
        }
        if let Some(keeper) = &self.keeper {
            let set = kept::ask(&**keeper, &TapVerb::SetMtu(mtu), &[]).map(|((), _)| ());
            return self.check(set.map_err(io::Error::other), "setting its MTU");
        }
        let socket = self.socket()?;
        self.check(netdevice::set_mtu(&socket, &self.name, mtu), "SIOCSIFMTU")
    }

    /// Largest set that the kernel accepts, found by asking for less and less.
    fn probe_offloads(&self) -> Offloads {
        let all = Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };
        let less = [all, Offloads { uso: false, ..all }, Offloads { uso: false, ufo: false, ..all }];
        less.into_iter().find(|o| self.set_offloads(*o).is_ok()).unwrap_or_default()
    }

    /// Tells the kernel which offloads frames out of this tap may use.
    pub fn set_offloads(&self, offloads: Offloads) -> Result<(), TapError> {
        self.check(tap::set_offloads(&self.control, bits(offloads)), "TUNSETOFFLOAD")
    }

    /// Sets the length of the virtio-net header in front of each frame.
    pub fn set_header_len(&self, len: usize) -> Result<(), TapError> {
        self.check(tap::set_header_len(&self.control, len), "TUNSETVNETHDRSZ")
    }

    /// Sends a frame of this process's own into the interface, as if it came from the guest.
    pub fn send(&self, frame: &[u8]) -> Result<(), TapError> {
        let header_len = self.check(tap::header_len(&self.control), "TUNGETVNETHDRSZ")?;
        // A header of zeros: no offload.
        let mut bytes = vec![0; header_len];
        bytes.extend_from_slice(frame);
        // The first queue always takes part.
        match self.queues.first().map(|q| rustix::io::write(q, &bytes)) {
            Some(Err(e)) => {
                Err(TapError::Setup { name: self.name.clone(), what: "sending a frame", cause: e.into() })
            }
            _ => Ok(()),
        }
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

    fn check<T>(&self, result: io::Result<T>, what: &'static str) -> Result<T, TapError> {
        result.map_err(|cause| TapError::Setup { name: self.name.clone(), what, cause })
    }

    fn set_up(&self) -> Result<(), TapError> {
        let socket = self.socket()?;
        let flags = netdevice::flags(&socket, &self.name).map_err(|cause| TapError::Setup {
            name: self.name.clone(),
            what: "SIOCGIFFLAGS",
            cause,
        })?;
        self.check(netdevice::set_flags(&socket, &self.name, flags | libc::IFF_UP), "SIOCSIFFLAGS")
    }

    fn mtu_by_ioctl(&self) -> Option<usize> {
        netdevice::mtu(self.socket().ok()?, &self.name).ok()
    }

    fn socket(&self) -> Result<OwnedFd, TapError> {
        let socket = match &self.keeper {
            Some(keeper) => keeper.socket().try_clone_to_owned(),
            None => netdevice::socket(),
        };
        socket.map_err(|cause| TapError::Setup { name: self.name.clone(), what: "socket", cause })
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
