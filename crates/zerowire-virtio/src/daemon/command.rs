//! What a control thread tells a worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use zerowire_metadata::MetadataTree;

use crate::host::RingSetup;
use crate::host::mailbox::Mailbox;
use crate::memory::GuestMemory;

/// Which of a pair's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Even queue numbers: toward the guest.
    Receive,
    /// Odd queue numbers: from the guest.
    Transmit,
}

impl Direction {
    pub(super) fn of(queue: usize) -> Self {
        if queue.is_multiple_of(2) { Self::Receive } else { Self::Transmit }
    }
}

/// A command; those with a `reply` have been carried out when it comes.
#[derive(Debug)]
pub(super) enum Command {
    /// The memory goes: rings stop where they are until [`Self::Memory`] comes, and nothing stands on it any more.
    LetGo { reply: SyncSender<()> },
    /// From now on this is the memory. Running rings move over.
    Memory { memory: Arc<GuestMemory>, reply: SyncSender<()> },
    /// The same memory with another dirty log, or none.
    Log { memory: Arc<GuestMemory>, reply: SyncSender<()> },
    /// Have writes to the used ring noted in the dirty log from this guest address on, or not.
    LogRing { direction: Direction, at: Option<u64>, reply: SyncSender<()> },
    /// Start a ring.
    Start { direction: Direction, ring: Box<RingSetup>, reply: SyncSender<Result<(), String>> },
    /// Stop a ring; the reply is its next available index.
    Stop { direction: Direction, reply: SyncSender<Option<u16>> },
    /// Let a ring move frames, or not.
    Enable { direction: Direction, on: bool, reply: SyncSender<()> },
    /// Another descriptor to notify the driver by.
    Call { direction: Direction, fd: Option<OwnedFd>, reply: SyncSender<()> },
    /// Another descriptor to be notified by.
    Kick { direction: Direction, fd: OwnedFd, reply: SyncSender<()> },
    /// Another descriptor to tell of errors by.
    Err { direction: Direction, fd: Option<OwnedFd>, reply: SyncSender<()> },
    /// New metadata.
    Tree(Arc<MetadataTree>),
    /// A frame for the metadata service, from another worker of the same VM.
    MetadataFrame(Vec<u8>),
    /// End.
    Quit,
}

/// Sends commands.
pub(super) type CommandSender = Mailbox<Command>;
