//! Copying: send(2) of frames to a packet socket or of UDP payloads, and sendmmsg(2) of frames.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Result, bail};
use rustix::net::{SendFlags, send};
use zerowire_sys::packet;
use zerowire_sys::socket::{Messages, set_int};

use super::super::case::BATCH;
use super::super::lab::{TxLab, widen};
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};
use crate::generator::packet_socket;

/// A packet socket for sending on the interface of `lab`; `vnet`: a virtio-net header precedes each
/// frame.
pub fn socket(lab: &TxLab, vnet: bool) -> Result<OwnedFd> {
    let socket = packet_socket()?;
    if vnet {
        set_int(&socket, libc::SOL_PACKET, packet::PACKET_VNET_HDR, 1)?;
    }
    packet::bind(socket.as_fd(), lab.index()?, false)?;
    widen(&socket)?;
    Ok(socket)
}

/// One send() a frame or, with `UDP`, a payload.
pub struct Send<'a, const UDP: bool> {
    socket: OwnedFd,
    source: &'a TxSource,
    sent: usize,
}

impl<'a, const UDP: bool> Send<'a, UDP> {
    /// Opens the socket.
    pub fn open(lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        let socket = if UDP { lab.udp()?.into() } else { socket(lab, source.head().cut.is_some())? };
        Ok(Self { socket, source, sent: 0 })
    }
}

impl<const UDP: bool> TxWay for Send<'_, UDP> {
    fn send(&mut self, count: usize) -> Result<()> {
        let first = self.source.take(count);
        for index in first..first + count {
            let bytes = if UDP { self.source.payload(index) } else { self.source.frame(index) };
            let sent = send(&self.socket, bytes, SendFlags::empty())?;
            if sent != bytes.len() {
                bail!("the socket took {sent} of {} bytes", bytes.len());
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
    messages: Messages,
    sent: usize,
}

impl<'a> Sendmmsg<'a> {
    /// Opens the socket.
    pub fn open(lab: &TxLab, source: &'a TxSource) -> Result<Self> {
        let socket = socket(lab, source.head().cut.is_some())?;
        Ok(Self { socket, source, messages: Messages::default(), sent: 0 })
    }
}

impl TxWay for Sendmmsg<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let mut next = self.source.take(count);
        let end = next + count;
        while next < end {
            let frames = (next..end.min(next + BATCH)).map(|index| self.source.frame(index));
            next += packet::send_many(self.socket.as_fd(), frames, &mut self.messages)?;
        }
        self.sent += count;
        Ok(())
    }

    fn proof(&self) -> Proof {
        copied(self.sent, self.source)
    }
}

/// Everything was copied.
fn copied(sends: usize, source: &TxSource) -> Proof {
    Proof { copied_bytes: (sends * source.payload_len()) as u64, ..Proof::default() }
}
