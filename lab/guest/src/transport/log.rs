//! Live migration as a front end sees it: the dirty log (vhost-user,
//! "Migration"), and the announcement of a guest that moved.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerowire_sys::map::Mapping;
use zerowire_vhost_user::{LogRegion, Request, VringAddr, WireError, features, protocol};

use super::VhostUser;
use crate::{GuestError, Region};

/// Bytes of guest memory that a bit of the log stands for.
pub const LOG_PAGE: u64 = 4096;

/// Flag of SET_VRING_ADDR: writes to the used ring are logged.
const VRING_LOG: u32 = 1;

/// A log in which a back end notes the pages that it wrote. The memory is
/// shared with the back end, which sets bits at any time.
#[derive(Debug)]
pub struct DirtyLog {
    file: OwnedFd,
    mapping: Mapping,
}

impl DirtyLog {
    /// An empty log for the guest addresses below `end`.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn new(end: u64) -> Result<DirtyLog, GuestError> {
        let words = usize::try_from(end.div_ceil(64 * LOG_PAGE).max(1)).unwrap_or(usize::MAX / 8);
        let make = |e| GuestError::io(format!("memory for a dirty log of {words} words"), e);
        let file = memfd_create("dirty-log", MemfdFlags::CLOEXEC).map_err(make)?;
        ftruncate(&file, 8 * words as u64).map_err(make)?;
        let mapping = Mapping::shared(&file, 0, 8 * words).map_err(make)?;
        Ok(DirtyLog { file, mapping })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a log always has room")]
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Its memfd, in which it begins at 0.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes out the numbers of the pages that were noted since the last
    /// call: guest address / [`LOG_PAGE`].
    pub fn take(&self) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        for at in (0..self.mapping.len()).step_by(4) {
            let word = self.mapping.word(at);
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bits = u32::from_le(word.swap(0, Ordering::AcqRel));
            pages.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| 8 * at as u64 + bit));
        }
        pages
    }
}

/// What of a front end's state belongs to logging.
#[derive(Debug, Default)]
pub(super) struct Logging {
    pub(super) on: bool,
    /// Queues that were started, as SET_VRING_ADDR told of them.
    pub(super) queues: BTreeMap<u16, VringAddr>,
}

impl Logging {
    /// The feature bit, while writes are logged.
    pub(super) fn feature(&self) -> u64 {
        if self.on { features::VHOST_LOG_ALL } else { 0 }
    }

    /// The flags of SET_VRING_ADDR.
    pub(super) fn flags(&self) -> u32 {
        if self.on { VRING_LOG } else { 0 }
    }
}

#[allow(clippy::missing_errors_doc, reason = "said at the type, for all calls")]
impl VhostUser {
    /// Has all writes of the back end to the memory that it has now noted in a
    /// new log, which is returned.
    pub fn start_log(&mut self) -> Result<DirtyLog, GuestError> {
        let end = self.shared.values().map(|region: &std::sync::Arc<Region>| region.end().0).max();
        let log = DirtyLog::new(end.unwrap_or(0))?;
        self.set_log(log.file(), LogRegion { size: log.len(), mmap_offset: 0 })?;
        self.log_all(true)?;
        Ok(log)
    }

    /// Gives the back end a log (SET_LOG_BASE), without having it used. With
    /// `file` and `region` being whatever they are, for tests of the back end.
    pub fn set_log(&mut self, file: BorrowedFd<'_>, region: LogRegion) -> Result<(), GuestError> {
        self.need(protocol::LOG_SHMFD, "protocol feature LOG_SHMFD")?;
        let request = Request::SetLogBase;
        // It is answered in any case.
        self.connection.send_request(request, true, &region.encode(), &[file])?;
        let reply = self.connection.recv_reply(request);
        let reply = self.in_time(request, reply)?;
        // The protocol does not say what the answer holds: a log description, or the u64 of an
        // acknowledgement.
        let taken = match reply.body().len() {
            16 => LogRegion::decode(request.number(), reply.body()).map_err(GuestError::Wire)?.size != 0,
            _ => reply.u64().map_err(GuestError::Wire)? == 0,
        };
        let refused = WireError::Refused { request: request.number(), code: 1 };
        if taken { Ok(()) } else { Err(GuestError::Wire(refused)) }
    }

    /// Has writes noted, or not any more: SET_FEATURES with VHOST_F_LOG_ALL,
    /// and SET_VRING_ADDR with VHOST_VRING_F_LOG for the queues that run. When
    /// it was turned off nothing is noted any more.
    pub fn log_all(&mut self, on: bool) -> Result<(), GuestError> {
        self.logging.on = on;
        let acked = self.acked & !features::VHOST_LOG_ALL | self.logging.feature();
        self.tell(Request::SetFeatures, &acked.to_ne_bytes(), &[])?;
        self.acked = acked;
        let flags = self.logging.flags();
        for addr in self.logging.queues.clone().into_values() {
            self.tell(Request::SetVringAddr, &VringAddr { flags, ..addr }.encode(), &[])?;
        }
        if self.has(protocol::REPLY_ACK) { Ok(()) } else { self.barrier() }
    }

    /// Has the back end announce the guest, whose MAC address this is, to the
    /// network (SEND_RARP).
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<(), GuestError> {
        self.need(protocol::RARP, "protocol feature RARP")?;
        let mut body = [0; 8];
        body[..6].copy_from_slice(&mac);
        self.tell(Request::SendRarp, &body, &[])
    }

    /// The queues that run, as SET_VRING_ADDR told of them; `log` is the guest
    /// address of the used ring.
    pub fn queue_addresses(&self) -> Vec<VringAddr> {
        self.logging.queues.values().copied().collect()
    }
}
