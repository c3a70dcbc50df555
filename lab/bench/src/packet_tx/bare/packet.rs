//! Copying through a packet socket: send(2) and sendmmsg(2).

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use rustix::net::{SendFlags, send};
use zerowire_sys::socket::set_int;

use super::super::case::{BATCH, TxCase};
use super::super::lab::{TxLab, widen};
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};
use super::sys::Batch;
use crate::sys;

/// A packet socket for sending on the interface of `lab`; `vnet`: a virtio-net header precedes each
/// frame.
pub fn socket(lab: &TxLab, vnet: bool) -> Result<OwnedFd> {
    let socket = sys::packet_socket().context("can't open a packet socket: CAP_NET_RAW is needed")?;
    if vnet {
        set_int(&socket, libc::SOL_PACKET, sys::PACKET_VNET_HDR, 1)?;
    }
    sys::bind_packet(socket.as_fd(), lab.index()?, 0)?;
    widen(&socket)?;
    Ok(socket)
}

/// One send() a frame.
pub struct Send<'a> {
    socket: OwnedFd,
    source: &'a TxSource,
    sent: usize,
}

impl<'a> Send<'a> {
    /// Opens the socket.
    pub fn open(_: &TxCase, lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        Ok(Self { socket: socket(lab, source.head().cut.is_some())?, source, sent: 0 })
    }
}

impl TxWay for Send<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let first = self.source.take(count);
        for index in first..first + count {
            let frame = self.source.frame(index);
            let sent = send(&self.socket, frame, SendFlags::empty())?;
            if sent != frame.len() {
                bail!("the packet socket took {sent} of {} bytes", frame.len());
            }
        }
        self.sent += count;
        Ok(())
    }

    fn proof(&self) -> Proof {
        copied(self.sent, self.source)
    }
}

/// One sendmmsg() a batch.
pub struct Sendmmsg<'a> {
    socket: OwnedFd,
    source: &'a TxSource,
    batch: Batch,
    sent: usize,
}

impl<'a> Sendmmsg<'a> {
    /// Opens the socket.
    pub fn open(_: &TxCase, lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        Ok(Self {
            socket: socket(lab, source.head().cut.is_some())?,
            source,
            batch: Batch::new(BATCH),
            sent: 0,
        })
    }
}

impl TxWay for Sendmmsg<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let mut next = self.source.take(count);
        let end = next + count;
        while next < end {
            let frames = (next..end).map(|index| self.source.frame(index));
            next += self.batch.send(self.socket.as_fd(), frames)?;
        }
        self.sent += count;
        Ok(())
    }

    fn proof(&self) -> Proof {
        copied(self.sent, self.source)
    }
}

/// Everything was copied.
pub fn copied(sends: usize, source: &TxSource) -> Proof {
    Proof { copied_bytes: (sends * source.payload_len()) as u64, ..Proof::default() }
}
