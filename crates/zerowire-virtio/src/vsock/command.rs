//! What control threads tell the thread that serves a group of VMs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::host::RingSetup;
use crate::host::mailbox::Mailbox;
use crate::memory::GuestMemory;

/// A command; those with a `reply` have been carried out when it comes. `vm` is the VM's place in the group.
#[derive(Debug)]
pub(crate) enum Command {
    /// From now on this is the memory. Running rings move over.
    Memory { vm: usize, memory: Arc<GuestMemory>, reply: SyncSender<()> },
    /// The same memory with another dirty log, or none.
    Log { vm: usize, memory: Arc<GuestMemory>, reply: SyncSender<()> },
    /// Have writes to the used ring noted in the dirty log from this guest address on, or not.
    LogRing { vm: usize, queue: u16, at: Option<u64>, reply: SyncSender<()> },
    /// Start a ring.
    Start { vm: usize, ring: Box<RingSetup>, reply: SyncSender<Result<(), String>> },
    /// Stop a ring; the reply is its next available index.
    Stop { vm: usize, queue: u16, reply: SyncSender<Option<u16>> },
    /// Let a ring move packets, or not.
    Enable { vm: usize, queue: u16, on: bool, reply: SyncSender<()> },
    /// Another descriptor to notify the driver by.
    Call { vm: usize, queue: u16, fd: Option<OwnedFd>, reply: SyncSender<()> },
    /// Another descriptor to be notified by.
    Kick { vm: usize, queue: u16, fd: OwnedFd, reply: SyncSender<()> },
    /// Another descriptor to tell of errors by.
    Err { vm: usize, queue: u16, fd: Option<OwnedFd>, reply: SyncSender<()> },
    /// The front end has left: both rings stop, all connections end, the memory goes.
    Left { vm: usize, reply: SyncSender<()> },
    /// End.
    Quit,
}

/// Sends commands.
pub(crate) type CommandSender = Mailbox<Command>;
