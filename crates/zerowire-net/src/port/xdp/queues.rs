//! The queues of an interface that a port has, and who may open and bind sockets for them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{Timespec, poll};
use rustix::net::{AddressFamily, sockopt};
use zerowire_sys::lock;
use zerowire_sys::netdevice;
use zerowire_sys::xdp::program::{Rule, Steering};
use zerowire_sys::xdp::{Interface, Mode, OwnSockets, SocketMaker, SocketOptions, XdpError};
use zerowire_vhost::memory::{PinBudget, PinClaim};

use super::geometry::MAX_MTU;
use super::handed::{XdpAnswer, XdpFacts, XdpRefusal, XdpReply, XdpVerb};
use super::{Promiscuous, XdpMode, XdpPin, XdpSpec, driver_has_zero_copy, steering, trust};
use crate::port::packet::PacketError;
use crate::port::spec::Spec;
use crate::port::{LinkWatch, PortError, PortSpec, WatchedLinks, send_through};
use crate::vm::may_pin_all;

/// Claims on what may be pinned at a time. One is usual, and two while memory is registered anew.
const MOST_CLAIMS: usize = 8;

/// More is never pinned at a time, bytes, so that sums of claims don't overflow.
const MOST_BYTES: u64 = 1 << 48;

/// The longest frame that is announced, bytes: a RARP request has 60.
const MOST_ANNOUNCED_BYTES: usize = 128;

/// How long frames get to come in where the kernel does not tell when they have.
const ON_THEIR_WAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Queues of an interface. The sockets that are opened here belong to who asks for them.
#[derive(Debug)]
pub struct XdpQueues {
    /// What was asked for.
    pub(super) spec: XdpSpec,
    /// Whether the driver of the interface has a zero-copy mode.
    pub(super) has_zero_copy: bool,
    /// To ask by what the interface is called, and the like. It gets no message.
    pub(super) control: OwnedFd,
    /// The program on the interface that has the name; another one when that is deleted and comes
    /// back.
    attached: Mutex<Arc<Steering>>,
    pairs: Box<[Mutex<OnInterface>]>,
    /// Number of the interface that was found last; 0 before.
    found: AtomicU32,
    pinned: Mutex<Vec<PinClaim<'static>>>,
}

/// What was done to an interface for a queue pair.
#[derive(Debug, Default)]
struct OnInterface {
    /// Its number; 0 before it was found.
    index: u32,
    steering: Option<Arc<Steering>>,
    promiscuous: Option<Promiscuous>,
    /// It could not be made promiscuous, and the log says so.
    is_deaf: bool,
}

impl XdpQueues {
    /// Attaches the program that steers frames; memory and sockets come with the guest.
    ///
    /// # Errors
    /// [`PortError`]: the interface or the queue does not exist, this process may not have it, or
    /// parts of `spec` don't go together.
    pub fn open(spec: &XdpSpec) -> Result<Self, PortError> {
        let other =
            |problem: String| PortError::Other { port: PortSpec::Xdp(spec.clone()).to_string(), problem };
        spec.check().map_err(other)?;
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
        let has_zero_copy = driver_has_zero_copy(&interface);
        if spec.mode == XdpMode::ZeroCopy && !has_zero_copy {
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
        let attached = Mutex::new(steering::shared(&interface)?);
        let control =
            LinkWatch::new(WatchedLinks::Nothing).map_err(|e| other(format!("no socket to ask by: {e}")))?;
        let pairs = (0..spec.queues).map(|_| Mutex::default()).collect();
        let (found, pinned) = (AtomicU32::new(0), Mutex::default());
        Ok(Self {
            spec: spec.clone(),
            has_zero_copy,
            control: control.socket,
            attached,
            pairs,
            found,
            pinned,
        })
    }

    /// What a process that serves the queues for this one may pin, bytes; None where it must have
    /// the limit of its user.
    pub fn pin_bytes(&self) -> Option<u64> {
        may_pin_all().then(|| PinBudget::of_process().bound())
    }

    /// The name that the interface has now.
    pub(super) fn name(&self) -> String {
        // While it is bound, which may take some ms, as it was found last.
        let index = match self.pairs.first().map(Mutex::try_lock) {
            Some(Ok(pair)) => pair.index,
            _ => self.found.load(Ordering::Relaxed),
        };
        let name = netdevice::name(&self.control, index);
        name.unwrap_or_else(|_| self.spec.interface.clone())
    }

    /// Lets go of what was done for queue pairs and their memory: who served them is gone.
    pub fn release(&self) {
        for (pair, on) in self.pairs.iter().enumerate() {
            let on = std::mem::take(&mut *lock(on));
            if let Some(steering) = on.steering {
                // With its socket it has gone by itself.
                let _ = steering.stop(self.queue(pair));
            }
        }
        self.found.store(0, Ordering::Relaxed);
        lock(&self.pinned).clear();
    }

    /// A socket that can't be bound to another interface, whoever gets it (Linux 6.6).
    fn open_socket(&self) -> Result<OwnedFd, XdpRefusal> {
        let socket = OwnSockets.open()?;
        let index = self.found.load(Ordering::Relaxed);
        if index == 0 {
            return Err(XdpRefusal::NoInterface);
        }
        zerowire_sys::socket::bind_to_interface(&socket, index).map_err(|_| XdpRefusal::NoInterface)?;
        Ok(socket)
    }

    fn queue(&self, pair: usize) -> u32 {
        self.spec.queue + pair as u32
    }

    /// Carries out what who moves the frames asks.
    ///
    /// # Errors
    /// Why it did not.
    pub(super) fn ask(&self, verb: XdpVerb, fds: &[BorrowedFd<'_>]) -> XdpReply {
        let done = |()| (XdpAnswer::Done, Vec::new());
        let number = |number| (XdpAnswer::Number(number), Vec::new());
        match verb {
            XdpVerb::Find(pair) => self.find(pair),
            XdpVerb::Open => Ok((XdpAnswer::Done, vec![self.open_socket()?])),
            XdpVerb::Bind(pair, zero_copy) => self.bind(pair, zero_copy, fds).map(done),
            XdpVerb::BePromiscuous(pair) => self.be_promiscuous(pair).map(done),
            XdpVerb::Steer(pair, longest_bytes) => self.steer(pair, longest_bytes, fds).map(number),
            XdpVerb::Unsteer(pair) => Ok(self.steering(pair)?.stop(self.queue(pair)).map(done)?),
            XdpVerb::AwaitSteered => {
                // Programs and their flushes run under RCU.
                if zerowire_sys::syscall::barrier().is_err() {
                    let _ = poll(&mut [], Some(&ON_THEIR_WAY));
                }
                Ok(done(()))
            }
            XdpVerb::TooLong(pair) => Ok(self.steering(pair)?.dropped(self.queue(pair)).map(number)?),
            XdpVerb::Release(pair) => {
                let mut on = self.pair(pair)?;
                let is_deaf = on.is_deaf;
                if let Some(steering) =
                    std::mem::replace(&mut *on, OnInterface { is_deaf, ..OnInterface::default() }).steering
                {
                    // With its socket it has gone by itself. A copy of that gets no frame any more.
                    let _ = steering.stop(self.queue(pair));
                }
                Ok(done(()))
            }
            XdpVerb::Pin { least_bytes, most_bytes } => self.pin(least_bytes, most_bytes).map(number),
            XdpVerb::Unpin(bytes) => {
                let mut pinned = lock(&self.pinned);
                if let Some(at) = pinned.iter().position(|claim| claim.bytes() == bytes) {
                    pinned.swap_remove(at);
                }
                Ok(done(()))
            }
            XdpVerb::Announce(frame) if frame.len() > MOST_ANNOUNCED_BYTES => {
                Err(XdpRefusal::Other(format!("a frame of {} bytes announces nothing", frame.len())))
            }
            XdpVerb::Announce(frame) => {
                send_through(&self.name(), &frame).map(done).map_err(XdpRefusal::Other)
            }
        }
    }

    fn pair(&self, pair: usize) -> Result<MutexGuard<'_, OnInterface>, XdpRefusal> {
        self.pairs.get(pair).map(lock).ok_or_else(|| {
            XdpRefusal::Other(format!("queue pair {pair} of {}, numbered from 0", self.pairs.len()))
        })
    }

    fn steering(&self, pair: usize) -> Result<Arc<Steering>, XdpRefusal> {
        self.pair(pair)?.steering.clone().ok_or(XdpRefusal::NoInterface)
    }

    fn find(&self, pair: usize) -> XdpReply {
        let mut on = self.pair(pair)?;
        let interface = Interface::open(&self.spec.interface)?;
        // The kernel says so when it binds, and the memory would have been registered for nothing
        // by then, at each try.
        if let Ok((false, _)) = interface.up_and_running() {
            return Err(XdpRefusal::Down);
        }
        let watch = LinkWatch::new(WatchedLinks::One(interface.index())).map_err(|e| {
            let what = format!("interface {}", interface.name());
            XdpError::system(what, "a socket for link events", e)
        })?;
        let steering = steering::shared(&interface)?;
        *lock(&self.attached) = steering.clone();
        let copies = self.spec.mode == XdpMode::Copy;
        let facts = XdpFacts {
            index: interface.index(),
            has_zero_copy: !copies && driver_has_zero_copy(&interface),
            distrust: if copies { None } else { trust::translated(&interface) },
            copies_at_once: trust::copies_at_once(&interface),
        };
        (on.index, on.steering) = (facts.index, Some(steering));
        self.found.store(facts.index, Ordering::Relaxed);
        Ok((XdpAnswer::Found(facts), vec![watch.socket]))
    }

    /// The socket of a verb, and another one.
    fn sockets<'a>(
        &self,
        fds: &[BorrowedFd<'a>],
    ) -> Result<(BorrowedFd<'a>, Option<BorrowedFd<'a>>), XdpRefusal> {
        let namespace = |fd: BorrowedFd<'_>| zerowire_sys::socket::netns_cookie(fd).ok();
        let is_one = |fd: &BorrowedFd<'_>| {
            sockopt::socket_domain(fd)
                .is_ok_and(|domain| domain == AddressFamily::from_raw(libc::AF_XDP as _))
                && namespace(*fd) == namespace(self.control.as_fd())
        };
        match *fds {
            [socket] if is_one(&socket) => Ok((socket, None)),
            [socket, shared] if is_one(&socket) && is_one(&shared) => Ok((socket, Some(shared))),
            _ => Err(XdpRefusal::Other("no AF_XDP socket of this network namespace came along".to_owned())),
        }
    }

    fn bind(&self, pair: usize, zero_copy: bool, fds: &[BorrowedFd<'_>]) -> Result<(), XdpRefusal> {
        let (socket, shared) = self.sockets(fds)?;
        let on = self.pair(pair)?;
        let control = self.control.try_clone().map_err(|e| XdpRefusal::Other(e.to_string()))?;
        let interface = Interface::known(&self.spec.interface, on.index, control);
        let options = SocketOptions {
            queue: self.queue(pair),
            mode: if zero_copy { Mode::ZeroCopy } else { Mode::Copy },
            // Few drivers take frames in pieces in zero-copy mode.
            multi_buffer: !zero_copy,
            ..SocketOptions::new(self.spec.interface.clone())
        };
        Ok(OwnSockets.bind(socket, shared, &interface, &options)?)
    }

    /// The port does without where that fails: not each NIC filters, and the rest of its frames
    /// come all the same.
    fn be_promiscuous(&self, pair: usize) -> Result<(), XdpRefusal> {
        let mut on = self.pair(pair)?;
        let name = &self.spec.interface;
        if !self.spec.promiscuous || on.index == 0 {
            return Err(XdpRefusal::Other(format!("interface {name} is not to be promiscuous")));
        }
        match Promiscuous::hold(on.index) {
            Ok(held) => {
                (on.promiscuous, on.is_deaf) = (Some(held), false);
                Ok(())
            }
            Err(e) => {
                // Once, and not with each socket.
                if !std::mem::replace(&mut on.is_deaf, true) {
                    tracing::warn!(
                        "interface {name} can't be made promiscuous ({e}): if it filters, frames for the guest's address don't \
                         come; grant CAP_NET_RAW and packet sockets (RestrictAddressFamilies=… AF_PACKET in a unit), or \
                         'ip link set {name} promisc on'; promisc=off says that it is not to be"
                    );
                }
                Err(XdpRefusal::Other(e.to_string()))
            }
        }
    }

    fn steer(&self, pair: usize, longest_bytes: u32, fds: &[BorrowedFd<'_>]) -> Result<u64, XdpRefusal> {
        let ((socket, _), steering) = (self.sockets(fds)?, self.steering(pair)?);
        let too_long = steering.dropped(self.queue(pair)).unwrap_or(0);
        let rule = Rule { address: self.spec.filter.address(), longest_bytes };
        steering.steer_queue(self.queue(pair), socket, &rule)?;
        Ok(too_long)
    }

    fn pin(&self, least_bytes: u64, most_bytes: u64) -> Result<u64, XdpRefusal> {
        let (budget, mut pinned) = (PinBudget::of_process(), lock(&self.pinned));
        if pinned.len() >= MOST_CLAIMS {
            return Err(XdpRefusal::Other("what was pinned before is not given back".to_owned()));
        }
        if most_bytes > MOST_BYTES {
            return Err(XdpRefusal::Other(format!("no machine has {most_bytes} bytes of memory")));
        }
        let claim = match self.spec.pin {
            XdpPin::All => budget.claim(most_bytes),
            XdpPin::Partial | XdpPin::Off => budget.claim_part(least_bytes, most_bytes),
        };
        let claim = claim.map_err(|e| XdpRefusal::Other(e.to_string()))?;
        let bytes = claim.bytes();
        pinned.push(claim);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use zerowire_testkit::net::{in_netns, interface, veth};

    use super::*;

    #[test]
    fn queues_that_no_interface_has_are_refused() {
        in_netns(|| {
            veth::veth("v0", "v1", 1, 1500);
            for (queue, queues, value) in [(0, 0, "queues=0"), (u32::MAX, 2, "queue=4294967295")] {
                let spec = XdpSpec::new("v0").queue(queue).queues(queues);
                let error = XdpQueues::open(&spec).expect_err(value).to_string();
                assert!(error.contains(value), "{error}");
            }
        });
    }

    #[test]
    fn who_gets_a_socket_is_bound_to_the_interface() {
        in_netns(|| {
            veth::veth("v0", "v1", 1, 1500);
            let PortSpec::Xdp(spec) = "xdp:v0".parse().expect("a port") else { panic!("an AF_XDP port") };
            let queues = XdpQueues::open(&spec).expect("queues");
            let open = || queues.ask(XdpVerb::Open, &[]);
            assert!(matches!(open(), Err(XdpRefusal::NoInterface)), "none was found yet");
            queues.ask(XdpVerb::Find(0), &[]).expect("found");
            let (_, fds) = open().expect("a socket");
            let tied = zerowire_sys::socket::get_int(&fds[0], libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
            assert_eq!(tied.ok(), interface("v0"));
            // No machine has as much.
            let refused = queues.ask(XdpVerb::Pin { least_bytes: 1, most_bytes: u64::MAX }, &[]);
            assert!(matches!(refused, Err(XdpRefusal::Other(_))));
        });
    }
}
