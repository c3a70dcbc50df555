//! Messages about the region in which chains in flight are marked (vhost-user, "Inflight I/O
//! tracking").

use std::sync::Arc;

use zerowire_vhost_user::{Inflight, Message, Request};

use super::vrings::Vrings;
use super::{Answer, SessionError, protocol, refused};
use crate::ring::inflight::{InflightRegion, Tracker};

/// Where chains in flight are marked, if the front end wants that.
#[derive(Debug, Default)]
pub(super) struct InflightTracking {
    region: Option<Arc<InflightRegion>>,
}

impl InflightTracking {
    /// GET_INFLIGHT_FD: makes a region for `rings` and gives it to the front end. One that can't be
    /// made has size 0 in the answer, which front ends take for "none". The log file calls the VM
    /// `name`.
    pub(super) fn create(
        &mut self,
        message: &Message,
        rings: &Vrings,
        name: &str,
    ) -> Result<Answer, SessionError> {
        let wanted = parse(Request::GetInflightFd, message, rings)?;
        let (queues, queue_size) = (wanted.num_queues, wanted.queue_size);
        let (mmap_size, file) = match InflightRegion::create(queues, queue_size) {
            Ok((region, file)) => {
                self.region = Some(Arc::new(region));
                (InflightRegion::bytes_for(queues, queue_size) as u64, Some(file))
            }
            Err(e) => {
                tracing::error!("{name}: a region for chains in flight can't be made: {e}");
                self.region = None;
                (0, None)
            }
        };
        let mut body = Inflight { mmap_size, mmap_offset: 0, ..wanted }.encode().to_vec();
        // Front ends written in C send, and expect, the padding at the structure's end.
        body.resize(message.body().len(), 0);
        Ok(Answer::WithFile(body, file))
    }

    /// SET_INFLIGHT_FD: the region that this back end, or one before it, has made for `rings`.
    pub(super) fn open(&mut self, message: &mut Message, rings: &Vrings) -> Result<(), SessionError> {
        let request = Request::SetInflightFd;
        let r = parse(request, message, rings)?;
        let file = message.take_fd()?;
        self.region = None;
        let region = InflightRegion::open(&file, r.mmap_offset, r.mmap_size, r.num_queues, r.queue_size)
            .map_err(|text| refused(request, text))?;
        self.region = Some(Arc::new(region));
        Ok(())
    }

    /// What marks the chains of a ring that starts.
    pub(super) fn tracker(&self, queue: u16) -> Option<Box<Tracker>> {
        self.region.as_ref().and_then(|r| Tracker::new(r, queue)).map(Box::new)
    }

    /// The driver has reset the device: all chains are its own again. No ring runs.
    pub(super) fn clear(&mut self) {
        if let Some(region) = &self.region {
            region.clear();
        }
    }
}

/// What a message says of a region, which no ring may use yet.
fn parse(request: Request, message: &Message, rings: &Vrings) -> Result<Inflight, SessionError> {
    let r = message.inflight()?;
    let most = rings.count();
    if !(1..=most).contains(&usize::from(r.num_queues)) {
        return Err(protocol(request, format!("{} queues, of a device that has {most}", r.num_queues)));
    }
    if !r.queue_size.is_power_of_two() || r.queue_size > 32768 {
        return Err(protocol(
            request,
            format!("queue size {} is not a power of two up to 32768 (virtio 1.3 §2.7)", r.queue_size),
        ));
    }
    if let Some(i) = rings.any_started() {
        return Err(protocol(request, format!("sent while queue {i} runs")));
    }
    Ok(r)
}
