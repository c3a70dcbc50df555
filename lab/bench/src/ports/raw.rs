//! A plain packet socket that copies: one system call a frame, send(2) or recv(2), as programs
//! without rings do it (packet(7)).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use zerowire_sys::packet;
use zerowire_sys::socket::set_int;

use super::bursts::{self, Arrivals};
use super::measured::{KernelTime, measured};
use super::veth::Veth;
use super::wire::Wire;
use crate::area::{Area, Slots};
use crate::case::{Case, Direction};
use crate::compare::{NetBench, RAW};
use crate::cpu::{Placement, on_worker};
use crate::experiment::floored::Variant;
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::{Generator, packet_socket};
use crate::guest::STALL_LIMIT;
use crate::interleave::Turn;
use crate::tap::VNET_HEADER_LEN;
use crate::transfer::TransferSample;

/// Room for a burst of frames with what the kernel adds to each.
const RECEIVE_BUFFER: i32 = 16 << 20;

/// The socket on a veth pair of its own.
pub struct RawSocket {
    wire: Wire,
    arrivals: Arrivals,
    placement: Placement,
    ready: Option<ReadyRing>,
    kernel: KernelTime,
}

struct ReadyRing {
    case: Case,
    area: Area,
    slots: Slots,
    socket: OwnedFd,
    generator: Generator,
    next: usize,
}

impl RawSocket {
    /// Makes the pair in the namespace of the calling thread.
    pub fn new(arrivals: Arrivals, placement: &Placement) -> Result<Self> {
        let (wire, placement) = (Wire::Veth(Veth::new(placement)?), placement.clone());
        Ok(Self { wire, arrivals, placement, ready: None, kernel: KernelTime::default() })
    }

    fn open(&self, direction: Direction) -> Result<OwnedFd> {
        let socket = packet_socket()?;
        let receives = direction == Direction::Receive;
        if receives {
            set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)
                .context("can't enlarge a receive buffer: CAP_NET_ADMIN is needed")?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(STALL_LIMIT))?;
        }
        packet::bind(socket.as_fd(), self.wire.port().index()?, receives)?;
        Ok(socket)
    }
}

impl Variant<NetBench> for RawSocket {
    fn name(&self) -> &str {
        RAW
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        self.ready = None;
        self.kernel = KernelTime::default();
        let slots = match case.direction {
            Direction::Transmit => case.slots(),
            Direction::Receive => bursts::slots(case),
        };
        let mut area = Area::new(slots.total())?;
        let frame = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        for at in (0..slots.places()).map(|place| slots.offset(place) + VNET_HEADER_LEN) {
            area.bytes_mut()[at..at + case.frame_len].copy_from_slice(frame.bytes());
        }
        let peer = self.wire.peer();
        let generator = Generator::with_room(peer, Frame::build(case.frame_len, GUEST_MAC, peer.mac()?)?)?;
        let socket = self.open(case.direction)?;
        self.ready = Some(ReadyRing { case: *case, area, slots, socket, generator, next: 0 });
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<TransferSample> {
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("the raw socket was not prepared for {case}");
        };
        measured(&self.wire, &mut self.kernel, (case, frames), Duration::ZERO, || match case.direction {
            Direction::Transmit => on_worker(&self.placement, || send_all(ready, frames)),
            Direction::Receive => {
                let ReadyRing { case, area, slots, socket, generator, next } = ready;
                bursts::receive_on_worker(&self.arrivals, &self.placement, generator, frames, |done| {
                    receive_all(
                        socket.as_fd(),
                        area.bytes_mut(),
                        *slots,
                        next,
                        (case.frame_len, frames),
                        done,
                    )
                })
            }
        })
    }

    fn ledger(&mut self) -> Result<BTreeMap<String, u64>> {
        let mut ledger = BTreeMap::new();
        self.kernel.note(&mut ledger);
        Ok(ledger)
    }
}

fn send_all(ready: &mut ReadyRing, frames: usize) -> Result<()> {
    let ReadyRing { case, area, slots, socket, next, .. } = ready;
    let (bytes, len) = (area.bytes(), case.frame_len);
    for _ in 0..frames {
        let at = slots.offset(*next) + VNET_HEADER_LEN;
        *next += 1;
        let sent = send(&*socket, &bytes[at..at + len], SendFlags::empty())?;
        if sent != len {
            bail!("the socket took {sent} of {len} bytes");
        }
    }
    Ok(())
}

fn receive_all(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    slots: Slots,
    next: &mut usize,
    (len, frames): (usize, usize),
    done: &AtomicUsize,
) -> Result<()> {
    for total in 1..=frames {
        let at = slots.offset(*next) + VNET_HEADER_LEN;
        *next += 1;
        let room = &mut bytes[at..at + bursts::BUFFER_LEN - VNET_HEADER_LEN];
        let (_, came) = recv(socket, room, RecvFlags::empty())
            .with_context(|| format!("frame {total} of {frames} did not come within {STALL_LIMIT:?}"))?;
        if came != len {
            bail!("a frame of {came} bytes came where {len} were sent");
        }
        done.store(total, Ordering::Release);
    }
    Ok(())
}
