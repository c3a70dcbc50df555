//! The area in which a back end notes which chains it has (vhost-user, "Inflight I/O tracking").
//! The front end keeps it for the back end that comes after it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zerowire_vhost_user::{Inflight, Request, WireError, protocol};

use super::VhostUser;
use crate::GuestError;

/// Memory that a back end made for its notes of chains in flight. A clone is
/// another handle to the same memory. Nothing is checked, so tests can give a
/// back end what no back end would have made.
#[derive(Clone, Debug)]
pub struct InflightArea {
    /// Its file.
    pub file: Arc<OwnedFd>,
    /// Where it lies in the file, and for how many queues of which size.
    pub place: Inflight,
}

impl VhostUser {
    /// The area for notes of chains in flight. There is one once a queue was started with the
    /// protocol feature INFLIGHT_SHMFD: the front end requested it from the back end then. It is
    /// for the next back end: [`VhostUser::set_inflight`].
    pub fn inflight(&self) -> Option<&InflightArea> {
        self.inflight.as_ref()
    }

    /// Sets the area that an earlier back end used. It is handed over when the first queue is
    /// started. With none, the front end requests a new one from the back end, as is right after a
    /// reset of the device.
    pub fn set_inflight(&mut self, area: Option<InflightArea>) {
        self.inflight = area;
        self.inflight_shared = false;
    }

    /// Hands the area over, if the feature is in force and this was not done yet. Without an area
    /// it requests one of `queue_size` entries a queue.
    pub(super) fn share_inflight(&mut self, queue_size: u16) -> Result<(), GuestError> {
        if !self.has(protocol::INFLIGHT_SHMFD) || self.inflight_shared {
            return Ok(());
        }
        let area = match self.inflight.take() {
            Some(area) => area,
            None => self.get_inflight(queue_size)?,
        };
        let handed = self.tell(Request::SetInflightFd, &area.place.encode(), &[area.file.as_fd()]);
        self.inflight = Some(area);
        handed?;
        self.inflight_shared = true;
        Ok(())
    }

    /// Asks for a new area (GET_INFLIGHT_FD).
    ///
    /// # Errors
    /// [`GuestError::Wire`], also when the back end has none to give.
    pub fn get_inflight(&mut self, queue_size: u16) -> Result<InflightArea, GuestError> {
        let request = Request::GetInflightFd;
        let wanted = Inflight { mmap_size: 0, mmap_offset: 0, num_queues: self.queues, queue_size };
        let mut reply = self.exchange(request, &wanted.encode())?;
        let place = reply.inflight()?;
        if place.mmap_size == 0 {
            return Err(GuestError::Wire(WireError::BadValue {
                request: request.number(),
                field: "the size of the area",
                value: 0,
                rule: "more than 0: the back end could not make it",
            }));
        }
        Ok(InflightArea { file: Arc::new(reply.take_fd()?), place })
    }
}
