//! What control threads tell the thread that serves a group of VMs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::mailbox::Mailbox;
use crate::memory::GuestMemory;
use crate::ring::RingAddresses;
use crate::ring::inflight::Tracker;

/// Everything that is needed to serve a ring.
#[derive(Debug)]
pub(crate) struct RingStart {
    /// [`super::RX_QUEUE`] or [`super::TX_QUEUE`].
    pub queue: u16,
    /// Entries.
    pub size: u16,
    /// Where it is.
    pub addresses: RingAddresses,
    /// The available entry to take first.
    pub base: u16,
    /// Features that the guest acknowledged.
    pub acked: u64,
    /// Whether packets may move yet.
    pub enabled: bool,
    /// The guest address of the used ring, where writes to it are to be noted in the dirty log.
    pub log_at: Option<u64>,
    /// Where its chains in flight are marked; the ring takes it.
    pub inflight: Option<Box<Tracker>>,
    /// The driver's notifications.
    pub kick: OwnedFd,
    /// Notifications to the driver.
    pub call: Option<OwnedFd>,
    /// Tells the front end of a broken ring.
    pub err: Option<OwnedFd>,
}

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
    Start { vm: usize, ring: Box<RingStart>, reply: SyncSender<Result<(), String>> },
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
