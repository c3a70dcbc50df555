//! The interrupt line of a device, through its uio descriptor.
//!
//! uio_pci_generic (drivers/uio/uio_pci_generic.c in Linux) knows the line INTx only. When the
//! device pulls it, the kernel masks it in the command register and makes the descriptor readable.
//! The driver reads the interrupt status, by which the device lets go of the line, and unmasks it.
//! If the device pulled it again in between, the interrupt comes again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::bar::{Registers, open};
use crate::GuestError;

/// Offset of the command register in configuration space (PCI 3.0 §6.2.2).
const COMMAND: u64 = 4;
/// Bit of it: the device answers to its memory BARs.
const MEMORY: u16 = 1 << 1;
/// Bit of it: the device may use memory.
const BUS_MASTER: u16 = 1 << 2;
/// Bit of it: INTx is masked.
const NO_INTX: u16 = 1 << 10;

/// For a program that ends to let go of its device.
const LET_GO: Duration = Duration::from_secs(2);

/// The command register, in the device's configuration space.
#[derive(Debug)]
pub(super) struct Command(pub File);

impl Command {
    /// Lets the device use memory, or stops it from that and from
    /// interrupting.
    pub(super) fn let_run(&self, on: bool) -> io::Result<()> {
        match on {
            true => self.change(MEMORY | BUS_MASTER, 0),
            false => self.change(NO_INTX, BUS_MASTER),
        }
    }

    pub(super) fn mask(&self, on: bool) -> io::Result<()> {
        if on { self.change(NO_INTX, 0) } else { self.change(0, NO_INTX) }
    }

    fn change(&self, set: u16, cleared: u16) -> io::Result<()> {
        let mut bytes = [0; 2];
        self.0.read_exact_at(&mut bytes, COMMAND)?;
        let value = (u16::from_le_bytes(bytes) | set) & !cleared;
        self.0.write_all_at(&value.to_le_bytes(), COMMAND)
    }
}

/// The interrupt of all queues.
#[derive(Debug)]
pub(crate) struct UioInterrupt {
    uio: File,
    pub(super) command: Command,
    status: Registers,
}

impl UioInterrupt {
    pub(super) fn new(uio: File, command: Command, status: Registers) -> UioInterrupt {
        UioInterrupt { uio, command, status }
    }

    /// Opens the descriptor of a device. One program has it at a time.
    pub(super) fn open_uio(path: &Path) -> Result<File, GuestError> {
        let file = open(path)?;
        let start = Instant::now();
        // One that was killed just now may not have let go yet.
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || start.elapsed() > LET_GO {
                let what = "locking (if it would block, another program drives the device)";
                return Err(GuestError::io(format!("{what} {}", path.display()), error));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(file)
    }

    /// Whether the kernel gave the device an interrupt: without one, uio
    /// refuses to wait.
    pub(super) fn exists(uio: &File) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(uio, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&now));
        polled.is_ok() && !fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }

    /// Takes the pending interrupts and lets the next one come; returns how
    /// many there were.
    pub(crate) fn clear(&self) -> io::Result<u64> {
        // uio gives nothing but a whole counter of 32 bits.
        let mut count = [0; 4];
        match rustix::io::read(&self.uio, &mut count) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
        // Reading it lets the line go (virtio 1.3 §4.1.4.5.1).
        self.status.read_int::<u8>(0);
        self.command.mask(false)?;
        Ok(1)
    }
}

impl AsFd for UioInterrupt {
    /// Becomes readable when the device interrupts.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.uio.as_fd()
    }
}

#[cfg(test)]
mod tests;
