//! The library's back ends, column by column.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use zerowire::ledger::{CopyReason, Counters};
use zerowire::send::{Notifications, Payload, SendBackend, SendMode, SendOptions, Sender};

use super::case::{BATCH, Column, TxCase};
use super::lab::TxLab;
use super::library_frames;
use super::source::TxSource;
use super::way::{Proof, TxWay};

/// How long lent memory may be away.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The library's back end for `column`.
pub fn open<'a>(
    column: Column,
    case: &TxCase,
    lab: &'a TxLab,
    source: &'a TxSource,
) -> Result<Box<dyn TxWay + 'a>> {
    let sockets = |mode, backend, handover, areas| -> Result<Box<dyn TxWay + 'a>> {
        Ok(Box::new(Sockets::open(lab, source, Choice { mode, backend, handover, areas })?))
    };
    match column {
        Column::Send => library_frames::socket(case, source, 1),
        Column::Sendmmsg => library_frames::socket(case, source, BATCH),
        Column::Ring => library_frames::ring(case, source, false),
        Column::RingCopied => library_frames::ring(case, source, true),
        Column::Xdp => library_frames::xdp(case, lab, source),
        Column::Udp => sockets(SendMode::Copy, SendBackend::Socket, Handover::Single, false),
        Column::Zc => sockets(SendMode::ZeroCopy, SendBackend::Socket, Handover::Awaited, false),
        Column::ZcBatched => sockets(SendMode::ZeroCopy, SendBackend::Socket, Handover::Single, false),
        Column::SendZc => sockets(SendMode::ZeroCopy, SendBackend::Uring, Handover::Many, false),
        Column::SendZcFixed => sockets(SendMode::ZeroCopy, SendBackend::Uring, Handover::Many, true),
        Column::Auto => sockets(SendMode::Auto, SendBackend::Auto, Handover::Single, false),
    }
}

/// How payloads are handed to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// One by one; a batch's memory is awaited together.
    Single,
    /// One by one, each awaited.
    Awaited,
    /// A batch a call.
    Many,
}

/// What kind of sender.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Copy, lend, or choose.
    pub mode: SendMode,
    /// Sockets or io_uring.
    pub backend: SendBackend,
    /// How payloads are handed over.
    pub handover: Handover,
    /// Whether the payloads' memory is registered.
    pub areas: bool,
}

/// A [`Sender`] on a UDP socket.
pub struct Sockets<'a> {
    sender: Sender,
    source: &'a TxSource,
    handover: Handover,
    many: Vec<Payload>,
}

impl<'a> Sockets<'a> {
    /// Opens the socket and its sender.
    pub fn open(lab: &TxLab, source: &'a TxSource, choice: Choice) -> Result<Self> {
        let notifications = match choice.handover {
            Handover::Awaited => Notifications::EachOne,
            _ => Notifications::Batched,
        };
        let options =
            SendOptions::default().mode(choice.mode).backend(choice.backend).notifications(notifications);
        let socket = OwnedFd::from(lab.udp()?);
        let sender = match choice.areas {
            true => Sender::with_areas(socket, options, std::slice::from_ref(source.area())),
            false => Sender::new(socket, options),
        }?;
        Ok(Self { sender, source, handover: choice.handover, many: Vec::with_capacity(BATCH) })
    }

    /// The library's sender.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    fn batch(&mut self, batch: usize) -> Result<()> {
        let first = self.source.take(batch);
        let indices = first..first + batch;
        if self.handover == Handover::Many {
            let source = self.source;
            self.many.extend(indices.map(|index| Payload::from(source.segment(index))));
            while !self.many.is_empty() {
                self.sender.send_many(&mut self.many)?;
            }
        } else {
            // With Notifications::EachOne the call waits.
            for index in indices {
                self.sender.send(self.source.segment(index))?;
            }
        }
        if self.handover == Handover::Single {
            self.sender.poll()?;
        }
        // Waits until all memory is back.
        if self.sender.outstanding() > 0 {
            self.sender.wait_all(PATIENCE).context("lent memory does not come back")?;
        }
        while self.sender.next_completion().is_some() {}
        Ok(())
    }
}

impl TxWay for Sockets<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            self.batch(batch)?;
            left -= batch;
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        proof_of(&self.sender.counters())
    }

    fn path(&self) -> String {
        self.sender.path()
    }
}

/// What a ledger says.
pub fn proof_of(counters: &Counters) -> Proof {
    let totals = counters.snapshot();
    let kernel = totals.copied_bytes.get(CopyReason::Kernel.name()).copied().unwrap_or(0);
    Proof {
        zero_copied_bytes: totals.zero_copied_bytes,
        kernel_copied_bytes: kernel,
        copied_bytes: totals.copied_total() - kernel,
    }
}
