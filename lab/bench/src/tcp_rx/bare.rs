//! Receiving with nothing around it: the ways that programs are written in.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::way::{Goal, Patience, TICK, Tally, TcpWay, ended, touch_all};
use crate::sys;

const TICK_SPEC: Timespec = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
/// Events of an epoll_wait.
const EVENTS: usize = 64;

/// A loop of recv().
pub(super) struct Recv {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Recv {
    pub(super) fn new(sockets: Vec<OwnedFd>, read_bytes: usize) -> Result<Self> {
        let [socket] = <[OwnedFd; 1]>::try_from(sockets)
            .map_err(|all| anyhow::anyhow!("recv serves one connection, not {}", all.len()))?;
        let socket = TcpStream::from(socket);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self { socket, buffer: vec![0; read_bytes] })
    }
}

impl TcpWay for Recv {
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally> {
        let (mut tally, mut patience) = (Tally::default(), Patience::default());
        while tally.bytes < goal.bytes() {
            tally.calls += 1;
            match rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(ended(&tally)),
                Ok((n, _)) => {
                    tally.bytes += n as u64;
                    tally.pieces += 1;
                    if touch {
                        touch_all(&self.buffer[..n]);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => patience.tick(&tally, goal)?,
                Err(e) => return Err(e).context("recv() failed"),
            }
        }
        Ok(tally)
    }
}

/// One read of a connection that is ready.
fn read_once(socket: BorrowedFd<'_>, buffer: &mut [u8], tally: &mut Tally, touch: bool) -> Result<()> {
    tally.calls += 1;
    match rustix::io::read(socket, &mut *buffer) {
        Ok(0) => Err(ended(tally)),
        Ok(n) => {
            tally.bytes += n as u64;
            tally.pieces += 1;
            if touch {
                touch_all(&buffer[..n]);
            }
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(e) => Err(e).context("read() failed"),
    }
}

/// Makes all sockets non-blocking.
fn set_nonblocking(sockets: &[OwnedFd]) -> io::Result<()> {
    sockets.iter().try_for_each(|socket| Ok(rustix::io::ioctl_fionbio(socket, true)?))
}

/// select() and read().
pub(super) struct Select {
    sockets: Vec<OwnedFd>,
    set: sys::SelectSet,
    buffer: Vec<u8>,
}

impl Select {
    pub(super) fn new(sockets: Vec<OwnedFd>, read_bytes: usize) -> Result<Self> {
        set_nonblocking(&sockets)?;
        let set = sys::SelectSet::new(sockets.iter().map(|s| s.as_fd())).context("select()")?;
        Ok(Self { sockets, set, buffer: vec![0; read_bytes] })
    }
}

impl TcpWay for Select {
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally> {
        let (mut tally, mut patience) = (Tally::default(), Patience::default());
        while tally.bytes < goal.bytes() {
            tally.calls += 1;
            if self.set.wait(TICK).context("select() failed")? == 0 {
                patience.tick(&tally, goal)?;
                continue;
            }
            for socket in &self.sockets {
                if self.set.is_ready(socket.as_fd()) {
                    read_once(socket.as_fd(), &mut self.buffer, &mut tally, touch)?;
                }
            }
        }
        Ok(tally)
    }
}

/// epoll_wait() and read().
pub(super) struct Epoll {
    sockets: Vec<OwnedFd>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl Epoll {
    pub(super) fn new(sockets: Vec<OwnedFd>, read_bytes: usize) -> Result<Self> {
        set_nonblocking(&sockets)?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, socket) in sockets.iter().enumerate() {
            epoll::add(&poller, socket, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        }
        Ok(Self { sockets, epoll: poller, events: Vec::with_capacity(EVENTS), buffer: vec![0; read_bytes] })
    }
}

impl TcpWay for Epoll {
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally> {
        let (mut tally, mut patience) = (Tally::default(), Patience::default());
        while tally.bytes < goal.bytes() {
            tally.calls += 1;
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&TICK_SPEC)) {
                Ok(0) => patience.tick(&tally, goal)?,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait() failed"),
            }
            for event in &self.events {
                if let Some(socket) = self.sockets.get(event.data.u64() as usize) {
                    read_once(socket.as_fd(), &mut self.buffer, &mut tally, touch)?;
                }
            }
        }
        Ok(tally)
    }
}
