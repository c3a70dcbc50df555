//! The port of a VM on both sides: the supervisor keeps it open and carries out what the child asks
//! of it, and the child goes on with its descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use zerowire_capture::{Capture, LINKTYPE_ETHERNET};
use zerowire_net::port::packet::{self, PacketFacts, PacketSockets, PacketSpec, PacketVerb};
use zerowire_net::port::tap::{self, Tap, TapVerb};
use zerowire_net::port::xdp::{self, XdpAccess, XdpOutcome, XdpQueues};
use zerowire_net::port::{HandedPort, PortError, PortReply, PortSpec, PortSpecError};
use zerowire_net::{LinkObserver, LinkState, PortState, VmConfig};
use zerowire_sys::allowed::AllowedCall;

use super::child::SupervisorLink;
use super::message::ChildOrder;
use super::pace::AnswerPace;
use super::vm::NetVm;
use crate::sandbox::capture::KeptCapture;
use crate::sandbox::channel::{Channel, SEND_PATIENCE};
use crate::sandbox::keeper::Keeper;
use crate::sandbox::lock;

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

/// What is open for a VM's port.
#[derive(Debug)]
pub(super) enum KeptPort {
    Tap(Tap),
    /// Each child has sockets of its own.
    Packet(PacketSpec, Mutex<Box<PacketSockets>>),
    /// Each child has sockets of its own.
    Xdp(XdpQueues),
}

/// A port as a child must know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PortSetup {
    /// As the user gives it.
    pub spec: String,
    pub kind: PortKind,
    /// The state of the interface, if the guest is to see it.
    pub link: Option<LinkState>,
}

/// What a child must know of a port of this kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum PortKind {
    Tap {
        /// Whether this program has made the tap.
        made: bool,
    },
    Packet(PacketFacts),
    Xdp {
        /// Whether the interface's driver has a zero-copy mode.
        has_zero_copy: bool,
        /// What may be pinned, bytes; None where the limit of the user holds.
        pin_bytes: Option<u64>,
    },
}

/// What became of it.
pub(super) enum PortAnswer {
    /// It was carried out, or not.
    Done(PortReply),
    /// Nobody waits for an answer.
    Nothing,
    /// Another child has to go on with other descriptors.
    Replace(String),
}

/// A VM's part of a capture, if it is captured.
pub(super) fn captured(capture: Option<&Capture>, vm: &VmConfig) -> Option<KeptCapture> {
    KeptCapture::new(capture, LINKTYPE_ETHERNET, &vm.name, &vm.port.to_string())
}

impl KeptPort {
    /// Opens a port.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        match spec {
            PortSpec::Tap(tap) => Ok(Self::Tap(Tap::open(tap)?)),
            PortSpec::Packet(packet) => {
                let sockets = Box::new(PacketSockets::open(packet)?);
                Ok(Self::Packet(packet.clone(), Mutex::new(sockets)))
            }
            PortSpec::Xdp(xdp) => Ok(Self::Xdp(XdpQueues::open(xdp)?)),
        }
    }

    /// What the next child gets.
    pub(super) fn hand(&self) -> io::Result<(PortKind, Vec<OwnedFd>)> {
        match self {
            Self::Tap(tap) => {
                let queues: io::Result<_> = (0..tap.pairs()).map(|i| tap.queue(i)).collect();
                Ok((PortKind::Tap { made: tap.is_made_here() }, queues?))
            }
            Self::Packet(spec, sockets) => {
                let (new, _) = PacketSockets::open_or_wait(spec).map_err(io::Error::other)?;
                let (facts, fds) = new.parts();
                let fds: io::Result<_> = fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
                **lock(sockets) = new;
                Ok((PortKind::Packet(facts), fds?))
            }
            Self::Xdp(queues) => {
                let kind =
                    PortKind::Xdp { has_zero_copy: queues.has_zero_copy(), pin_bytes: queues.pin_bytes() };
                Ok((kind, vec![queues.control().try_clone_to_owned()?]))
            }
        }
    }

    /// A child has ended.
    pub(super) fn part(&self) {
        if let Self::Xdp(queues) = self {
            queues.release();
        }
    }

    /// How fast a child is answered.
    pub(super) fn pace(&self) -> AnswerPace {
        match self {
            Self::Tap(_) | Self::Packet(..) => AnswerPace::steady(),
            Self::Xdp(queues) => AnswerPace::in_bursts(queues.spec().queues),
        }
    }

    /// Carries out what a child asks, and tells it.
    ///
    /// # Errors
    /// It is gone, or why another child has to take its place.
    pub(super) fn answer(
        &self,
        verb: &str,
        fds: Vec<OwnedFd>,
        channel: &Channel,
    ) -> Result<(), Option<String>> {
        let answer = self.carry_out(verb, &fds);
        // What came along is the child's alone again.
        drop(fds);
        let sent = match answer {
            PortAnswer::Done(done) => {
                let (done, fds) = match done {
                    Ok((answer, fds)) => (Ok(answer), fds),
                    Err(refused) => (Err(refused), Vec::new()),
                };
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let order = ChildOrder::PortDone(done);
                let sent = channel.send_when_few(&order, &fds, Instant::now() + SEND_PATIENCE);
                sent.or_else(|e| channel.send(&ChildOrder::PortDone(Err(e.to_string())), &[]))
            }
            PortAnswer::Nothing => Ok(()),
            PortAnswer::Replace(why) => return Err(Some(why)),
        };
        sent.map_err(|_| None)
    }

    fn carry_out(&self, verb: &str, fds: &[OwnedFd]) -> PortAnswer {
        let done =
            |done: Result<(), String>| PortAnswer::Done(done.map(|()| ("null".to_owned(), Vec::new())));
        let unknown = |_| done(Err("the port has no such verb".to_owned()));
        match self {
            Self::Tap(tap) => match serde_json::from_str(verb) {
                Ok(TapVerb::SetMtu(mtu)) => done(set_mtu(tap, mtu)),
                Err(e) => unknown(e),
            },
            Self::Packet(_, sockets) => {
                let verb = match serde_json::from_str(verb) {
                    Ok(verb) => verb,
                    Err(e) => return unknown(e),
                };
                let sockets = lock(sockets);
                let carried = sockets.carry_out(verb);
                match verb {
                    PacketVerb::End => PortAnswer::Nothing,
                    _ if carried.is_err() && sockets.are_outdated() => {
                        PortAnswer::Replace(format!("interface {} is another one now", sockets.interface()))
                    }
                    _ => done(carried),
                }
            }
            Self::Xdp(queues) => {
                let verb = match serde_json::from_str(verb) {
                    Ok(verb) => verb,
                    Err(e) => return unknown(e),
                };
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let (outcome, fds) = match queues.carry_out(verb, &fds) {
                    Ok((answer, fds)) => (XdpOutcome::Ok(answer), fds),
                    Err(refusal) => (Err(refusal), Vec::new()),
                };
                let answer = serde_json::to_string(&outcome).map_err(|e| e.to_string());
                PortAnswer::Done(answer.map(|answer| (answer, fds)))
            }
        }
    }

    /// What the statistics have of it. Nobody waits for what a child has asked meanwhile.
    pub(super) fn state(&self) -> PortState {
        let interface = self.interface();
        let interface_state = LinkState::by_name(&interface);
        PortState {
            interface,
            interface_state,
            link: None,
            kernel_copies: self.kernel_copies(),
            capture: None,
        }
    }

    /// The name that the interface has now, or the one that was given while the sockets are in use.
    fn interface(&self) -> String {
        match self {
            Self::Tap(tap) => tap.name().to_owned(),
            Self::Packet(spec, sockets) => match sockets.try_lock() {
                Ok(sockets) => sockets.interface(),
                Err(_) => spec.interface.clone(),
            },
            Self::Xdp(queues) => queues.interface(),
        }
    }

    /// Copies on the way of frames that no process makes.
    fn kernel_copies(&self) -> &'static str {
        match self {
            Self::Tap(_) => tap::KERNEL_COPIES,
            Self::Packet(..) => packet::KERNEL_COPIES,
            Self::Xdp(_) => xdp::KERNEL_COPIES,
        }
    }
}

/// What a guest may ask of its own tap (virtio 1.3 §5.1.4).
fn set_mtu(tap: &Tap, mtu: usize) -> Result<(), String> {
    if !(68..=65535).contains(&mtu) {
        return Err(format!("MTU {mtu} is not within 68 to 65535"));
    }
    tap.raise_mtu(mtu).map_err(|e| e.to_string())
}

impl PortSetup {
    /// The port that a child serves.
    pub(super) fn spec(&self) -> Result<PortSpec, String> {
        self.spec.parse().map_err(|e: PortSpecError| e.to_string())
    }

    /// The system calls that it takes.
    pub(super) fn calls(&self) -> &'static [&'static [AllowedCall]] {
        match self.kind {
            PortKind::Tap { .. } => tap::SYSTEM_CALLS,
            PortKind::Packet(_) => packet::SYSTEM_CALLS,
            PortKind::Xdp { .. } => xdp::SYSTEM_CALLS,
        }
    }

    /// Prepares a child for it that has its rights yet.
    pub(super) fn prepare(&self) {
        if let PortKind::Xdp { pin_bytes, .. } = self.kind {
            xdp::prepare(pin_bytes);
        }
    }

    /// Goes on with the descriptors that come with it.
    pub(super) fn take_over(
        &self,
        fds: &mut impl Iterator<Item = OwnedFd>,
        keeper: &Arc<SupervisorLink>,
    ) -> Result<HandedPort, String> {
        let missing = || "a descriptor is missing".to_owned();
        match (self.spec()?, &self.kind) {
            (PortSpec::Tap(spec), PortKind::Tap { made }) => {
                let queues: Vec<_> = fds.take(spec.queues).collect();
                if queues.len() != spec.queues {
                    return Err(missing());
                }
                let tap = Tap::take_over(spec.name, queues, *made, keeper.clone());
                tap.map(HandedPort::Tap).map_err(|e| e.to_string())
            }
            (PortSpec::Packet(spec), PortKind::Packet(facts)) => {
                let sockets: Vec<_> = fds.take(packet::SOCKETS).collect();
                let sockets = sockets.try_into().map_err(|_| missing())?;
                let (facts, keeper) = (facts.clone(), keeper.clone());
                let sockets = PacketSockets::take_over(&spec.interface, facts, sockets, keeper);
                sockets.map(|sockets| HandedPort::Packet(spec, Arc::new(sockets))).map_err(|e| {
                    format!("the numbers of its sockets are too high: 'ulimit -n 1024' allows them: {e}")
                })
            }
            (PortSpec::Xdp(spec), PortKind::Xdp { has_zero_copy, .. }) => {
                let access = XdpAccess::take_over(&spec, fds.next().ok_or_else(missing)?, keeper.clone());
                Ok(HandedPort::Xdp(spec, access, *has_zero_copy))
            }
            _ => Err(format!("port {} is of another kind", self.spec)),
        }
    }
}

/// Has a thread tell the child of a VM what the state of its interface is, as long as the VM is
/// there.
pub(super) fn follow(keeper: &Arc<Keeper<NetVm>>, name: &str, mut observer: LinkObserver) -> io::Result<()> {
    let (gone, there) = io::pipe()?;
    *lock(&keeper.charge.follower) = Some(there.into());
    let keeper = Arc::downgrade(keeper);
    let thread = std::thread::Builder::new().name(format!("{name}-link")).stack_size(STACK_BYTES);
    thread.spawn(move || {
        loop {
            // The pipe's other end goes with the VM.
            let mut fds = [PollFd::new(&observer, PollFlags::IN), PollFd::new(&gone, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            let state = observer.look();
            let Some(keeper) = keeper.upgrade() else { return };
            keeper.charge.tell_link(state);
        }
    })?;
    Ok(())
}
