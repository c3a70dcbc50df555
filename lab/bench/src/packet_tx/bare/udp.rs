//! UDP: send(2) with MSG_ZEROCOPY, whose notifications are read one by one or in batches.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use zerowire_sys::socket::error_queue::{self, Note};
use zerowire_sys::socket::set_int;

use super::super::lab::TxLab;
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};

/// `SO_ZEROCOPY` (include/uapi/asm-generic/socket.h).
const SO_ZEROCOPY: i32 = 60;
/// How long a notification may take.
const PATIENCE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };

/// One send() with MSG_ZEROCOPY a payload; notifications are read when `batch` payloads are lent.
pub struct Lend<'a> {
    socket: UdpSocket,
    source: &'a TxSource,
    batch: usize,
    proof: Proof,
}

impl<'a> Lend<'a> {
    /// Opens the socket.
    pub fn open(lab: &TxLab, source: &'a TxSource, batch: usize) -> Result<Self> {
        let socket = lab.udp()?;
        set_int(&socket, libc::SOL_SOCKET, SO_ZEROCOPY, 1)
            .context("SO_ZEROCOPY on a UDP socket: Linux 5.0 or later is needed")?;
        Ok(Self { socket, source, batch, proof: Proof::default() })
    }

    /// Reads notifications until all `lent` payloads are back.
    fn take_back(&mut self, mut lent: usize) -> Result<()> {
        while lent > 0 {
            let mut note = None;
            if error_queue::read::<1>(self.socket.as_fd(), |read| note = Some(read))? == 0 {
                let mut wait = [PollFd::new(&self.socket, PollFlags::empty())];
                if poll(&mut wait, Some(&PATIENCE))? == 0 {
                    bail!("{lent} payloads are lent and no notification comes");
                }
                continue;
            }
            let (sends, copied) = match note {
                Some(Note::Back { lo, hi, copied }) => (hi.wrapping_sub(lo) as usize + 1, copied),
                Some(Note::Error { errno }) => return Err(io::Error::from_raw_os_error(errno).into()),
                None => continue,
            };
            let bytes = (sends * self.source.payload_len()) as u64;
            match copied {
                true => self.proof.kernel_copied_bytes += bytes,
                false => self.proof.zero_copied_bytes += bytes,
            }
            lent = lent.checked_sub(sends).with_context(|| format!("{note:?} of {lent} lent payloads"))?;
        }
        Ok(())
    }
}

impl TxWay for Lend<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let mut next = self.source.take(count);
        let end = next + count;
        while next < end {
            let batch = self.batch.min(end - next);
            for index in next..next + batch {
                let flags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
                send(&self.socket, self.source.payload(index), flags)?;
            }
            self.take_back(batch)?;
            next += batch;
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        self.proof
    }
}
