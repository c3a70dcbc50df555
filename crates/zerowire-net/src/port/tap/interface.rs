//! A tap interface (Documentation/networking/tuntap.rst, drivers/net/tun.c).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;
use zerowire_sys::netdevice;
use zerowire_sys::tap::{self, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN_EXCL, IFF_VNET_HDR};

use super::TapSpec;
use super::kept::TapVerb;
use crate::features::Offloads;
use crate::port::packet::PacketError;
use crate::port::{MAX_QUEUES, PortKeeper, kept};

/// How long to wait for a busy tap, and how long between two tries.
///
/// A process gives its taps back before its parent hears of its end: nothing is busy for a starter
/// that waits for that. A process that starts when the old one is killed waits longer. It waits a
/// few ms for a tap that stays, and some 20 ms for each tap that goes with the old process. 8 taps
/// took 0.15 s, 64 taps 1.1 to 2.3 s, 256 taps 9.6 s (Linux 6.18).
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

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

/// Why a tap can't be used. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TapError {
    /// The name can't be an interface name.
    #[error("tap name '{0}' must have 1 to 15 bytes, without '/' and spaces")]
    Name(String),
    /// Too many queues.
    #[error("{0} queues: a tap has 1 to {MAX_QUEUES}")]
    Queues(usize),
    /// No /dev/net/tun.
    #[error("/dev/net/tun can't be opened: {0}; {hint}", hint = device_remedy(.0))]
    Device(io::Error),
    /// TUNSETIFF failed.
    #[error("tap '{name}' can't be opened: {cause}; {hint}")]
    Attach {
        /// The interface.
        name: String,
        /// What the kernel said.
        cause: io::Error,
        /// What to do.
        hint: String,
    },
    /// Another ioctl failed.
    #[error("tap '{name}': {what} failed: {cause}")]
    Setup {
        /// The interface.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl TapError {
    /// Another descriptor has the interface.
    fn is_busy(&self) -> bool {
        matches!(self, Self::Attach { cause, .. } if cause.raw_os_error() == Some(libc::EBUSY))
    }
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

/// The tap's first queue, and whether this call has made the interface.
///
/// A back end that starts while another one ends finds the other's tap busy, and then none. So this
/// does not check first whether there is one: the call that makes one says so (IFF_TUN_EXCL). The
/// call that takes an existing tap makes another one where that has gone meanwhile: its number
/// tells.
fn make_or_find(name: &str, multi: bool) -> Result<(OwnedFd, bool), TapError> {
    let start = Instant::now();
    loop {
        let busy = match attach(name, multi, IFF_TUN_EXCL) {
            Err(e) if e.is_busy() => e,
            made => return Ok((made?, true)),
        };
        if let Some(there) = index(name) {
            match attach(name, multi, 0) {
                Err(e) if e.is_busy() && start.elapsed() >= BUSY_PATIENCE => return Err(e),
                Err(e) if e.is_busy() => {}
                Err(e) => return Err(e),
                Ok(queue) if index(name) == Some(there) => return Ok((queue, false)),
                // It was made by this call, and goes with its descriptor.
                Ok(_) => {}
            }
        }
        if start.elapsed() >= BUSY_PATIENCE {
            return Err(busy);
        }
        std::thread::park_timeout(BUSY_PAUSE);
    }
}

/// The number of the interface that has this name now.
fn index(name: &str) -> Option<u32> {
    netdevice::index(netdevice::socket().ok()?, name).ok()
}

fn attach(name: &str, multi: bool, exclusive: libc::c_short) -> Result<OwnedFd, TapError> {
    let fd = tap::open().map_err(|e| TapError::Device(e.into()))?;
    let mut flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | exclusive;
    if multi {
        flags |= IFF_MULTI_QUEUE;
    }
    match tap::set_interface(&fd, name, flags) {
        Ok(()) => Ok(fd),
        Err(cause) => {
            let hint = remedy(name, multi, &cause);
            Err(TapError::Attach { name: name.to_owned(), cause, hint })
        }
    }
}

/// What to do about a /dev/net/tun that can't be opened.
fn device_remedy(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EACCES) => {
            "run as root, or let every user open it ('chmod 666 /dev/net/tun', as most systems have it)"
        }
        // The device controller of a control group.
        Some(libc::EPERM) => "allow the container the device (character device 10:200)",
        _ => {
            "load the module tun ('modprobe tun'), or give the container the device ('--device /dev/net/tun')"
        }
    }
}

/// What to do about a TUNSETIFF that failed.
fn remedy(name: &str, multi: bool, e: &io::Error) -> String {
    let flag = if multi { " multi_queue" } else { "" };
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "run with CAP_NET_ADMIN, or make the tap first with 'ip tuntap add {name} mode tap vnet_hdr{flag} user USER'"
        ),
        Some(libc::EBUSY) => "another program holds it: stop that one or take another name".to_owned(),
        // The interface exists, and it is another one than the user wants (drivers/net/tun.c,
        // `tun_set_iff`).
        Some(libc::EINVAL) => match kind(name).as_deref() {
            Some("tap") if multi => {
                format!(
                    "it was made without multi_queue: 'ip tuntap add {name} mode tap multi_queue' makes one for queues=N, or leave queues=N out"
                )
            }
            Some("tap") => {
                "it was made with multi_queue: give queues=2 or more, or make it without".to_owned()
            }
            Some(_) => {
                "it is a tun, whose packets have no Ethernet header: give the name of a tap, or of none yet"
                    .to_owned()
            }
            None => {
                let header =
                    netdevice::socket().and_then(|socket| netdevice::hardware_kind(socket, name)).ok();
                no_tap(name, header)
            }
        },
        _ => "see 'zerowire doctor'".to_owned(),
    }
}

/// What to do where another interface has the name, whose frames have headers of this kind
/// (`ARPHRD_…`, include/uapi/linux/if_arp.h).
fn no_tap(name: &str, header: Option<u16>) -> String {
    let instead = "give the name of a tap, or of none yet, which makes one";
    match header.and_then(|kind| PacketError::of_kind(name, kind)) {
        Some(PacketError::Loopback { .. }) => format!(
            "it is a loopback interface, which can't be a port of any kind: {instead}; or make a pair of veth ('ip link add zw0 \
             type veth peer name zw1') and give one end as packet:zw0 or xdp:zw0"
        ),
        Some(_) => format!(
            "an interface of that name is there and no tap, and its frames have no Ethernet header, so that it can't be a port of \
             any kind: {instead}"
        ),
        None => format!(
            "an interface of that name is there and no tap: {instead}; for other interfaces there are --port packet:{name} and \
             xdp:{name}"
        ),
    }
}

/// `tap` or `tun`; None for all others (drivers/net/tun.c, `tun_get_drvinfo`).
fn kind(name: &str) -> Option<String> {
    let driver = netdevice::driver(netdevice::socket().ok()?, name).ok()?;
    (driver.name == "tun").then_some(driver.bus_address)
}

#[cfg(test)]
mod tests;
