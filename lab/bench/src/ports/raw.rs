//! A plain packet socket that copies: one system call a frame, send(2) or recv(2), as programs
//! without rings do it (packet(7)).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use zerowire_sys::packet;
use zerowire_sys::socket::set_int;

use super::bare::BareCalls;
use super::bursts;
use crate::area::{self, Area, Slots};
use crate::case::{Case, Direction};
use crate::compare::RAW;
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::packet_socket;
use crate::guest::STALL_LIMIT;
use crate::netns::{NetnsLink, VNET_HEADER_LEN};

/// Room for a burst of frames with what the kernel adds to each.
const RECEIVE_BUFFER: i32 = 16 << 20;

/// The loop.
pub struct RawSocket;

/// An open socket.
pub struct OpenSocket {
    area: Area,
    slots: Slots,
    socket: OwnedFd,
    frame_len: usize,
    next: usize,
}

impl BareCalls for RawSocket {
    const NAME: &'static str = RAW;

    type Ready = OpenSocket;

    fn new(_: &NetnsLink) -> Result<Self> {
        Ok(Self)
    }

    fn open(&self, port: &NetnsLink, case: &Case) -> Result<OpenSocket> {
        let slots = bursts::slots_of(case);
        let mut area = Area::new(slots.total())?;
        let frame = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        for at in (0..slots.places()).map(|place| slots.offset(place) + VNET_HEADER_LEN) {
            area.bytes_mut()[at..at + case.frame_len].copy_from_slice(frame.bytes());
        }
        let socket = packet_socket()?;
        let receives = case.direction == Direction::Receive;
        if receives {
            set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)
                .context("can't enlarge a receive buffer: CAP_NET_ADMIN is needed")?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(STALL_LIMIT))?;
        }
        packet::bind(socket.as_fd(), port.index()?, receives)?;
        Ok(OpenSocket { area, slots, socket, frame_len: case.frame_len, next: 0 })
    }

    fn send(ready: &mut OpenSocket, frames: usize) -> Result<()> {
        let OpenSocket { area, slots, socket, frame_len: len, next } = ready;
        let bytes = area.bytes();
        for _ in 0..frames {
            let at = slots.offset(*next) + VNET_HEADER_LEN;
            *next += 1;
            let sent = send(&*socket, &bytes[at..at + *len], SendFlags::empty())?;
            if sent != *len {
                bail!("the socket took {sent} of {len} bytes");
            }
        }
        Ok(())
    }

    fn receive(ready: &mut OpenSocket, frames: usize, done: &AtomicUsize) -> Result<()> {
        let OpenSocket { area, slots, socket, frame_len: len, next } = ready;
        let bytes = area.bytes_mut();
        for total in 1..=frames {
            let at = slots.offset(*next) + VNET_HEADER_LEN;
            *next += 1;
            let room = &mut bytes[at..at + area::RECEIVE_BUFFER - VNET_HEADER_LEN];
            let (_, came) = recv(&*socket, room, RecvFlags::empty())
                .with_context(|| format!("frame {total} of {frames} did not come within {STALL_LIMIT:?}"))?;
            if came != *len {
                bail!("a frame of {came} bytes came where {len} were sent");
            }
            done.store(total, Ordering::Release);
        }
        Ok(())
    }
}
