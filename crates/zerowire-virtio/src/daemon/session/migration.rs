//! Messages of live migration: the dirty log, and the announcement of the guest's new place.
//!
//! Writes are noted while VHOST_F_LOG_ALL is acknowledged; those to a used ring if SET_VRING_ADDR
//! said so (VHOST_VRING_F_LOG). The front end may give its log before or after that. What is
//! written until it comes is noted in a log of this process's own, or in the one before, and goes
//! over then, so that nothing is missed whatever the order: QEMU starts the rings of a device that
//! its guest sets up anew during a migration before it sends the log.

use std::sync::Arc;

use zerowire_vhost_user::{Message, Request, features as f, protocol as p};

use super::vrings::check_notifier;
use super::{Answer, Session, SessionError, protocol, refused};
use crate::memory::{DirtyLog, GuestMemory, LogError};

/// Flag of SET_VRING_ADDR: writes to the used ring are to be logged (linux/vhost_types.h,
/// VHOST_VRING_F_LOG).
const VRING_LOG: u32 = 1 << 0;

/// Where writes to a used ring are logged, from the fields of SET_VRING_ADDR.
pub(super) fn log_address(flags: u32, log: u64) -> Option<u64> {
    (flags & VRING_LOG != 0).then_some(log)
}

impl Session<'_> {
    /// Another log. The answer comes when nothing is noted in the old one any more, with REPLY_ACK
    /// or without: the front end takes the old one away then.
    pub(super) fn set_log_base(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let request = Request::SetLogBase;
        if self.protocol & p::LOG_SHMFD == 0 {
            let text = "it needs protocol feature LOG_SHMFD, which is not in force".to_owned();
            return Err(protocol(request, text));
        }
        let region = message.log_region()?;
        let file = message.take_fd()?;
        let refuse = |e: LogError| refused(request, e.to_string());
        let log = DirtyLog::new(std::os::fd::AsFd::as_fd(&file), region.mmap_offset, region.size)
            .map_err(refuse)?;
        self.check_log(&log, &self.memory).map_err(refuse)?;
        self.log = Some(log);
        self.renew_log().map_err(refuse)?;
        // QEMU looks at the request's number alone; cloud-hypervisor waits for a log description of
        // some bytes.
        Ok(Answer::Bytes(region.encode().to_vec()))
    }

    /// A descriptor that is notified when bits of the log were set.
    pub(super) fn set_log_fd(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::SetLogFd;
        let fd = Some(message.take_fd()?);
        check_notifier(request, "the log", &fd)?;
        self.log_signal = fd.map(Arc::new);
        self.renew_log().map_err(|e| refused(request, e.to_string()))
    }

    /// The device notes its writes as it is to from now on.
    pub(super) fn renew_log(&mut self) -> Result<(), LogError> {
        let log = self.log_for(&self.memory)?;
        if log.is_none() && self.memory.log().is_none() {
            return Ok(());
        }
        let now = Arc::new(self.memory.with_log(log));
        let old = std::mem::replace(&mut self.memory, now);
        self.device.set_log(&self.memory);
        self.take_over(&old);
        Ok(())
    }

    /// What was noted in a log that has another one in its place now, and was not taken out by the
    /// front end, goes over to that: nobody notes in the old one any more.
    pub(super) fn take_over(&self, old: &GuestMemory) {
        if let (Some(old), Some(now)) = (old.log(), self.memory.log())
            && !now.is_same(old)
        {
            now.take_over(old);
            now.notify();
        }
    }

    /// The log for `memory`; None while nothing is to be noted.
    pub(super) fn log_for(&self, memory: &GuestMemory) -> Result<Option<DirtyLog>, LogError> {
        if self.acked & f::VHOST_LOG_ALL == 0 {
            return Ok(None);
        }
        match &self.log {
            Some(log) => {
                self.check_log(log, memory)?;
                Ok(Some(log.clone().with_signal(self.log_signal.clone())))
            }
            None => {
                let end = self.rings.logged().map(|(_, end)| end).fold(memory.end(), u64::max);
                DirtyLog::private(end).map(Some)
            }
        }
    }

    /// Checks that a log covers all that may be noted in it.
    fn check_log(&self, log: &DirtyLog, memory: &GuestMemory) -> Result<(), LogError> {
        log.check(memory.end(), || "guest memory".to_owned())?;
        self.rings.logged().try_for_each(|(i, end)| log.check(end, || format!("the used ring of queue {i}")))
    }

    /// Announces the guest with this MAC address, which are the first six bytes of the payload.
    pub(super) fn send_rarp(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SendRarp;
        if self.device.protocol_features() & p::RARP == 0 {
            return Err(super::not_offered(request));
        }
        message.u64()?;
        let mut mac = [0; 6];
        mac.copy_from_slice(&message.body()[..6]);
        self.device.announce(mac)
    }
}
