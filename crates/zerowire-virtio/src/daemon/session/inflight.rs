//! Messages about the region in which chains in flight are marked (vhost-user, "Inflight I/O
//! tracking").

use std::sync::Arc;

use zerowire_vhost_user::{Inflight, Message, Request, protocol as p};

use super::{Answer, Session, SessionError, not_offered, protocol, refused};
use crate::ring::inflight::{InflightRegion, Tracker};

impl Session<'_> {
    /// GET_INFLIGHT_FD: makes a region and gives it to the front end. One that can't be made has
    /// size 0 in the answer, which front ends take for "none".
    pub(super) fn get_inflight(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let request = Request::GetInflightFd;
        let wanted = self.check_inflight(request, message)?;
        let (queues, queue_size) = (wanted.num_queues, wanted.queue_size);
        let (mmap_size, file) = match InflightRegion::create(queues, queue_size) {
            Ok((region, file)) => {
                self.inflight = Some(Arc::new(region));
                (InflightRegion::bytes_for(queues, queue_size) as u64, Some(file))
            }
            Err(e) => {
                let name = &self.vm.control().name;
                tracing::error!("{name}: a region for chains in flight can't be made: {e}");
                self.inflight = None;
                (0, None)
            }
        };
        let mut body = Inflight { mmap_size, mmap_offset: 0, ..wanted }.encode().to_vec();
        // Front ends written in C send, and expect, the padding at the structure's end.
        body.resize(message.body().len(), 0);
        Ok(Answer::WithFile(body, file))
    }

    /// SET_INFLIGHT_FD: the region that this back end, or one before it, has made.
    pub(super) fn set_inflight(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::SetInflightFd;
        let r = self.check_inflight(request, message)?;
        let file = message.take_fd()?;
        self.inflight = None;
        let region = InflightRegion::open(&file, r.mmap_offset, r.mmap_size, r.num_queues, r.queue_size)
            .map_err(|text| refused(request, text))?;
        self.inflight = Some(Arc::new(region));
        Ok(())
    }

    fn check_inflight(&self, request: Request, message: &Message) -> Result<Inflight, SessionError> {
        if self.protocol & p::INFLIGHT_SHMFD == 0 {
            return Err(not_offered(request));
        }
        let r = message.inflight()?;
        let most = self.rings.count();
        if !(1..=most).contains(&usize::from(r.num_queues)) {
            return Err(protocol(request, format!("{} queues, of a device that has {most}", r.num_queues)));
        }
        if !r.queue_size.is_power_of_two() || r.queue_size > 32768 {
            return Err(protocol(
                request,
                format!("queue size {} is not a power of two up to 32768 (virtio 1.3 §2.7)", r.queue_size),
            ));
        }
        if let Some(i) = self.rings.any_started() {
            return Err(protocol(request, format!("sent while queue {i} runs")));
        }
        Ok(r)
    }

    /// What marks the chains of a ring that starts, if the front end wants that.
    pub(super) fn tracker(&self, queue: u16) -> Option<Box<Tracker>> {
        self.inflight.as_ref().and_then(|r| Tracker::new(r, queue)).map(Box::new)
    }

    /// The driver has reset the device: all chains are its own again. No ring runs.
    pub(super) fn forget_inflight(&mut self) {
        if let Some(region) = &self.inflight {
            region.clear();
        }
    }
}
