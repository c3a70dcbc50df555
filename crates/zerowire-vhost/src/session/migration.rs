//! The dirty log of live migration.
//!
//! Writes are noted while VHOST_F_LOG_ALL is acknowledged; those to a used ring if SET_VRING_ADDR
//! said so (VHOST_VRING_F_LOG). The front end may give its log before or after that. Until it does,
//! writes are noted in a log of this process's own, or in the previous one. They go over to the
//! front end's log when it comes, so nothing is missed in any order. QEMU starts the rings of a
//! device that its guest sets up anew during a migration before it sends the log.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zerowire_vhost_user::{Message, Request, features as f};

use super::eventfd::check_notifier;
use super::image::{File, LogImage, MigrationImage};
use super::vrings::Vrings;
use super::{Answer, SessionError, refused};
use crate::memory::{DirtyLog, GuestMemory, LogError};

/// Flag of SET_VRING_ADDR: log writes to the used ring (linux/vhost_types.h, VHOST_VRING_F_LOG).
const VRING_LOG: u32 = 1 << 0;

/// Where writes to a used ring are logged, from the fields of SET_VRING_ADDR.
pub(super) fn log_address(flags: u32, log: u64) -> Option<u64> {
    (flags & VRING_LOG != 0).then_some(log)
}

/// What the front end gave for its migration.
#[derive(Debug, Default)]
pub(super) struct Migration {
    /// The front end's log.
    base: Option<DirtyLog>,
    /// Is notified of its changes.
    signal: Option<Arc<OwnedFd>>,
}

impl Migration {
    /// SET_LOG_BASE: another log, for `memory` and `rings`. The caller puts it in place of the old
    /// one. Nothing may be noted in the old one once the answer goes out, with REPLY_ACK or
    /// without. The front end takes it away then.
    pub(super) fn set_base(
        &mut self,
        message: &mut Message,
        memory: &GuestMemory,
        rings: &Vrings,
    ) -> Result<Answer, SessionError> {
        let region = message.log_region()?;
        let file = message.take_fd()?;
        let refuse = |e: LogError| refused(Request::SetLogBase, e.to_string());
        let log = DirtyLog::new(file.as_fd(), region.mmap_offset, region.size).map_err(refuse)?;
        check(&log, memory, rings).map_err(refuse)?;
        self.base = Some(log);
        // QEMU looks at the request's number alone; cloud-hypervisor waits for a log description of
        // some bytes.
        Ok(Answer::Bytes(region.encode().to_vec()))
    }

    /// SET_LOG_FD: a descriptor that is notified when bits of the log were set.
    pub(super) fn set_signal(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let fd = Some(message.take_fd()?);
        check_notifier(Request::SetLogFd, "the log", &fd)?;
        self.signal = fd.map(Arc::new);
        Ok(())
    }

    /// The front end's log, for an image. With `early`, the log of this process's own whose bits go
    /// along: the front end has not given its log yet.
    pub(super) fn image(&self, early: Option<&DirtyLog>) -> MigrationImage<File> {
        let image = |log: &DirtyLog| {
            log.place().map(|(file, offset, len)| LogImage { offset, len, file: file.clone() })
        };
        MigrationImage {
            log: self.base.as_ref().and_then(image),
            early: early.and_then(image),
            signal: self.signal.clone(),
        }
    }

    /// The log of an image.
    pub(super) fn restore(image: &MigrationImage<File>) -> Result<Self, SessionError> {
        check_notifier(Request::SetLogFd, "the log", &image.signal)?;
        let base = image.log.as_ref().map(open).transpose();
        let base = base.map_err(|e| refused(Request::SetLogBase, e.to_string()))?;
        Ok(Self { base, signal: image.signal.clone() })
    }

    /// The next migration has a log of its own.
    pub(super) fn end(&mut self) {
        self.base = None;
    }

    /// The log for `memory` and `rings`; None while nothing has to be noted.
    pub(super) fn log_for(
        &self,
        acked: u64,
        memory: &GuestMemory,
        rings: &Vrings,
    ) -> Result<Option<DirtyLog>, LogError> {
        if acked & f::VHOST_LOG_ALL == 0 {
            return Ok(None);
        }
        match &self.base {
            Some(log) => {
                check(log, memory, rings)?;
                Ok(Some(log.clone().with_signal(self.signal.clone())))
            }
            None => {
                let end = rings.logged().map(|(_, end)| end).fold(memory.end(), u64::max);
                DirtyLog::private(end).map(Some)
            }
        }
    }
}

/// Maps the log of an image.
pub(super) fn open(image: &LogImage<File>) -> Result<DirtyLog, LogError> {
    DirtyLog::new(image.file.as_fd(), image.offset, image.len)
}

/// Checks that a log covers all that may be noted in it.
fn check(log: &DirtyLog, memory: &GuestMemory, rings: &Vrings) -> Result<(), LogError> {
    log.check(memory.end(), || "guest memory".to_owned())?;
    rings.logged().try_for_each(|(i, end)| log.check(end, || format!("the used ring of queue {i}")))
}

/// Moves what the front end has not taken out of the log of `old` to the log of `now`, if that is
/// another one. Nobody notes in the old one any more.
pub(super) fn take_over(old: &GuestMemory, now: &GuestMemory) {
    if let (Some(old), Some(now)) = (old.log(), now.log())
        && !now.is_same(old)
    {
        now.take_over(old);
        now.notify();
    }
}
